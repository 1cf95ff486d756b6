"""Fixtures of all tests: the real model, and the real server as its own process."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from ovserve.access import as_system
from ovserve.engine.protocol.specs import GrammarSpec, TokenizerSpec
from tests import breadth
from tests import short_model as short_model_files
from tests.lines import Lines
from tests.short_model import EXACT

ROOT = Path(__file__).parents[1]
MODEL = Path(os.environ.get("OVSERVE_TEST_MODEL", ROOT / "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
# What takes 20 s and more in one of few tests. A process of xdist has up to three files in advance, so the last of these
# would keep one process busy for a minute after the others have ended.
LONG_FILES = (
    "tests/test_migration.py",
    "tests/http/test_batches.py",
    "tests/engine/test_watchdog.py",
    "tests/e2e/test_idle_models.py",
    "tests/test_tutorial.py",
    "tests/cli/test_run.py",
    "tests/http/test_one_end.py",
    "tests/pull/test_merged.py",
    "tests/http/test_realtime_faults.py",
    "tests/test_shape.py",
    "tests/test_author_graphs.py",
    "tests/engine/test_memory_of_shapes.py",
    "tests/engine/test_grammar_cost.py",
    "tests/engine/test_beams_http.py",
)
LONG_TIMEOUT = 400  # of a test that is `long`, unless it or the command says another
BESIDE = {spec.kind.encode() for spec in (GrammarSpec, TokenizerSpec)}  # marks of processes beside an engine


# Until `pytest_collection_finish`: modules and tests are not garbage, and looking for some among them takes 4 s of
# the 10 s in which all are collected.
gc.disable()
breadth.register()
# Images of containers set it. Then each server of a test compiles all 434 modules that it imports, which is more than
# a second of its start, and each process of pytest all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
for _library in ("httpx", "httpx2"):  # the second is that of OpenAI's and Anthropic's clients
    # Without settings of TLS each client reads the same certificates, in 45 ms. A run makes thousands of clients.
    with suppress(ImportError):
        _transport = importlib.import_module(f"{_library}._transports.default")
        _transport.create_ssl_context = cache(_transport.create_ssl_context)
for _part in ("connect", "read", "write", "pool"):
    # Without a `timeout=` httpx gives up after 5 s, which a busy machine takes; pytest-timeout ends what hangs.
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, 60.0)
# `ovserve run` of a test finds no server of another run, or of this machine's user.
RUNTIME = tempfile.TemporaryDirectory(prefix="ovserve-test-runtime-")
os.environ["XDG_RUNTIME_DIR"] = RUNTIME.name
# Processes of a test that have another home take the kernels from here: compiling them takes 20 s of CPU time.
os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
# Models that servers convert from .gguf files, 3 s of CPU time each: the servers of a run share them.
CONVERTED = tempfile.TemporaryDirectory(prefix="ovserve-test-models-")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a job that a shell put into the background: the servers that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process, with all stacks, when a test outlives its timeout by far.

    pytest-timeout raises an exception in the main thread, once. Hypothesis takes it for a failing example and goes
    on, and an event loop that it interrupted can hang while it is closed: 80 minutes of a CI run, in November 2026.
    """
    mark = item.get_closest_marker("timeout")
    option = item.config.getoption("timeout") or item.config.getini("timeout")
    seconds = mark.args[0] if mark else float(option)
    stderr = item.config.stash[fault_handler_stderr_fd_key]  # sys.stderr goes to a file while a test runs
    faulthandler.dump_traceback_later(2 * seconds + 60, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_finish() -> None:
    """What was collected stays until the end, so no later collection of garbage walks through it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that use the default model, which `make test-fast` leaves out, and begin with the longest files."""
    for item in items:
        marked = {mark.name for mark in item.iter_markers()}
        if "long" in marked and "timeout" not in marked and config.getoption("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT))
        if "model" in getattr(item, "fixturenames", ()) and "model" not in _parameters(item):
            item.add_marker("model")
    if hasattr(config, "workerinput"):  # a process of xdist, which otherwise keeps the order of names
        work = Counter[str]()  # of each file: a long test takes eight times as long as another
        for item in items:
            work[item.nodeid.partition("::")[0]] += 8 if item.get_closest_marker("long") else 1
        place = {file: (file not in LONG_FILES, -work[file]) for file in work}
        items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])


