"""The documents cannot lie: options, targets, links, paths, graphs and messages in *.md are compared with the
code they speak of. What a test cannot check (measurements, meaning) is for the reader.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyte
import pytest
from google.protobuf.descriptor import FieldDescriptor

from ovserve.calculators.shipped import MODULES
from ovserve.cli.commands import build_parser
from ovserve.engine.protocol.messages import FromEngine, ToEngine
from ovserve.errors import LoadError
from ovserve.graph import Calculator, Context, Input, Output, Registry, calculator
from ovserve.graph.config import parse_graph
from ovserve.graph.graph import Graph
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.parsing.registry import REASONING, TOOLS
from ovserve.llm.parsing.registry import Registry as Dialects
from ovserve.protos.calculator_pb2 import CalculatorGraphConfig
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.pull.packaged import MODELS
from ovserve.server.settings import OPTIONS, REFUSED, WITHOUT_EFFECT
from ovserve.serving.loader import check_graph
from scripts import nodes_docs, speed_chart, terminal_recording

ROOT = Path(__file__).parents[1]
DOCUMENTS = [path for part in ("*.md", "benchmarks/*.md", "docs/**/*.md") for path in sorted(ROOT.glob(part))]
TEXT = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}
README, GRAPHS = TEXT["README.md"], TEXT["docs/graphs.md"]
ARCHITECTURE, CONTRIBUTING = TEXT["docs/architecture.md"], TEXT["CONTRIBUTING.md"]
ALL = "\n".join(TEXT.values())

OTHER_TOOLS = ("benchmarks/measurements.md", "docs/clients.md")  # with flags of theirs

EXAMPLE = ROOT / "graphs/smollm2/graph.pbtxt"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOP = ("ovserve", "graphs", "examples", "docs", "tests", "proto")  # whose paths must exist


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(text) if found == language]


def prose(text: str) -> str:
    return FENCE.sub("", text)


def cells(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose header begins so, cut into cells."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(header))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def anchors(text: str) -> set[str]:
    """Those that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def flags_of_commands() -> set[str]:
    """Of all subcommands, as their own --help lists them."""

    def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
        for action in parser._actions:
            yield from action.option_strings
            for each in action.choices.values() if isinstance(action.choices, dict) else ():
                yield from flags(each)

    return set(flags(build_parser()))


# ---- options, targets, links, paths


def test_every_option_written_anywhere_exists() -> None:
    known = {f"--{name}" for name in (*(o.name for o in OPTIONS), *WITHOUT_EFFECT, *REFUSED)}
    known |= flags_of_commands()
    texts = [text for name, text in TEXT.items() if name not in OTHER_TOOLS]
    written = set(re.findall(r"(?<![\w-])--[a-z]+_[a-z0-9_]+", "\n".join(texts)))
    assert written <= known, written - known
    assert "--rest_port" in written


def test_make_targets_are_those_of_make_help() -> None:
    printed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^  make ([a-z-]+)", printed, re.MULTILINE))
    code = [body for text in TEXT.values() for _, body in FENCE.findall(text)]
    code += [m for text in TEXT.values() for m in re.findall(r"`([^`]*)`", prose(text))]
    written = set(re.findall(r"^make ([a-z][a-z-]*)", "\n".join(code), re.MULTILINE))
    assert written <= known, f"no such target: {written - known}"
    missing = {name for name in known if f"make {name}" not in CONTRIBUTING}
    assert not missing, f"CONTRIBUTING.md does not explain {missing}"


def test_relative_links_resolve() -> None:
    broken = []
    for name, text in TEXT.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
            if "://" in target:
                continue
            file, _, anchor = target.partition("#")
            path = (ROOT / name).parent / file if file else ROOT / name
            if not path.exists():
                broken.append(f"{name}: {target} leads nowhere")
            elif anchor and anchor not in anchors(path.read_text()):
                broken.append(f"{name}: {target} has no such heading")
    assert broken == []


