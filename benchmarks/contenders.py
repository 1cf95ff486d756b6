"""The servers of `peers.py` as processes: how each is started, when it is ready, whose turn it is.

All stay loaded. Those whose turn it is not are stopped (SIGSTOP), with all their processes, so that none can
take a core from the one that is measured. Every process is ended by the group it was started in.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from benchmarks import peer_setup, processes
from benchmarks.assisted import MODEL, ROOT

START_SECONDS = 1800.0  # vLLM compiles at its first start


@dataclass(frozen=True)
class Recipe:
    """The way to start one: `command` with `{port}` in it, and the path that answers 200 when it is ready."""

    name: str
    command: tuple[str, ...]
    ready: str
    completions: str = "/v1/completions"
    environment: Mapping[str, str] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()  # arguments to add if it does not start without

    def with_fallback(self) -> Recipe:
        return replace(self, command=(*self.command, *self.fallback), fallback=())


def ours(graph: Path, name: str) -> Recipe:
    command = ["-m", "ovserve", "serve", "--rest_port", "{port}", "--model_name", "smollm2"]
    more = ["--model_path", str(graph), "--response_store_path", str(peer_setup.PEERS / f"{name}.db")]
    return Recipe(name, (sys.executable, *command, *more), "/v2/health/ready", "/v3/completions")


def peer(
    name: str, streams: int, context: int, file: Path = MODEL, weights: Path = peer_setup.WEIGHTS
) -> Recipe:
    """Set it up for `streams` at a time of `context` tokens each, with llama.cpp's file and vLLM's directory of
    weights; without any in it, vLLM draws some. Raises FileNotFoundError if it was not set up."""
    if not peer_setup.is_there(name):
        raise FileNotFoundError(f"{name} is not in .peers/")
    cores = os.cpu_count() or 1
    if name == "llama.cpp":
        command = [
            *(str(peer_setup.llama_server()), "--model", str(file), "--alias", "smollm2"),
            *("--host", "127.0.0.1", "--port", "{port}", "--threads", str(cores), "--parallel", str(streams)),
            # Prompts are new each time: there is nothing to keep them for.
            *("--ctx-size", str(streams * context), "--cache-ram", "0"),
        ]
        # Its kernels for AMX die of an illegal instruction where the machine has the flag but not the tiles.
        return Recipe(name, tuple(command), "/health", fallback=("--no-repack",))
    command = [
        *(str(peer_setup.VLLM / "bin/python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(weights), "--served-model-name", "smollm2", "--host", "127.0.0.1"),
        *("--port", "{port}", "--dtype", "bfloat16", "--max-num-seqs", str(streams)),
        *("--max-model-len", str(max(2048, context))),
        *(() if any(weights.glob("*.safetensors")) else ("--load-format", "dummy")),
    ]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_CACHE_ROOT": str(peer_setup.PEERS / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Recipe(name, tuple(command), "/health", environment=environment)


class Contender:
    """Started and ready, or an error: RuntimeError with the end of its log."""

    def __init__(self, recipe: Recipe) -> None:
        self.name, self.completions = recipe.name, recipe.completions
        self.port = _free_port()
        peer_setup.PEERS.mkdir(exist_ok=True)
        self._log_file = peer_setup.PEERS / f"{recipe.name.replace('/', '_')}.log"
        self._log: IO[bytes] = self._log_file.open("wb")
        began = time.monotonic()
        self._process = subprocess.Popen(
            [word.replace("{port}", str(self.port)) for word in recipe.command],
            cwd=ROOT,
            env=os.environ | recipe.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait(f"http://127.0.0.1:{self.port}{recipe.ready}")
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - began
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def cpu(self) -> float:
        """Seconds that its processes have used so far; those that have ended do not count."""
        return sum(processes.cost(pid).cpu for pid in self._pids())

    def resident(self) -> float:
        """GB of memory that its processes hold, mapped files included."""
        return sum(processes.memory(pid)[0] for pid in self._pids()) / 1e3

    def _pids(self) -> Iterator[int]:
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = file.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self._process.pid and fields[0] not in "ZX":  # its group, and alive
                yield int(file.parent.name)

    def stop(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _wait(self, url: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        self._log.flush()
        tail = self._log_file.read_text(errors="replace").splitlines()[-12:]
        raise RuntimeError("\n".join([f"{self.name} did not get ready:", *tail]))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
