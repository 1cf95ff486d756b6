"""The walls of the house: who may import whom, who alone imports what, how long a file may be.

The table is design section 7: a package may import those to its right, siblings in one row never each other.
"""

from __future__ import annotations

import ast
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ovserve"

ROWS = (
    {"__main__"},
    {"cli"},
    {"server"},
    {"fronts"},
    {
        "rest",
        "rpc",
        "pull",
        "tuning",
        "bench",
    },  # pull, tuning and bench do what their commands say, over serving's checks
    {"serving"},
    {"calculators"},
    {"templating", "media", "bodies"},  # processes for what clients send; frames are the engine's
    {"azure", "anthropic", "kserve"},  # above openai: they are made of its decoding, messages and sampling
    {"graph", "engine", "openai"},
    {"llm", "tracing"},
    {"protos", "settings", "ovms_flags", "access"},
    {"errors", "log", "metrics"},
)
LEVEL = {name: level for level, row in enumerate(ROWS) for name in row}

# Exceptions to the rows, each with its reason.
FORBIDDEN = {
    ("rest", "engine"): "fronts see servables, not engines",
    ("rest", "llm"): "fronts see payloads and bytes, not requests",
    ("rest", "graph"): "a front starts an Answer, it knows no runs",
    ("azure", "engine"): "a dialect is mapping, it knows no engine",
    ("anthropic", "engine"): "a dialect is mapping, it knows no engine",
    ("azure", "graph"): "a dialect is mapping, it knows no graph",
    ("anthropic", "graph"): "a dialect is mapping, it knows no graph",
    ("templating", "graph"): "it renders, it knows no graph",
    ("templating", "openai"): "it renders, it knows no dialect",
    ("media", "graph"): "it makes pixels, it knows no graph",
    ("media", "openai"): "it makes pixels, it knows no dialect",
    ("bodies", "graph"): "it decodes, it knows no graph",
    ("graph", "llm"): "the graph runtime knows nothing of LLMs",
    ("rpc", "engine"): "fronts see servables, not engines",
    ("rpc", "llm"): "fronts see payloads and bytes, not requests",
    ("rpc", "graph"): "a front starts an Answer, it knows no runs",
    ("kserve", "engine"): "a dialect is mapping, it knows no engine",
    ("kserve", "graph"): "a dialect is mapping, it knows no graph",
    ("rpc", "settings"): "settings are handed down as values",
    ("rest", "settings"): "settings are handed down as values",
    ("media", "settings"): "settings are handed down as values",
    ("serving", "settings"): "settings are handed down as values",
    ("calculators", "settings"): "settings are handed down as values",
    ("engine", "settings"): "settings are handed down as values",
}
ONLY_IMPORTER = {
    "openvino_genai": "ovserve/engine/backends/genai/",
    "openvino": "ovserve/engine/backends/genai/",
    "aiohttp": ("ovserve/http/", "ovserve/sandbox/images/fetch.py"),
    "grpc": "ovserve/grpc_api/",
    "grpc_health": "ovserve/grpc_api/",
    "grpc_reflection": "ovserve/grpc_api/",
    "prometheus_client": "ovserve/monitoring/scrape.py",
    "jinja2": "ovserve/llm/prompt/template.py",
    "opentelemetry": "ovserve/telemetry/tracing.py",
    "PIL": "ovserve/sandbox/images/picture.py",
    "pypdf": "ovserve/sandbox/images/document.py",
    "matplotlib": ("ovserve/tools/tuning/plot.py", "ovserve/tools/bench/plot.py"),
    "uvloop": "ovserve/cli/serve.py",
    "argparse": "ovserve/cli/",
    "huggingface_hub": "ovserve/pull/hub.py",
    "gguf": "ovserve/pull/reencode.py",
}
MAX_LINES = 400
MAX_MEDIAN = 120

