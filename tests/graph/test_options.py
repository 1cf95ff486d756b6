"""Typed options: a msgspec struct filled from graph.pbtxt, checked at load with line, field and nearest name."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from google.protobuf.struct_pb2 import Struct

from ovserve.errors import LoadError
from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.graph.config import parse_graph
from ovserve.graph.testing import CalculatorRunner


class Window(msgspec.Struct, frozen=True):
    size: Annotated[int, msgspec.Meta(ge=1)] = 64


class GuardOptions(msgspec.Struct, frozen=True):
    words: tuple[str, ...]
    action: Literal["reject", "replace"] = "reject"
    threshold: float = 0.5
    window: Window = Window()
    windows: tuple[Window, ...] = (Window(1),)
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        if "" in self.words:
            raise ValueError("an empty word is in every text")


@calculator("GuardCalculator")
class Guard(Calculator):
    options_type = GuardOptions
    a = Input("A", object)
    b = Output("B", GuardOptions)

    def process(self, cc: Context) -> None:
        cc.send(self.b, cc.options(GuardOptions))


NODE = """input_stream: "A:a" output_stream: "B:b"
node_options {
  [type.googleapis.com/google.protobuf.Struct] {
    %s
  }
}"""


async def options(text: str) -> GuardOptions:
    out = await CalculatorRunner(Guard, NODE % text).run({"a": [1]})
    value = out["b"][0].value
    assert isinstance(value, GuardOptions)
    return value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('words: "a"', GuardOptions(("a",))),
        ('words: "a" words: "b c"', GuardOptions(("a", "b c"))),
        ("words: ['a', 'b'], threshold: 1", GuardOptions(("a", "b"), threshold=1.0)),
        ("words: []  # none", GuardOptions(())),
        ('words: "a" action: replace', GuardOptions(("a",), "replace")),
        (
            'words: "a" threshold: -1.5e0 window { size: 0x10 }',
            GuardOptions(("a",), threshold=-1.5, window=Window(16)),
        ),
        ('words: "a" windows { size: 3 } windows {}', GuardOptions(("a",), windows=(Window(3), Window()))),
        ('words: "a" windows: [ { size: 2 } ]', GuardOptions(("a",), windows=(Window(2),))),
        ('words: "a" windows: []', GuardOptions(("a",), windows=())),
        ('words: "a\\n" "b" labels { x: "1" }', GuardOptions(("a\nb",), labels={"x": "1"})),
        (
            'fields { key: "words" value { list_value { values { string_value: "a" } } } } '
            'fields { key: "window" value { struct_value { fields { key: "size" value { number_value: 9 } } } } }',
            GuardOptions(("a",), window=Window(9)),
        ),
    ],
)
async def test_the_struct_is_filled(text: str, expected: GuardOptions) -> None:
    assert await options(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('wrds: "a"', "graph.pbtxt:4: node 'GuardCalculator': wrds: GuardOptions has no such field; did you mean words?"),
        ("", "graph.pbtxt:3: node 'GuardCalculator': words: required by GuardOptions, but missing"),
        ('words: "a"\naction: rejct', "graph.pbtxt:5: node 'GuardCalculator': action: expected one of reject, replace, got 'rejct'; did you mean reject?"),
        ('words: "a"\n\nthreshold: "x"', "graph.pbtxt:6: node 'GuardCalculator': threshold: expected float, got 'x'"),
        ("words: 3", "graph.pbtxt:4: node 'GuardCalculator': words[0]: expected str, got 3"),
        ('words: "a" window { size: 0 }', "graph.pbtxt:4: node 'GuardCalculator': window.size: expected int >= 1, got 0"),
        ('words: "a" windows: [{},\n{ siz: 1 }]', "graph.pbtxt:5: node 'GuardCalculator': windows[1].siz: Window has no such field; did you mean size?"),
        ('words: ""', "graph.pbtxt:3: node 'GuardCalculator': node_options: an empty word is in every text"),
        ('words: "a" zzzz: 1', "graph.pbtxt:4: node 'GuardCalculator': zzzz: GuardOptions has no such field; it has words, action, threshold, window, windows, labels"),
        ('fields { key: "words" value { number_value: 3 } }', "graph.pbtxt:4: node 'GuardCalculator': words[0]: expected str, got 3"),
        ('words: "a" [a.b]: 1', "'[a.b]' is not a name of a field"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_load_error_at_its_line(text: str, says: str) -> None:
    with pytest.raises(LoadError) as error:
        CalculatorRunner(Guard, NODE % text)
    assert says in str(error.value)


def test_required_options_that_are_not_there_at_all() -> None:
    with pytest.raises(LoadError, match="words: required by GuardOptions, but missing"):
        CalculatorRunner(Guard, 'input_stream: "A:a" output_stream: "B:b"')


def test_options_of_another_type_are_rejected() -> None:
    text = NODE.replace("google.protobuf.Struct", "mediapipe.LLMCalculatorOptions") % "models_path: 'x'"
    with pytest.raises(LoadError, match=r"takes google.protobuf.Struct, got mediapipe.LLMCalculatorOptions"):
        CalculatorRunner(Guard, text)


def test_plain_fields_fill_the_protobuf_message_too() -> None:
    """Two graphs that differ in options only must differ in the message, of which digests are made."""
    config = parse_graph("node { calculator: 'X' %s }" % (NODE % "a: 1 b: ['x', true] c { d: 0.5 }"))
    struct = config.options(0, Struct)
    assert struct is not None
    assert dict(struct) == {"a": 1, "b": ["x", True], "c": {"d": 0.5}}


def test_a_path_in_options_is_watched() -> None:
    config = parse_graph("node { calculator: 'X' %s }" % (NODE % "text_path: 'facts.txt'"))
    assert config.paths() == ["facts.txt"]


def test_a_struct_that_no_graph_can_fill_is_a_load_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impossible(msgspec.Struct):
        words: list[str] | tuple[str] = ()  # type: ignore[assignment]

    monkeypatch.setattr(Guard, "options_type", Impossible)
    with pytest.raises(
        LoadError, match="node_options: Impossible cannot be filled from a graph: Type unions"
    ):
        CalculatorRunner(Guard, NODE % "words: 'a'")
