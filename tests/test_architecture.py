"""The layout: which package may import which, which library has one home, how long a file may be."""

from __future__ import annotations

import ast
import io
import itertools
import re
import shutil
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts.shape import tree  # parsed once for all tests

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ovserve"

# A package imports packages of rows below its own, never one of its row. `engine` has two sides in two
# processes, so its subpackages are placed one by one; of `kinds` the worker's side, and `kinds.spec`, which are
# the `spec.py` of the rooms, imported by both sides.
ROWS = (
    {"__main__"},
    {"cli"},
    {"deploy"},
    {"server"},
    {"http", "grpc_api", "console"},
    {"tools"},
    {"services", "pull"},
    {"serving"},
    {"calculators"},
    {"kinds"},
    {"engine.admission"},
    {"sandbox", "engine.client", "engine.worker"},
    {"kinds.worker"},
    {"kinds.spec"},
    {"engine.model", "engine.host"},
    {"engine.protocol"},
    {"api", "graph"},
    {"llm", "telemetry"},
    {"access", "protos"},
    {"errors", "log"},
    {"children", "installation", "scratch"},
)
LEVEL = {name: level for level, row in enumerate(ROWS) for name in row}
TRANSPORTS = ("http", "grpc_api")

# What the rows would allow and the layout forbids: (importer, imported) with the reason.
FORBIDDEN = {
    **{(t, "llm"): "a transport sees payloads and bytes, not generation requests" for t in TRANSPORTS},
    **{(t, "graph"): "a transport starts a response, it knows no graph runs" for t in TRANSPORTS},
    ("sandbox", "graph"): "a sandbox renders and decodes, it knows no graph",
}
WORKER_SIDE = ("engine.worker", "kinds.worker")
ENGINE_FREE = {"http", "grpc_api"}  # transports see servables, not engines
SETTINGS_READERS = {"cli", "server"}  # everything else gets values
ONLY_IMPORTER = {
    "openvino_genai": (
        "ovserve/kinds/text/worker/genai/",
        "ovserve/kinds/text/worker/paged/engine.py",
        "ovserve/kinds/encoders/worker/model.py",
        "ovserve/kinds/images/worker/",
        "ovserve/kinds/voice/worker/pipeline.py",
        "ovserve/kinds/speech/worker/",
    ),
    "av": ("ovserve/kinds/voice/worker/backend.py", "ovserve/sandbox/audio_decoder.py"),
    "espeakng_loader": "ovserve/kinds/voice/worker/pipeline.py",
    "openvino": (
        "ovserve/kinds/encoders/worker/",
        "ovserve/kinds/text/worker/genai/",
        "ovserve/kinds/text/worker/gguf/",
        "ovserve/kinds/text/worker/kernels/",
        "ovserve/kinds/images/worker/",
        "ovserve/kinds/text/worker/paged/",
        "ovserve/kinds/speech/worker/",
        "ovserve/kinds/tensors/worker/",
        "ovserve/kinds/voice/worker/",
    ),
    "nncf": "ovserve/kinds/text/worker/genai/convert.py",
    "tvm_ffi": "ovserve/kinds/text/worker/paged/grammars.py",
    "anyascii": "ovserve/kinds/voice/worker/normalize.py",
    "regex": "ovserve/llm/grammar/patterns.py",
    "wetext": "ovserve/kinds/voice/worker/normalize.py",
    "openvino_tokenizers": (
        "ovserve/kinds/text/worker/gguf/convert.py",
        "ovserve/kinds/speech/worker/convert.py",
    ),
    "tokenizers": "ovserve/kinds/encoders/worker/model.py",
    "mcp": "ovserve/calculators/library/mcp_connection.py",
    "mcp_types": "ovserve/calculators/library/mcp_connection.py",
    "httpx2": "ovserve/calculators/library/mcp_connection.py",
    "anyio": "ovserve/calculators/library/mcp_connection.py",
    "orjson": "ovserve/kinds/encoders/worker/embed.py",
    "aiohttp": (
        "ovserve/http/",
        "ovserve/console/",
        "ovserve/sandbox/images/fetch.py",
        "ovserve/deploy/ray/",
    ),
    "ray": "ovserve/deploy/ray/",
    "grpc": "ovserve/grpc_api/",
    "grpc_health": "ovserve/grpc_api/",
    "grpc_reflection": "ovserve/grpc_api/",
    "prometheus_client": "ovserve/services/monitoring/scrape.py",
    "jinja2": "ovserve/llm/template.py",
    "opentelemetry": "ovserve/telemetry/tracing.py",
    "PIL": ("ovserve/sandbox/images/documents.py", "ovserve/kinds/images/worker/pipelines.py"),
    "pypdf": "ovserve/sandbox/images/documents.py",
    "uvloop": "ovserve/cli/serve.py",
    "argparse": "ovserve/cli/",
    "huggingface_hub": "ovserve/pull/hub.py",
    "gguf": "ovserve/kinds/text/worker/gguf/weights.py",
    "rich": "ovserve/cli/",
    "prompt_toolkit": "ovserve/cli/chat/",
}
MAX_LINES = 500  # one matter, read in one sitting
# A source is a URL with the date on which it was read, or a path in the repository.
SOURCE = re.compile(r"\bSources?:\s*(?P<cited>.*?)(?:\n\s*\n|\Z)", re.DOTALL)
READ_URL = re.compile(
    r"\bread \d{4}-\d\d-\d\d\b.*https?://\S+|https?://\S+.*\bread \d{4}-\d\d-\d\d\b", re.DOTALL
)
PATH = re.compile(r"`?([\w.-]+(?:/[\w.-]+)+|[\w-]+\.(?:md|py|proto|json|pbtxt|toml))`?")