FILES = sorted(p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_pb2.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module imported anywhere in the file, type-checking blocks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "ovserve":
                yield from (f"ovserve.{alias.name}" for alias in node.names)
            elif node.module:
                yield node.module


def place(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_point_down(path: Path) -> None:
    here = place(path)
    if here == "__init__":
        assert not list(imports(path)) or set(imports(path)) <= {"__future__"}
        return
    assert here in LEVEL, f"{here} is not in the table"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "ovserve" or len(parts) < 2 or parts[1] in (here, "__version__"):
            continue
        there = parts[1]
        assert LEVEL[here] < LEVEL[there], f"{relative(path)} imports {name}, which is not below it"
        assert (here, there) not in FORBIDDEN, f"{relative(path)} imports {name}: {FORBIDDEN[here, there]}"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_library_has_one_home(path: Path) -> None:
    for name in imports(path):
        home = ONLY_IMPORTER.get(name.split(".")[0])
        if home is not None:
            assert relative(path).startswith(home), f"{relative(path)} imports {name}; only {home} may"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_is_short_and_opens_with_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES, "the wall is in the wrong place"
    assert ast.get_docstring(ast.parse(text)), "a module opens with what it is and who calls it"


def test_the_median_file_is_short() -> None:
    lengths = sorted(p.read_text().count("\n") for p in FILES)
    assert lengths[len(lengths) // 2] <= MAX_MEDIAN


def test_the_scheduler_stays_under_300_lines() -> None:
    assert (PACKAGE / "graph/runtime/scheduler.py").read_text().count("\n") < 300


def test_the_server_process_never_imports_openvino() -> None:
    """Walk the imports from the command down, as the interpreter would."""
    seen: set[Path] = set()
    todo = sorted((PACKAGE / "cli").glob("*.py"))
    while todo:
        path = todo.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        for name in imports(path):
            assert name.split(".")[0] not in ("openvino", "openvino_genai"), (
                f"{relative(path)} imports {name}"
            )
            if name.startswith("ovserve"):
                base = ROOT.joinpath(*name.split("."))
                todo += [base.with_suffix(".py"), base / "__init__.py"]
    assert len(seen) > 30, "the walk went somewhere"
    assert PACKAGE / "engine/client/client.py" in seen


def test_every_option_has_help_and_a_reader() -> None:
    from ovserve.server.settings import OPTIONS

    source = "".join((PACKAGE / f"{name}.py").read_text() for name in ("server", "fronts", "settings"))
    for option in OPTIONS:
        assert option.metadata["help"], f"--{option.name} has no help"
        assert f"settings.{option.name}" in source, f"nobody reads --{option.name}"


def test_every_error_kind_has_a_status() -> None:
    from ovserve import errors
    from ovserve.grpc_api.errors import STATUSES
    from ovserve.http.errors import DIALECTS

    kinds = {
        v.kind for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.OvserveError)
    }
    for dialect in DIALECTS:
        assert kinds == set(dialect.rows), dialect.name
    assert kinds == set(STATUSES)


@pytest.mark.parametrize("path", sorted((ROOT / "graphs").rglob("graph.pbtxt")), ids=relative)
def test_shipped_graphs_load(path: Path, model: Path, vision_model: Path, tmp_path: Path) -> None:
    """From another directory, where models stand that no checkout has: a draft, and one that sees."""
    from ovserve.calculators import MODULES
    from ovserve.graph import Registry
    from ovserve.serving.loader import check_graph

    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)  # a calculators.py may lie beside it
    text = path.read_text().replace("../../models/smollm2-ir", str(tmp_path))
    text = text.replace("../../models/vision", str(vision_model))
    (tmp_path / "graph.pbtxt").write_text(text.replace("../../models", str(ROOT / "models")))
    _, engines = check_graph(tmp_path, Registry(MODULES))
    assert list(engines) == ["llm"]


def test_nothing_of_this_machine_is_in_the_repository() -> None:
    roots = [
        d for d in ROOT.iterdir() if d.name not in (".git", ".venv", "models") and not d.name.startswith(".")
    ]
    files = itertools.chain.from_iterable([d] if d.is_file() else d.rglob("*") for d in roots)
    for path in files:
        if path.is_file() and path.suffix in (
            ".py",
            ".md",
            ".toml",
            ".pbtxt",
            ".proto",
            ".yaml",
            ".json",
            "",
        ):
            text = path.read_text(errors="replace")
            assert str(ROOT) not in text, f"{path} holds an absolute path of this machine"
