"""`make api-fuzz`: schemathesis reads /openapi.json of a running server and tries to prove it wrong.

A real server process with a scripted model. Each operation gets bodies that satisfy the document and bodies
that break one rule of it; checked are undocumented statuses, content types and shapes, 5xx, rules that are
documented but not enforced, and methods that are not documented. tests/http/test_api_fuzz.py runs it short.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import ROOT, script_graph, start_server

# Not checked: that what satisfies the document is accepted. Rules between fields (n <= best_of) and lengths in
# tokens are not JSON schema's; tests/http/test_refusals.py has them.
EXCLUDED = "positive_data_acceptance"
TAKES_THE_MODEL_AWAY = "/unload$"  # names are learnt from other answers, and then there are only 404s
SCRIPT = '{"max_length": 400, "replies": [{"text": "one two three"}]}'


def run(*options: str, phases: str = "examples,coverage,fuzzing") -> subprocess.CompletedProcess[str]:
    """The result of `st run` with these options; its report is in stdout."""
    with tempfile.TemporaryDirectory() as directory:
        server = start_server(script_graph(Path(directory), SCRIPT), name="smollm2")
        try:
            command = [str(Path(sys.executable).with_name("st")), "run", f"{server.url}/openapi.json"]
            return subprocess.run(
                [
                    *command,
                    "--exclude-checks",
                    EXCLUDED,
                    "--exclude-path-regex",
                    TAKES_THE_MODEL_AWAY,
                    "--no-color",
                    "--phases",
                    phases,
                    *options,
                ],
                cwd=directory,
                env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.api_hooks", "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=3600,
            )
        finally:
            server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=500, help="bodies per operation")
    done = run("--max-examples", str(parser.parse_args().examples))
    print(done.stdout, done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
