"""The command `ovserve`: one file per subcommand, each adding itself to the parser and doing its work.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import NoReturn

# With these `ovserve serve` starts no engine, or may not: help, and edits of a configuration.
WITHOUT_ENGINE = ("-h", "--help", "--list_models", "--add_to_config", "--remove_from_config")


def main(argv: list[str] | None = None) -> NoReturn:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0].startswith("--") and argv[0] not in ("--help", "--version"):
        # The spelling of OVMS.
        argv = ["pull", *(a for a in argv if a != "--pull")] if "--pull" in argv else ["serve", *argv]
    early = None
    if argv[:1] == ["serve"] and not any(word in WITHOUT_ENGINE for word in argv):
        from ovserve.engine.client.early import EarlyProcess, choose_temporary_directory

        choose_temporary_directory()
        early = EarlyProcess.spawn()
    try:
        from ovserve.cli.commands import run  # takes 0.06 s, while the engine process imports its libraries

        sys.exit(run(argv, early))
    finally:
        if early is not None:
            early.end()
