"""The command `ovserve`: one file per subcommand, each adding itself to the parser and doing its work.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from contextlib import suppress

# With these `ovserve serve` starts no engine, or may not: help, and edits of a configuration.
WITHOUT_ENGINE = ("-h", "--help", "--list_models", "--add_to_config", "--remove_from_config")
INTERRUPTED_EXIT_CODE = 130  # as a shell says it of SIGINT


def main(argv: list[str] | None = None) -> None:
    _open_standard_streams()
    if not os.path.expanduser("~").startswith("/"):  # a user without an entry, outside of a container
        os.environ["HOME"] = "/"  # as container engines set it
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0].startswith("--") and argv[0] not in ("--help", "--version"):
        # The spelling of OVMS.
        argv = ["pull", *(a for a in argv if a != "--pull")] if "--pull" in argv else ["serve", *argv]
    child = None
    try:
        if argv[:1] == ["serve"]:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until `Reloads` takes it: nothing is loaded yet
        if argv[:1] == ["serve"] and not any(word in WITHOUT_ENGINE for word in argv):
            from ovserve.engine.client.spawn import Child, choose_temporary_directory
            from ovserve.engine.protocol.launch import PREPARE

            gc.disable()  # until `Server.start`: imports leave no garbage, and looking takes 50 ms of 970
            choose_temporary_directory()
            with suppress(OSError):  # the launch of the engine fails with it as well, and reports it
                child = Child(PREPARE)
        from ovserve.cli.commands import run  # takes 0.06 s, while the engine process imports its libraries

        sys.exit(run(argv, child))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a shell and what it runs may both send one
        sys.exit(INTERRUPTED_EXIT_CODE)
    finally:
        gc.enable()
        if child is not None:
            child.end()


def _open_standard_streams() -> None:
    """Give a process that was started with closed ones others: a socket would get their numbers, and what a
    library prints would go to a client."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files and models have any characters and bytes
        sys.stdout.reconfigure(errors="backslashreplace")
