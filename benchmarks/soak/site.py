"""The server under test and its graphs: `chat` with the default model, `script` whose engine reloads replace."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.conftest import MODEL, ROOT, Server, script_graph, start_process
from tests.encoders import graph as rerank_graph
from tests.encoders import tiny

CHAT, SCRIPT, RERANK = "chat", "script", "rerank"
# Models whose inputs have random lengths, by their graphs. `ovserve pull kokoro` fetches the second one, which is
# left out where it is not there.
RANDOM_LENGTHS = {"embeddings": ROOT / "models/minilm", "text_to_speech": ROOT / "models/kokoro"}


class Site:
    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ovserve-soak-")
        self.graphs = Path(self._directory.name)
        self._changes = 0
        text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
        self._chat = re.sub(r'models_path: "[^"]*"', f'models_path: "{MODEL}"', text)
        self.random_lengths = [name for name, model in RANDOM_LENGTHS.items() if model.is_dir()]
        for name in self.random_lengths:
            graph = (ROOT / "graphs" / name / "graph.pbtxt").read_text()
            (self.graphs / name).mkdir()
            text = re.sub(r'models_path: "[^"]*"', f'models_path: "{RANDOM_LENGTHS[name]}"', graph)
            (self.graphs / name / "graph.pbtxt").write_text(text)
        # No reranker is in a package, so it is a tiny one. It shares the process of the embeddings.
        tiny("bert", self.graphs / RERANK)
        (self.graphs / RERANK / "graph.pbtxt").write_text(rerank_graph("./", kind="Rerank"))
        self.change_graph()
        self.first = self.change_engine()

    def __enter__(self) -> Server:
        flags = ("--file_system_poll_wait_seconds", "0", "--log_level", "WARNING")
        self.server = start_process("--graphs_dir", str(self.graphs), *flags, timeout=180)
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
    """The pid of the engine that has the library loaded and none of RANDOM_LENGTHS; the others are scripted.
    0: there is none now."""
    return next(
        (pid for pid, maps in _engines(server) if not any(_is_in(m, maps) for m in RANDOM_LENGTHS.values())),
        0,
    )


def engine_of(server: Server, name: str) -> int:
    """The pid of the engine of one of RANDOM_LENGTHS; 0: there is none now."""
    return next((pid for pid, maps in _engines(server) if _is_in(RANDOM_LENGTHS[name], maps)), 0)


def _engines(server: Server) -> Iterator[tuple[int, str]]:
    """The engines that have the library loaded, with the files that they have mapped."""
    for pid in server.children("ovserve.engine.worker.main"):
        with suppress(OSError):  # it has just ended
            maps = Path(f"/proc/{pid}/maps").read_text()
            if "openvino" in maps:
                yield pid, maps


def _is_in(model: Path, maps: str) -> bool:
    return f"{model.resolve()}/" in maps


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