def _parameters(item: pytest.Item) -> set[str]:
    spec = getattr(item, "callspec", None)
    return set() if spec is None else {*spec.params}


@dataclass
class Server:
    """`ovserve serve` as a child process on a free port of 127.0.0.1."""

    process: subprocess.Popen[str]
    state: tempfile.TemporaryDirectory[str]  # what it keeps on disk
    url: str = ""

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._output, self._errors = Lines(self.process.stdout.fileno()), Lines(self.process.stderr.fileno())

    @property
    def output(self) -> list[str]:
        return self._output.all()

    @property
    def errors(self) -> list[str]:
        """The lines of its log so far."""
        return self._errors.all()

    def wait_ready(self, seconds: float) -> bool:
        """Return whether it has said its address, after a wait until it has or is gone."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            gone = self.process.poll() is not None
            for line in self.output:
                if found := re.search(r"ready at (https?://[^/\s]+|unix:\S+)/v3", line):
                    self.url = found[1]
                    return True
            if gone:
                return False
            self._output.wait(0.05)
        return False

    @property
    def v3(self) -> str:
        return f"{self.url}/v3"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def engine_pid(self) -> int:
        """The one engine's, when there is one: after an end the next takes a moment to start."""
        deadline = time.monotonic() + 230
        while len(engines := self.children("ovserve.engine.worker.main")) != 1:
            assert time.monotonic() < deadline, engines
            time.sleep(0.02)
        return engines[0]

    def children(self, module: str) -> list[int]:
        """Pids of the server's own child processes that run a module, without those beside an engine: they prove grammars or tokenise."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        lines = {}
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                lines[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
        return [
            p for p, line in lines.items() if module.encode() in line and not BESIDE & {*line.split(b"\0")}
        ]

    def stop(self, number: int = signal.SIGTERM, timeout: float = 230) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.state.cleanup()
            for lines, stream in ((self._output, self.process.stdout), (self._errors, self.process.stderr)):
                lines.end()
                assert stream is not None
                stream.close()


def start_server(
    directory: Path,
    *flags: str,
    name: str = "smollm2",
    timeout: float = 230,
    prefix: Sequence[str] = (),
) -> Server:
    """A server of one graph."""
    graph = ("--model_name", name, "--model_path", str(directory))
    return start_process(*graph, *flags, timeout=timeout, prefix=prefix)


def start_process(*flags: str, timeout: float = 230, prefix: Sequence[str] = ()) -> Server:
    """Start a server and wait until it is ready; raises with its log if it does not get there.

    `prefix` is a command that runs it, such as `unshare`.
    """
    command = [*prefix, sys.executable, "-m", "ovserve", "serve", "--rest_port", "0"]
    state = tempfile.TemporaryDirectory(prefix="ovserve-test-")
    if "--response_store_path" not in flags:
        command += ["--response_store_path", f"{state.name}/responses.db"]
    if "--model_path" in flags and "--model_repository_path" not in flags:
        command += ["--model_repository_path", CONVERTED.name]
    # aiohttp reads all certificates of the system, twice, when it is imported: 45 ms. No server of a test needs one.
    environment = os.environ | {"SSL_CERT_FILE": "", "SSL_CERT_DIR": ""}
    process = subprocess.Popen(
        [*command, *flags],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = Server(process, state)
    if not server.wait_ready(timeout):
        process.kill()
        server.stop()
        raise RuntimeError("the server did not start:\n" + "".join(server.errors))
    return server


def free_environment() -> dict[str, str]:
    """The environment without what points to this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OVSERVE_"))}


