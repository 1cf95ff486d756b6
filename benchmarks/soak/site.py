"""The server under test and its graphs: `chat` with the default model, `script` whose engine reloads replace."""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.conftest import MODEL, ROOT, Server, script_graph, start_process

CHAT, SCRIPT = "chat", "script"


class Site:
    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ovserve-soak-")
        self.graphs = Path(self._directory.name)
        self._changes = 0
        text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
        self._chat = re.sub(r'models_path: "[^"]*"', f'models_path: "{MODEL}"', text)
        self.change_graph()
        self.first = self.change_engine()

    def __enter__(self) -> Server:
        flags = ("--file_system_poll_wait_seconds", "0", "--log_level", "WARNING")
        self.server = start_process("--graphs_dir", str(self.graphs), *flags)
        return self.server

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()
        self.close()

    def close(self) -> None:
        """Delete the graphs."""
        self._directory.cleanup()

    def change_graph(self) -> None:
        """Another limit in the graph of the real model: at the next reload the engine is kept."""
        self._changes += 1
        (self.graphs / CHAT).mkdir(exist_ok=True)
        limit = f"max_queue: {1000 + self._changes} models_path:"
        (self.graphs / CHAT / "graph.pbtxt").write_text(self._chat.replace("models_path:", limit, 1))

    def change_engine(self) -> int:
        """Another script: at the next reload a new engine process takes over from the old one. Its answers hold
        the number that this returns."""
        self._changes += 1
        words = " ".join(f"v{self._changes}" for _ in range(20))
        script = {"step_seconds": 0.02, "replies": [{"text": words}]}
        script_graph(self.graphs / SCRIPT, json.dumps(script))
        return self._changes


def engine_of_model(server: Server) -> int:
    """The pid of the engine that has the library loaded; the others are scripted. 0: there is none now."""
    for pid in server.children("ovserve.engine.worker.main"):
        with suppress(OSError):  # it has just ended
            if "openvino" in Path(f"/proc/{pid}/maps").read_text():
                return pid
    return 0


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