def test_paths_in_backticks_exist() -> None:
    absent = []
    for name, text in TEXT.items():
        for path in re.findall(r"`((?:\w+/)[\w./-]*)`", prose(text)):
            first, _, rest = path.partition("/")
            if first in TOP and "NAME" not in path and not (ROOT / first / rest).exists():
                absent.append(f"{name} names {path}")
    assert absent == []


def test_the_path_test_sees_paths() -> None:
    assert "`ovserve/engine/worker/steps.py`" in ARCHITECTURE
    assert not (ROOT / "ovserve/no_such.py").exists()


def test_every_package_and_file_of_the_top_level_has_its_sentence() -> None:
    table = "\n".join(row[0] for row in cells(ARCHITECTURE, "| package |"))
    for path in (ROOT / "ovserve").iterdir():
        if path.name.startswith("__"):
            continue
        name = f"`ovserve/{path.name}{'/' if path.is_dir() else ''}`"
        assert name in table, f"docs/architecture.md says nothing of {name}"


# ---- graphs


def whole_graphs() -> list[Any]:
    found = []
    for name, text in TEXT.items():
        for i, block in enumerate(blocks(text, "pbtxt")):
            if re.search(r"^input_stream", block, re.MULTILINE) and re.search(r"^node", block, re.MULTILINE):
                found.append(pytest.param(block, id=f"{name}-{i}"))
    return found


@pytest.mark.parametrize("text", whole_graphs())
def test_whole_graphs_parse_and_shipped_calculators_are_wired_right(text: str) -> None:
    config = parse_graph(text, str(EXAMPLE))
    registry = Registry(MODULES)
    if all(node.calculator in registry for node in config.message.node):
        Graph(config, registry, {"llm": LlmResources})


def test_single_nodes_in_the_reference_parse() -> None:
    nodes = [b for b in blocks(GRAPHS, "pbtxt") if b.startswith("node")]
    assert nodes
    for text in nodes:
        assert len(parse_graph(text).message.node) == 1


def test_the_shipped_graph_is_shown_in_full() -> None:
    file = EXAMPLE.read_text()
    assert "# docs/graphs.md explains this file" in file
    assert blocks(GRAPHS.partition("## A first graph\n")[2], "pbtxt")[0] == file[file.index("input_stream") :]


def test_the_calculators_are_listed_as_their_classes_say() -> None:
    assert nodes_docs.FILE.read_text() == nodes_docs.text(), "stale: run make docs"
    assert nodes_docs.FILE.read_text().count("\n|[`") == len(Registry(MODULES).names)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("## Fields of the graph", CalculatorGraphConfig.DESCRIPTOR),
        ("## Fields of a node", CalculatorGraphConfig.Node.DESCRIPTOR),
    ],
)
def test_every_field_is_in_the_reference(header: str, message: Any) -> None:
    section = GRAPHS.partition(header + "\n")[2].partition("\n## ")[0]
    written = {n for row in cells(section, "| field |") for n in re.findall(r"`(\w+)`", row[0])}
    assert written == {f.name for f in message.fields}


