"""The order of a start: the engine process first, its model second, the rest of the server meanwhile."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.engine.protocol.specs import with_cache
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.server.first_spec import first_spec
from ovserve.server.settings import Settings, cache_path
from ovserve.server.source import Served, resolve
from ovserve.serving.loader import check_graph
from tests.conftest import ROOT, script_graph

SCRIPT = '{"replies": [{"text": "hello"}]}'
# Modules that take long to import, each with the step of the start that has to come before it.
AFTER_SPAWN = {"argparse", "asyncio", "msgspec", "google.protobuf", "ovserve.cli.commands", "ovserve.errors"}
AFTER_LOAD = {
    "aiohttp",
    "ovserve.calculators.shipped",
    "ovserve.llm.parsing",
    "ovserve.server.frontends",
    "ovserve.server.server",
    "ovserve.serving.loader",
}
NOT_BEFORE_READY = {"PIL", "grpc", "huggingface_hub", "jinja2", "numpy", "openvino", "opentelemetry", "rich"}

RECORD = """
import sys
from ovserve.engine.client import spawn
class Recorded(spawn.Child):
    def __init__(self, *arguments):
        print("spawn", *sys.modules)
        super().__init__(*arguments)
        record_load()
spawn.Child = Recorded
def record_load():
    from ovserve.engine.client.spare import Spare
    load = Spare.load
    async def loading(self, spec):
        print("load", *sys.modules)
        await load(self, spec)
    Spare.load = loading
import atexit
atexit.register(lambda: print("end", *sys.modules))
from ovserve.cli import main
main(sys.argv[1:])
"""


def served(**settings: str) -> Served:
    return resolve(Settings(**settings), {}, lambda text: pytest.fail(f"nothing to pull: {text}"))


def test_the_engine_is_spawned_and_loads_before_the_rest_is_imported(tmp_path: Path) -> None:
    """The modules of the whole start are those at the end of a server that is stopped when it is ready."""
    directory = script_graph(tmp_path / "m", SCRIPT)
    command = [sys.executable, "-c", RECORD, "serve", "--model_path", str(directory), "--rest_port", "0"]
    found: dict[str, set[str]] = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            step, _, modules = line.partition(" ")
            if step in ("spawn", "load", "end"):
                found[step] = set(modules.split())
            if "is ready at" in line:
                process.terminate()
    assert process.returncode == 0
    assert list(found) == ["spawn", "load", "end"]
    assert not AFTER_SPAWN & found["spawn"]
    assert not AFTER_LOAD & found["load"]
    assert not NOT_BEFORE_READY & found["end"]
    assert found["end"] >= AFTER_SPAWN | AFTER_LOAD, "the lists name modules that a server imports"


@pytest.mark.parametrize("name", ["smollm2", "single_node", "tools", "stateful", "prompt_lookup"])
def test_it_is_what_the_check_of_the_graph_finds(name: str) -> None:
    directory = ROOT / "graphs" / name
    graph, nodes = check_graph(directory, Registry(MODULES))
    graph.close()
    from ovserve.kinds.text.options import parse_llm_options

    (node,) = nodes.values()
    spec = parse_llm_options(node).spec
    # A file is converted first, which takes longer than to import the server.
    assert first_spec(served(model_path=str(directory))) == (None if spec.converts else spec)


def test_it_has_the_cache_of_compiled_models() -> None:
    """Else the first engine would be loaded twice."""
    there = served(model_path=str(ROOT / "graphs/stateful"), cache_dir="~/c")
    spec = first_spec(there, cache_path(Settings(cache_dir="~/c")))
    plain = first_spec(there)
    assert spec is not None
    assert plain is not None
    assert spec == with_cache(plain, str(Path("~/c").expanduser()))
    assert spec != plain


def test_it_is_unknown_for_several_graphs_and_for_other_kinds(tmp_path: Path) -> None:
    for name in ("a", "b"):
        script_graph(tmp_path / "graphs" / name, SCRIPT)
    assert first_spec(served(graphs_dir=str(tmp_path / "graphs"))) is None
    assert first_spec(served(model_path=str(ROOT / "graphs/python_node"))) is None


def test_a_wrong_graph_is_left_to_its_check(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = script_graph(tmp_path / "m", SCRIPT)
    file = directory / "graph.pbtxt"
    text = file.read_text()
    for wrong in (text + "node {", text.replace("model.script.json", "nothing.gguf")):
        file.write_text(wrong)
        assert first_spec(served(model_path=str(directory))) is None
        with pytest.raises(LoadError):
            check_graph(directory, Registry(MODULES))
    assert not caplog.records
    logging.getLogger("ovserve").warning("still logged")
    assert caplog.records
