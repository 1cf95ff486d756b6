"""`ovserve new calculator NAME` and `ovserve new graph NAME --model PATH`: a skeleton that works."""

from __future__ import annotations

import argparse
import keyword
import os
import re
from collections.abc import Callable
from pathlib import Path

from ovserve.cli.local import names_in, repository
from ovserve.cli.parser import Commands, Parser
from ovserve.errors import InvalidArgument, LoadError
from ovserve.graph.registry import CALCULATORS_FILE
from ovserve.installation import command
from ovserve.pull.graph_file import check_file
from ovserve.pull.graph_text import graph_text
from ovserve.serving.settings import GRAPH_FILE

# Write a new calculator with a test, or a new graph with such a calculator. Nothing is overwritten.


CALCULATOR = '''\
"""{calculator}: replaces a word in what the model writes."""

from __future__ import annotations

import re

import msgspec

from ovserve.calculators.library import Context, LoadContext, TextMap, calculator


class {name}Options(msgspec.Struct, frozen=True):
    """The options of the node in graph.pbtxt; a default makes one optional."""

    word: str
    replacement: str = "***"


@calculator("{calculator}")
class {name}(TextMap):
    """One is built for each request. What `load` returns when the graph is loaded is `cc.state` in all."""

    options_type = {name}Options
    window = 64  # characters held back: no match is longer

    @classmethod
    def load(cls, lc: LoadContext) -> re.Pattern[str]:
        return re.compile(rf"\\b{{re.escape(lc.options({name}Options).word)}}\\b", re.IGNORECASE)

    def open(self, cc: Context) -> None:
        self.pattern = cc.state
        self.replacement = cc.options({name}Options).replacement

    def replace(self, match: str) -> str:
        return self.replacement
'''

TEST = '''\
"""{calculator} by itself, without a model. Run it with `python -m pytest`."""

from __future__ import annotations

import asyncio

import pytest
from {module} import {name}

from ovserve.calculators.library import Content, LoadError, Parsed
from ovserve.graph.testing import CalculatorRunner

NODE = """
input_stream: "PARSED:parsed"
output_stream: "PARSED:changed"
node_options {{ [type.googleapis.com/google.protobuf.Struct] {{ {options} }} }}
"""


def test_a_word_is_replaced_also_across_packets() -> None:
    runner = CalculatorRunner({name}, NODE)
    given = [Parsed((Content("A se"),)), Parsed((Content("cret."),), finish_reason="stop", last=True)]
    out = asyncio.run(runner.run({{"parsed": given}}))
    assert "".join(packet.value.content for packet in out["changed"]) == "A ***."
    assert runner.events.values == {{("{calculator}", "matched"): 1}}


def test_a_misspelt_option_is_a_load_error() -> None:
    with pytest.raises(LoadError, match="did you mean word?"):
        CalculatorRunner({name}, NODE.replace("word:", "wrod:"))
'''

OPTIONS = 'word: "secret"'

NODE = """\
node {{
  name: "{name}"
  calculator: "{calculator}"
  input_stream: "PARSED:parsed"
  output_stream: "PARSED:changed"
  node_options {{
    [type.googleapis.com/google.protobuf.Struct] {{
      {options}
    }}
  }}
}}
"""


SUFFIX = "Calculator"
Say = Callable[[str], None]


