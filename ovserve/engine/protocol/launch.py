"""The command line, the signal and the exit codes of an engine process.

The command is `python -m WORKER FD [MARK]`. FD is one end of a socketpair, on which the frames go both ways.
A mark is the kind of the engine, for a list of processes, or PREPARE.

This file imports nothing of the project, so that a process can be started before anything else is imported
(`client/spawn.py`).
"""

from __future__ import annotations

import signal

# Arguments of the interpreter and of the module.
WORKER = "ovserve.engine.worker.main"  # the module
PREPARE = "prepare"  # import the libraries of text generation before the first frame

# Write the stacks of all threads to stderr. It is not a frame, because an engine that hangs
# reads none.
DUMP_SIGNAL = signal.SIGUSR1

# Exit codes; the names on the right are those of sysexits.h. After `Stop` it is 0.
EXIT_LOAD_FAILED = 1
EXIT_PROTOCOL = 65  # EX_DATAERR: a frame that cannot be read
EXIT_STEP_RAISED = 70  # EX_SOFTWARE: each request got the reason
