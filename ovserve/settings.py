"""Settings: every option of `ovserve serve`, one field each, with flag, help and check in one place.

`cli.py` builds the command line from the fields; `server.py` hands the values down. OVMS's options keep
OVMS's names. There is no settings global.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ovserve.log import LEVELS


def option(default: Any, help_: str, **more: Any) -> Any:
    """A Settings field: its default, the help text, and argparse's own words such as `choices`."""
    return field(default=default, metadata={"help": help_, **more})


@dataclass(frozen=True)
class Settings:
    model_name: str = option("", "name under which the graph is served")
    model_path: str = option("", "directory that holds graph.pbtxt")
    rest_port: int = option(8000, "port of the HTTP server; 0 takes a free one")
    rest_bind_address: str = option("127.0.0.1", "address the HTTP server listens on; 0.0.0.0 for all")
    log_level: str = option("INFO", "least severe messages to log", choices=LEVELS)
    max_body_bytes: int = option(32 << 20, "largest request body accepted, in bytes")
    load_timeout: float = option(300.0, "seconds an engine may take to load its model")
    shutdown_timeout: float = option(30.0, "seconds running requests get to finish when the server stops")
    response_store: str = option(
        "on", "keep responses, for GET, previous_response_id and background", choices=("on", "off")
    )
    response_store_path: str = option("~/.local/state/ovserve/responses.db", "file they are kept in (SQLite)")
    response_store_ttl: int = option(30 * 24 * 3600, "seconds a response is kept after its last use")
    response_store_max_bytes: int = option(1 << 30, "size of that file; the longest unused go first")

    def problem(self) -> str | None:
        """What is wrong with the values taken together, or None."""
        if not self.model_path or not self.model_name:
            return "--model_name and --model_path are both needed"
        if not 0 <= self.rest_port <= 65535:
            return f"--rest_port: expected 0 to 65535, got {self.rest_port}"
        positive = ("max_body_bytes", "load_timeout", "shutdown_timeout")
        for name in (*positive, "response_store_ttl", "response_store_max_bytes"):
            if getattr(self, name) <= 0:
                return f"--{name}: expected more than 0, got {getattr(self, name)}"
        return None


OPTIONS = fields(Settings)