def class_name(text: str) -> str:
    """Return the class for a name such as `mask-names` or `MaskNamesCalculator`. Raises InvalidArgument."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", text) if word]
    name = "".join(word[:1].upper() + word[1:] for word in words).removesuffix(SUFFIX)
    if not name.isidentifier() or keyword.iskeyword(name) or not text.isascii():
        raise InvalidArgument(f"NAME: {text!r} does not make the name of a class; write it as MaskNames")
    return name


def new_calculator(text: str, directory: Path, say: Say) -> None:
    """Write `calculators.py`, or a module that an existing one imports, and a test next to it."""
    name = class_name(text)
    directory.mkdir(parents=True, exist_ok=True)
    module = _write_class(name, directory, say)
    say(f"test it: python -m pytest {directory / f'test_{module}.py'}")
    say(f"its node, between OutputParser and ResponseWriter of {GRAPH_FILE}:\n\n{_node(name)}")


def new_graph(text: str, model: str, directory: Path, say: Say) -> None:
    """Write a directory with a graph over `model` and a calculator in it. Raises LoadError if it would not be
    served, and leaves nothing then."""
    if directory.exists() and any(directory.iterdir()):
        raise InvalidArgument(f"{directory} exists and is not empty; nothing was written")
    name = class_name(Path(text).name)
    path = _relative(model, directory)
    heading = (
        f"{name}, from {CALCULATORS_FILE} in this directory, stands between OutputParser and ResponseWriter."
    )
    graph = graph_text({"generic_tool_prompt": True}, path, heading=heading, explicit=True)
    writer = graph.rindex("node {")
    graph = f"{graph[:writer]}{_node(name)}\n{graph[writer:].replace('PARSED:parsed', 'PARSED:changed')}"
    existed = directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        (directory / GRAPH_FILE).write_text(graph)
        module = _write_class(name, directory, lambda _: None)
        check_file(directory, GRAPH_FILE).graph.close()
    except BaseException:
        for file in directory.iterdir():
            file.unlink()
        if not existed:
            directory.rmdir()
        raise
    for file in sorted(directory.iterdir()):
        say(f"{file} is written")
    say(f"look at it: {command()} explain {directory}")
    say(f"test it: python -m pytest {directory / f'test_{module}.py'}")
    say(
        f"serve it: {command()} serve --rest_port 8000 --model_name {directory.name} --model_path {directory}"
    )


def _write_class(name: str, directory: Path, say: Say) -> str:
    """Write the class and its test; return the module."""
    calculator = f"{name}{SUFFIX}"
    main = directory / CALCULATORS_FILE
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if main.exists() else main.stem
    if main.exists() and f'"{calculator}"' in main.read_text():
        raise InvalidArgument(f"{main} has a {calculator} already; nothing was written")
    file, test = directory / f"{module}.py", directory / f"test_{module}.py"
    for each in (file, test):
        if each.exists():
            raise InvalidArgument(f"{each} exists; nothing was written")
    file.write_text(CALCULATOR.format(name=name, calculator=calculator))
    test.write_text(TEST.format(name=name, calculator=calculator, module=module, options=OPTIONS))
    if file != main:
        text = main.read_text()
        main.write_text(f"{text.rstrip()}\n\nfrom {module} import {name} as {name}  # noqa: E402\n")
        say(f"{main} imports it")
    say(f"{file} and {test} are written")
    return module


def _node(name: str) -> str:
    return NODE.format(name=name, calculator=f"{name}{SUFFIX}", options=OPTIONS)


def _relative(model: str, directory: Path) -> str:
    """Return the model's path as the graph has it. Raises LoadError if it does not exist."""
    path = Path(model).absolute()
    if not path.exists():
        raise LoadError(f"{model} does not exist; `ovserve pull` fetches one", field="--model")
    return os.path.relpath(path, directory.absolute())


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "new",
        help="write a calculator or a graph to begin with",
        description="Writes a calculator with options and a test, or a graph with such a calculator. "
        "Existing files are not overwritten.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, parser_class=Parser)
    calculator = kinds.add_parser(
        "calculator", help="calculators.py and a test, or one more module beside them"
    )
    calculator.add_argument("name", metavar="NAME", help="such as MaskNames")
    calculator.add_argument(
        "--directory", type=Path, default=Path(), metavar="PATH", help="that of the graph (default: this one)"
    )
    calculator.set_defaults(run=_calculator)
    graph = kinds.add_parser("graph", help="a directory with a graph, a calculator and a test")
    graph.add_argument("name", metavar="NAME", help="directory to write; its last part is the model's name")
    graph.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a pulled model, a .gguf file or a directory with a model",
    )
    graph.set_defaults(run=_graph)


def _calculator(arguments: argparse.Namespace) -> int:
    new_calculator(arguments.name, arguments.directory, _say)
    return 0


def _graph(arguments: argparse.Namespace) -> int:
    model = arguments.model
    place = repository()
    if not Path(model).exists() and model in names_in(place):
        model = str(place / model)
    new_graph(arguments.name, model, Path(arguments.name), _say)
    return 0


def _say(text: str) -> None:
    print(text)  # noqa: T201
