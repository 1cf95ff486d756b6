"""Facts from the operating system about a machine and a process: cores, memory, threads."""