@pytest.fixture(autouse=True)
def system_context() -> Iterator[None]:
    """Tests that call the manager in this process do what the server does by itself."""
    with as_system():
        yield


@pytest.fixture(scope="session")
def model() -> Path:
    assert MODEL.exists(), f"{MODEL} is missing; `make setup` fetches it"
    return MODEL


@pytest.fixture(scope="session")
def short_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the first two layers of the default model: its vocabulary, tokenizer and chat template, but no
    language. It costs 0.4 s, and saves 1.9 s in each engine. Not to be changed."""
    directory = tmp_path_factory.mktemp("short") / "smollm2"
    short_model_files.write(model.parent, directory)
    return directory


@pytest.fixture(scope="session")
def short_graph(short_model: Path) -> Path:
    """The graph `graphs/smollm2` with that model."""
    return graph_of(short_model.parent / "graph", short_model)


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that sees (see scripts/vision_model.py). Not to be changed: `shutil.copytree` it."""
    made = tmp_path_factory.mktemp("vision") / "model"
    subprocess.run(
        [sys.executable, "-m", "scripts.vision_model", str(made)], cwd=ROOT, check=True, timeout=230
    )
    return made


@pytest.fixture(scope="session")
def server(model: Path) -> Iterator[Server]:
    """The default graph with the real model, shared by all tests that do not hurt it."""
    running = start_server(ROOT / "graphs/smollm2")
    yield running
    running.stop()


def graph_of(directory: Path, model: Path) -> Path:
    """A graph directory like `graphs/smollm2` with another model, which answers the same whatever it computes beside."""
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    directory.mkdir(parents=True, exist_ok=True)
    options = f"plugin_config: '{EXACT}' models_path: \"{model}\""
    (directory / "graph.pbtxt").write_text(re.sub(r'models_path: "[^"]*"', options, text))
    return directory


def script_graph(directory: Path, script: str, options: str = "") -> Path:
    """A graph directory whose model is a script (see ovserve.kinds.text.worker.scripted), its other options the defaults
    but for those given."""
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.script.json").write_text(script)
    model = f'models_path: "model.script.json"{options and " " + options}'
    text = re.sub(r'models_path: "[^"]*"(\n *\w+: \w+)+', lambda _: model, text)
    (directory / "graph.pbtxt").write_text(text)
    return directory


def refuse(monkeypatch: pytest.MonkeyPatch, path: Path, number: int = errno.EACCES) -> None:
    """Have the system answer so for all below a path: the user of the tests may be root."""
    for name in ("stat", "listdir", "scandir"):
        real = getattr(os, name)

        def answer(where: Any, *more: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            if Path(where).is_relative_to(path) and (name != "stat" or Path(where) != path):
                raise OSError(number, os.strerror(number), str(where))
            return real(where, *more, **options)

        monkeypatch.setattr(os, name, answer)


def until(condition: Callable[[], object], what: object = "never came true", seconds: float = 230) -> None:
    """Wait until `condition()` holds; else fail with `what`, or with what `what()` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def eventually(condition: object, seconds: float = 230, pause: float = 0.02) -> None:
    """Wait until `condition()` holds; fail by name of the condition otherwise.

    With `pause=0` it looks in each turn of the loop, so it misses nothing that holds for a turn of this process.
    """
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"never came true: {condition}"
        await asyncio.sleep(pause)


@pytest.fixture(scope="session")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline of `scripts/image_model.py`; not to be changed."""
    from scripts.image_model import make

    directory = tmp_path_factory.mktemp("image") / "model"
    make(directory)
    return directory


@pytest.fixture(scope="session")
def plain_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of `scripts/dummy_models.py`: NAME/1/model.xml for each; not to be changed."""
    from tests.plain_models import write_models

    return write_models(tmp_path_factory.mktemp("plain"))