FILES = sorted(p for p in PACKAGE.rglob("*.py") if not p.name.endswith("_pb2.py"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module imported anywhere in the file, type-checking blocks included."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "ovserve":
                yield from (f"ovserve.{alias.name}" for alias in node.names)
            elif node.module:
                yield node.module


def unit(parts: tuple[str, ...]) -> str:
    """The package of a module, as the table names it: `http`, `engine.client`, `kinds.worker`."""
    if parts[0] == "kinds" and len(parts) > 2:
        return {"worker": "kinds.worker", "spec": "kinds.spec"}.get(parts[2], "kinds")
    return ".".join(parts[:2]) if parts[0] == "engine" and len(parts) > 1 else parts[0]


def place(path: Path) -> str:
    return unit(path.relative_to(PACKAGE).with_suffix("").parts)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_units(path: Path) -> Iterator[tuple[str, str]]:
    """The other packages of this project that a file imports, with the name it imports."""
    here = place(path)
    for name in imports(path):
        parts = tuple(name.split("."))
        if parts[0] == "ovserve" and len(parts) > 1 and parts[1] != "__version__":
            there = unit(parts[1:])
            if there != here:
                yield there, name


def test_an_engine_subpackage_is_imported_by_its_whole_name() -> None:
    """`from ovserve.engine import x` would hide from the table which subpackage is meant."""
    for path in FILES:
        for there, name in imported_units(path):
            assert there != "engine", f"{relative(path)} imports {name}"


def wrong_imports(path: Path) -> Iterator[str]:
    here = place(path)
    if here in ("__init__", "engine.__init__"):
        yield from (f"{name}: a package has no code" for name in imports(path) if name != "__future__")
        return
    if here not in LEVEL:
        yield f"{here} is not in the table"
        return
    for there, name in imported_units(path):
        if LEVEL[here] >= LEVEL[there]:
            yield f"{name}, which is not below it"
        if (here, there) in FORBIDDEN:
            yield f"{name}: {FORBIDDEN[here, there]}"
        if there in WORKER_SIDE and here not in WORKER_SIDE:
            yield f"{name}, which runs in another process"
        if here in ENGINE_FREE and there.startswith("engine."):
            yield f"{name}: a transport sees no engine"
        if name.startswith("ovserve.server.settings") and here not in SETTINGS_READERS:
            yield f"{name}: settings are handed down as values"


def test_imports_point_down() -> None:
    offenders = [f"{relative(path)} imports {why}" for path in FILES for why in wrong_imports(path)]
    assert not offenders, "\n".join(offenders)


def test_a_kind_imports_no_other_kind() -> None:
    """What two kinds need stands in `kinds/` itself, or below."""
    rooms = {path.name for path in (PACKAGE / "kinds").iterdir() if path.is_dir()}
    offenders = []
    for path in (PACKAGE / "kinds").rglob("*/*.py"):
        room = path.relative_to(PACKAGE / "kinds").parts[0]
        others = [
            n for n in imports(path) if n.startswith("ovserve.kinds.") and n.split(".")[2] in rooms - {room}
        ]
        offenders += [f"{relative(path)} imports {name}" for name in others]
    assert not offenders, "\n".join(offenders)


def test_no_package_imports_itself_in_a_circle() -> None:
    """The rows forbid circles; this counts them from the imports alone, so a wrong row cannot hide one."""
    edges = {(place(p), there) for p in FILES for there, _ in imported_units(p)}
    units = {unit for edge in edges for unit in edge}
    while leaves := {u for u in units if not any(a == u and b in units for a, b in edges)}:
        units -= leaves
    assert not units, f"circles among {sorted(units)}"


def test_a_library_has_one_home() -> None:
    offenders = []
    for path in FILES:
        for name in imports(path):
            home = ONLY_IMPORTER.get(name.split(".")[0])
            if home is not None and not relative(path).startswith(home):
                offenders.append(f"{relative(path)} imports {name}; only {home} may")
    assert not offenders, "\n".join(offenders)


def test_a_file_is_one_matter_and_opens_with_what_it_is() -> None:
    offenders = []
    for path in FILES:
        text = path.read_text()
        if (lines := text.count("\n")) > MAX_LINES:
            offenders.append(f"{relative(path)} has {lines} lines; split it along a seam")
        if not ast.get_docstring(tree(path)):
            offenders.append(f"{relative(path)} does not open with what it is")
    assert not offenders, "\n".join(offenders)


def test_a_package_says_what_is_in_it() -> None:
    offenders = []
    for path in FILES:
        if path.name == "__init__.py":
            first = (ast.get_docstring(tree(path)) or "").split("\n\n")[0]
            if not first.endswith((".", ":")) or len(first.split()) < 4 or first.startswith("PACKAGE"):
                offenders.append(f"{relative(path)}: {first!r}")
    assert not offenders, "\n".join(offenders)


def test_a_citation_is_a_url_with_a_date_or_a_path_that_exists() -> None:
    assert READ_URL.search("read 2026-11-22, https://example.org/page")
    assert not READ_URL.search("https://example.org/page")
    for path in FILES:
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for match in SOURCE.finditer(ast.get_docstring(node) or ""):
                cited = match["cited"]
                assert READ_URL.search(cited) or any((ROOT / p).exists() for p in PATH.findall(cited)), (
                    f"{relative(path)} cites {cited!r}"
                )


# Paths in sources of others, which the text before them names, and files of graphs' authors.
FOREIGN = {"docs/gguf.md", "python/ctranslate2/specs/model_spec.py", "models/README.md", "profile.py"}
OF_AUTHORS = {"helper.py", "helper/__init__.py"}
NAMED_FILE = re.compile(r"(?<![\w/.-])((?:[\w.-]+/)*[\w-]+\.(?:md|py|sh))(?![\w/])")
NAMED_FOLDER = re.compile(r"`((?:[\w-]+/)+)`|used in ([\w/]+/) alone")
TREES = ("ovserve", "scripts", "benchmarks", "tests", "docs", "examples", "graphs", "proto")


# Called by whoever gets the object: Python, a library, or an author's code.
CALLED_ELSEWHERE = {
    "LogSettings": "gRPC, by the service's description",
    "RepositoryModelLoad": "gRPC",
    "RepositoryModelUnload": "gRPC",
    "at_eof": "aiohttp's stream",
    "check_health": "Ray Serve",
    "find_class": "pickle.Unpickler",
    "ptr": "a field of OVMS's Python tensor",
    "record_routing_stats": "Ray Serve",
    "ref_obj": "a field of OVMS's Python tensor",
    "unread_data": "aiohttp's stream",
}


def test_what_is_defined_is_used() -> None:
    """A function or class that only tests name is dead code. Decorators that register find others, as does `cmd`."""
    folders = (PACKAGE, *(ROOT / name for name in ("benchmarks", "examples", "graphs", "scripts")))
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    words = Counter(itertools.chain.from_iterable(re.findall(r"\w+", path.read_text()) for path in sources))
    unused = {
        node.name
        for path in PACKAGE.rglob("*.py")
        if not path.name.endswith("_pb2.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and words[node.name] == 1
        and not re.match(r"do_|__\w+__$", node.name)
        and not any(isinstance(decorator, ast.Call) for decorator in node.decorator_list)
    }
    assert unused == set(CALLED_ELSEWHERE)


def test_a_path_that_is_named_exists() -> None:
    """In comments and docstrings, and in pyproject.toml. A path may begin at any folder."""
    places = [*ROOT.glob("*"), *(path for tree in TREES for path in (ROOT / tree).rglob("*"))]
    parts = [path.relative_to(ROOT).parts for path in places]
    ends = {"/".join(one[i:]) for one in parts for i in range(len(one))} | FOREIGN | OF_AUTHORS
    offenders = []
    sources = [path for tree in TREES[:3] for path in sorted((ROOT / tree).rglob("*.py"))]
    for path in (*sources, ROOT / "pyproject.toml"):
        text = path.read_text()
        if path.suffix == ".py" and (NAMED_FILE.search(text) or NAMED_FOLDER.search(text)):
            text = "\n".join(texts(path))
        named = {*NAMED_FILE.findall(text), *("".join(pair) for pair in NAMED_FOLDER.findall(text))}
        offenders += [f"{relative(path)} names {one}" for one in sorted(named) if one.rstrip("/") not in ends]
    assert not offenders, "\n".join(offenders)


def texts(path: Path) -> Iterator[str]:
    """The comments and docstrings of a module."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_the_loop_of_the_engine_process_is_read_at_a_glance() -> None:
    body = tree(PACKAGE / "engine/worker/steps.py").body
    [run] = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    assert run.end_lineno is not None
    assert run.end_lineno - run.lineno + 1 <= 20


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

    source = "".join(p.read_text() for p in (PACKAGE / "server").glob("*.py"))
    for option in OPTIONS:
        assert option.metadata["help"], f"--{option.name} has no help"
        assert f"settings.{option.name}" in source, f"nobody reads --{option.name}"


def test_every_error_kind_has_a_status() -> None:
    from ovserve import errors
    from ovserve.grpc_api.errors import STATUSES
    from ovserve.http.errors import API_STYLES

    kinds = {
        v.kind for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.OvserveError)
    }
    for style in API_STYLES:
        assert kinds == set(style.rows), style.name
    assert kinds == set(STATUSES)


@pytest.mark.parametrize("path", sorted((ROOT / "graphs").rglob("graph.pbtxt")), ids=relative)
def test_shipped_graphs_load(
    path: Path, model: Path, vision_model: Path, image_model: Path, tmp_path: Path
) -> None:
    """From another directory, where models stand that no checkout has: a draft, and one that sees."""
    from ovserve.calculators.shipped import MODULES
    from ovserve.graph import Registry
    from ovserve.serving.loader import check_graph

    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)  # a calculators.py may lie beside it
    text = path.read_text().replace("../../models/smollm2-ir", str(tmp_path))
    text = text.replace("../../models/vision", str(vision_model))
    text = text.replace("../../models/image", str(image_model))
    large = "../../models/qwen2.5-coder-1.5b/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"  # 1.1 GB
    text = text.replace(large, "../../models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    # Their files are read when the graph is loaded, not their weights.
    for encoder in ("minilm", "qwen2.5-coder-0.5b", "kokoro", "whisper-base"):
        if not (ROOT / "models" / encoder).is_dir():
            text = text.replace(f"../../models/{encoder}", str(tmp_path))
    (tmp_path / "graph.pbtxt").write_text(text.replace("../../models", str(ROOT / "models")))
    _, engines = check_graph(tmp_path, Registry(MODULES))
    # A graph over plain models has no engine of its own.
    own = set() if "OpenVINOInferenceCalculator" in text else {"llm"}
    own = {"py"} if "PythonExecutorCalculator" in text else own
    alone = ("embeddings_servable", "rerank_servable", "pipes", "t2s_servable", "s2t_servable")
    several = ({"llm", "llm_large"}, {"llm", *alone[-2:]}, {"llm", *alone[-2:], "vad"})
    assert set(engines) in (own, *several, *({name} for name in alone))


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


CLOCKS = {"monotonic", "perf_counter", "time", "process_time", "thread_time"}
HANG = 20  # seconds: more than a busy machine takes for what takes less than one
TIMED = {
    "tests/engine/test_grammar_cost.py": "CPU time, ten times what was measured",
    "tests/llm/test_grammar_budget.py": "CPU time, ten times what was measured, the best of five",
}


def short_bounds(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Assert]:
    """The asserts that a difference of clock readings, or what is made of one, is below less than HANG."""
    derived: set[str] = set()

    def timed(node: ast.AST) -> bool:
        return any(
            (isinstance(part, ast.Name) and part.id in derived)
            or (
                isinstance(part, ast.BinOp)
                and isinstance(part.op, ast.Sub)
                and any(isinstance(n, ast.Attribute) and n.attr in CLOCKS for n in ast.walk(part))
            )
            for part in ast.walk(node)
        )

    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and timed(node.value):
            names = itertools.chain.from_iterable(map(ast.walk, node.targets))
            derived |= {name.id for name in names if isinstance(name, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and timed(node.test.left):
            bound = node.test.comparators[0]
            enough = isinstance(bound, ast.Constant) and isinstance(bound.value, int | float)
            if isinstance(node.test.ops[0], ast.Lt | ast.LtE) and not (enough and bound.value >= HANG):
                yield node


def test_no_test_fails_because_a_machine_is_slow() -> None:
    """Assert what was done, in which order, or how often; not how long it took."""
    source = "def f():\n    b = time.monotonic()\n    t = time.monotonic() - b\n    assert t < 3\n    assert t > 3\n    assert t < 60"
    (example,) = ast.parse(source).body
    assert isinstance(example, ast.FunctionDef)
    assert [node.lineno for node in short_bounds(example)] == [4]
    found = set()
    reads_clock = re.compile(rf"\.({'|'.join(CLOCKS)})\b")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(tree(path)) if reads_clock.search(path.read_text()) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(short_bounds(node)):
                found.add(relative(path))
    assert found == set(TIMED)
