"""What the operating system says of a machine and a process: cores, memory, threads."""