SPELLINGS = [
    "node: { calculator: 'A', input_stream: ['a', \"b\"], }",
    "node < calculator: 'A'; input_stream: 'a'; input_stream: 'b'; >",
    "\ufeffnode { calculator: 'A' input_stream: 'a' input_stream: 'b' }",
    "node { calculator: '' 'A' input_stream: \"a\" input_stream: 'b' }",
    """node { calculator: 'A' input_stream: 'a' input_stream: 'b'
           node_options { [ any.domain.at_all / mediapipe.LLMCalculatorOptions ]: {} } }""",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_the_spellings_listed_load(text: str) -> None:
    (node,) = parse_graph(text).message.node
    assert (node.calculator, list(node.input_stream)) == ("A", ["a", "b"])


# ---- options of the engine


SAMPLES = {
    "models_path": '"."',
    "draft_models_path": '"."',
    "device": '"CPU"',
    "plugin_config": "'{}'",
    "engine": '"genai"',
    "tool_parser": '"hermes3"',
    "reasoning_parser": '"qwen3"',
    "chat_template_path": '"graph.pbtxt"',
}
REQUIRED = "{ start_size: 32 recent_size: 32 max_cache_size: 128 }"


def sample(field: FieldDescriptor) -> str:
    """A value of the field that is legal and is not what its absence means."""
    if field.type == field.TYPE_MESSAGE:
        adapter = '{ alias: "a" path: "a.safetensors" }'
        return {"cache_eviction_config": REQUIRED, "lora_adapters": adapter}.get(field.name, "{ }")
    if field.type == field.TYPE_BOOL:
        return "false" if field.default_value else "true"
    if field.type == field.TYPE_STRING:
        return SAMPLES.get(field.name) or '"other"'
    if field.type == field.TYPE_ENUM:
        return str(field.enum_type.values[0].name)
    return "8"


def load(tmp_path: Path, old: str = "", new: str = "") -> None:
    """Check the shipped graph with one change, from another directory."""
    text = EXAMPLE.read_text()
    assert old in text, f"{old!r} is not in the shipped graph"
    text = text.replace(old, new, 1)
    text = text.replace("../../models", (ROOT / "models").as_posix())
    (tmp_path / "graph.pbtxt").write_text(text)
    check_graph(tmp_path, Registry(MODULES))


def test_the_options_table_has_every_field_with_type_and_default() -> None:
    kinds = {v: k.removeprefix("TYPE_").lower() for k, v in vars(FieldDescriptor).items() if k[:5] == "TYPE_"}
    expected = []
    for f in LLMCalculatorOptions.DESCRIPTOR.fields:
        default: object = ""
        if f.has_default_value:
            default = f.default_value
            if f.type == f.TYPE_ENUM:
                default = f.enum_type.values_by_number[f.default_value].name
            elif f.type == f.TYPE_BOOL:
                default = str(default).lower()
        expected.append([f"`{f.name}`", kinds[f.type], str(default)])
    rows = [row[:3] for row in cells(GRAPHS, "| field | type |")]
    assert sorted(rows) == sorted(expected)


def test_the_options_table_says_what_is_rejected(
    tmp_path: Path, model: Path, subtests: pytest.Subtests
) -> None:
    said = {row[0].strip("`"): row[3] for row in cells(GRAPHS, "| field | type |")}
    shipped = '      models_path: "../../models/smollm2"\n'
    old = f"{shipped}      max_num_batched_tokens: 1024\n      enable_prefix_caching: true\n"
    old += "      generic_tool_prompt: true\n"
    for field in LLMCalculatorOptions.DESCRIPTOR.fields:
        line = f"      {field.name}: {sample(field)}\n"
        if field.name.startswith("draft_") and field.name != "draft_models_path":
            line += '      draft_models_path: "."\n'
        if field.name.startswith("prefix_cache_"):
            line += "      enable_prefix_caching: true\n"
            line += '      prefix_cache_path: "kept"\n' if field.name == "prefix_cache_size" else ""
        new = line if field.name == "models_path" else shipped + line
        rejected = said[field.name].startswith("rejected")
        with (
            subtests.test(field.name),
            pytest.raises(LoadError, match=field.name) if rejected else nullcontext(),
        ):
            load(tmp_path, old, new)


def test_the_reference_names_every_dialect() -> None:
    rows = {row[0]: re.findall(r"`(\w+)`", row[1]) for row in cells(GRAPHS, "| kind | names |")}
    shipped = Dialects((*TOOLS, *REASONING))
    assert rows == {"tool calls": shipped.tool_names, "reasoning": shipped.reasoning_names}


MODELS_PATH = '      models_path: "'
CHANGES = [  # those of docs/graphs.md
    ('input_stream: "DELTA:delta"', 'input_strem: "DELTA:delta"'),
    ('PARSED:parsed"\n  output_stream: "HTTP', 'PARSED:parsd"\n  output_stream: "HTTP'),
    ('PARSED:parsed"\n  output_stream: "HTTP', 'PARSED:delta"\n  output_stream: "HTTP'),
    (" back_edge: true", ""),
    (MODELS_PATH, '      draft_models_path: "draft"\n' + MODELS_PATH),
]
OTHER_CHANGES = [
    (
        '"OutputParserCalculator"',
        '"OutputParserCalculater"',
        "graph.pbtxt:49: node 'OutputParser': calculator: 'OutputParserCalculater' is not known (did you mean OutputParserCalculator?)",
    ),
    (
        MODELS_PATH,
        "      max_num_seq: 4\n" + MODELS_PATH,
        "graph.pbtxt:39: node 'LLMExecutor': max_num_seq: mediapipe.LLMCalculatorOptions has no such field; did you mean max_num_seqs? (at 39:7)",
    ),
    (
        'input_stream: "DELTA:delta"',
        'input_stream: "DELTAS:delta"',
        "graph.pbtxt:51: node 'OutputParser': input_stream: 'DELTAS:delta': OutputParserCalculator has no DELTAS (did you mean DELTA?); it has GENERATE, DELTA",
    ),
    (
        '  output_stream: "HTTP_RESPONSE_PAYLOAD:reply"\n}',
        "}",
        "graph.pbtxt:55: node 'ResponseWriter': output_stream: ResponseWriterCalculator needs HTTP_RESPONSE_PAYLOAD, which the node does not connect",
    ),
    (
        '"SyncSetInputStreamHandler"',
        '"DefaultInputStreamHandler"',
        "graph.pbtxt:31: node 'LLMExecutor': input_stream_handler: back edge 'LOOPBACK:loopback' shares a sync set, so the node would wait for itself; give it a set of its own with SyncSetInputStreamHandler",
    ),
    (
        MODELS_PATH,
        "      max_num_seqs: 0\n" + MODELS_PATH,
        "graph.pbtxt:39: node 'LLMExecutor': max_num_seqs: expected at least 1, got 0",
    ),
    (
        MODELS_PATH,
        "      plugin_config: '{bad}'\n" + MODELS_PATH,
        "graph.pbtxt:39: node 'LLMExecutor': plugin_config: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); got '{bad}'",
    ),
    (
        'name: "OutputParser"\n',
        'name: "OutputParser"\n  executor: "slow"\n',
        "graph.pbtxt:49: node 'OutputParser': executor: 'slow' is not declared; declared: none",
    ),
    (
        'LLM_NODE_RESOURCES:llm"\n  output_stream: "GEN',
        'LLM_NODE_RESOURCES:other"\n  output_stream: "GEN',
        "graph.pbtxt:18: node 'RequestParser': input_side_packet: no node with LLMCalculatorOptions fills side packet 'other'",
    ),
]


@pytest.fixture
def message(tmp_path: Path, model: Path) -> Any:
    def make(old: str, new: str) -> str:
        with pytest.raises(LoadError) as caught:
            load(tmp_path, old, new)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return make


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_quoted_load_errors_are_real(old: str, new: str, message: Any) -> None:
    assert message(old, new) in GRAPHS.split("\n")


@pytest.mark.parametrize(("old", "new", "expected"), OTHER_CHANGES)
def test_load_errors_name_the_field(old: str, new: str, expected: str, message: Any) -> None:
    assert message(old, new) == expected


def test_no_other_load_error_is_quoted(message: Any) -> None:
    made = {message(old, new) for old, new in CHANGES}
    quoted = {line for line in ALL.split("\n") if re.match(r"graph\.pbtxt:\d+: ", line)}
    assert quoted == made


def test_a_removed_option_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    load(tmp_path, MODELS_PATH, "      block_size: 16\n" + MODELS_PATH)
    lines = [r.getMessage() for r in caplog.records if r.name == "ovserve.serving.loader"]
    assert any("node 'LLMExecutor': block_size: removed in OVMS 2025.0 and ignored" in line for line in lines)


# ---- the rest of what can be compared


def test_every_frame_says_what_it_means() -> None:
    """docs/architecture.md leaves that to the file with the frames."""
    assert "`ovserve/engine/protocol/messages.py`" in ARCHITECTURE
    assert [t.__name__ for t in (*ToEngine.__args__, *FromEngine.__args__) if not t.__doc__] == []


def test_no_document_has_the_marks_of_a_merge() -> None:
    assert not re.findall(r"^(?:<{7}|>{7}) .*", ALL, re.MULTILINE)


def test_the_readme_is_short_and_its_chart_shows_the_table() -> None:
    assert len(README.splitlines()) <= 130
    assert speed_chart.PICTURE.read_text() == speed_chart.draw(
        speed_chart.read_charts(speed_chart.SOURCE.read_text())
    )


def test_a_recording_becomes_a_picture_that_moves_to_its_last_screen() -> None:
    screen = terminal_recording.Terminal(20, 2)
    stream, recording = pyte.Stream(screen), terminal_recording.Recording(20, 2)
    for second, text in ((0.0, "$ "), (1.0, "run <a>"), (2.0, "\r\n\x1b[2mdone\x1b[0m")):
        stream.feed(text)
        recording.add(second, screen)
    recording.seconds = 4.0
    root = ElementTree.fromstring(terminal_recording.draw(recording, "a & b", "caption"))
    texts = {node.text: node.attrib for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert texts.keys() == {"caption", "$", "run <a>", "done"}
    assert "class" not in texts["$"]
    assert texts["done"]["style"] == "fill:#8b949e"
    (style,) = (node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}style"))
    name = texts["run <a>"]["class"].split()[0]
    assert f"@keyframes {name}{{0%{{opacity:0}}25.00%,to{{opacity:1}}}}" in style
    recording.shorten([(0.0, 8.0)])
    assert recording.seconds == 2.0


def test_the_picture_of_run_is_light_and_alone() -> None:
    """GitHub shows it as an image, which may not fetch anything."""
    picture = terminal_recording.PICTURE.read_text()
    assert "docs/images/run.svg" in README
    assert len(picture) < 150_000
    assert "@keyframes" in picture
    assert set(re.findall(r"https?://[^\"']+", picture)) == {"http://www.w3.org/2000/svg"}
    ElementTree.fromstring(picture)


def test_the_default_model_is_as_described() -> None:
    model, licence = MODELS["smollm2"], README.partition("## Licence")[2]
    ((requirement, _),) = model.pieces
    package, _, version = requirement.partition("==")
    assert f"`{package}` {version}" in licence
    assert model.licence in licence
    assert f"({model.size / 1e6:.0f} MB)" in README


def test_numbers_of_the_defaults() -> None:
    (row,) = [r for r in cells(GRAPHS, "| field | meaning |") if r[0] == "`max_queue_size`"]
    assert f"; {CalculatorGraphConfig().max_queue_size} by default" in row[1]


@calculator("EvenCalculator")
class Even(Calculator):
    number = Input("IN", int)
    even = Output("OUT", int)

    async def process(self, cc: Context) -> None:
        number = cc[self.number]
        if number is not None and number % 2 == 0:
            cc.send(self.even, number)


@calculator("JoinCalculator")
class Join(Calculator):
    all = Input("ALL", int)
    even = Input("EVEN", int)
    pair = Output("OUT", str)

    async def process(self, cc: Context) -> None:
        cc.send(self.pair, f"{cc[self.all]} with {cc[self.even]}")


async def test_the_worked_example_of_the_scheduler() -> None:
    registry = Registry()
    registry.add(Even)
    registry.add(Join)
    section = TEXT["docs/calculators.md"].partition("## The scheduler\n")[2].partition("\n## ")[0]
    (text,) = blocks(section, "pbtxt")
    rows = cells(section, "| timestamp |")
    async with Graph.parse(text, registry).start() as run:
        for row in rows:
            await run.send("numbers", int(row[1]))
        run.close_inputs()
        pairs = [packet async for packet in run.output("pairs")]
    assert [(str(p.timestamp), f"`{p.value}`") for p in pairs] == [(row[0], row[3]) for row in rows]


def test_no_one_is_told_to_install_a_package_that_no_index_has() -> None:
    texts = [
        *ROOT.glob("docs/*.md"),
        ROOT / "README.md",
        *ROOT.glob("ovserve/**/*.py"),
        ROOT / "pyproject.toml",
    ]
    assert len(texts) > 300
    assert not [
        str(path) for path in texts if re.search(r"ovserve\[\w+\]'|install ovserve", path.read_text())
    ]
