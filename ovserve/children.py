"""Commands of child processes that end with their parent, even if that one is killed.

The kernel sends the signal of PR_SET_PDEATHSIG to a process when the thread that has started it ends. What
that process starts does not inherit it: with `descendants`, all are in one group, and a process that waits
for the death of the group's leader kills the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_END_WITH_PARENT = """
import ctypes, os, signal, sys
def end_with(parent, number):
    ctypes.CDLL(None).prctl(1, number, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
"""
_KILL_GROUP = """
if os.getpgrp() != (leader := os.getpid()):
    os.setpgid(0, 0)
if not os.fork():
    os.closerange(0, 256)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # those that the whole group gets, too
    end_with(leader, signal.SIGUSR2)
    signal.sigwait({signal.SIGUSR2})
    os.killpg(0, signal.SIGKILL)
"""
_RUN = """
end_with(int(sys.argv[1]), signal.SIGKILL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def bound_command(command: Sequence[str], *, descendants: bool = False) -> list[str]:
    """Return the command of a process that ends with this one. Outside of Linux it is `command`."""
    if sys.platform != "linux":
        return list(command)
    program = _END_WITH_PARENT + (_KILL_GROUP if descendants else "") + _RUN
    return [sys.executable, "-I", "-S", "-c", program, str(os.getpid()), *command]
