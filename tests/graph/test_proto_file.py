"""Options that a `.proto` file beside the graph defines fill the struct of the message's name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from ovserve.errors import LoadError
from ovserve.graph.config import load_graph
from ovserve.graph.node import Node
from ovserve.graph.options import struct_options

PROTO = """
// Options of a guard.
syntax = "proto2";
package my.pkg;
import "mediapipe/framework/calculator.proto";
option java_package = "my.pkg";

/* The message
   of the node. */
message GuardOptions {
  extend mediapipe.CalculatorOptions { optional GuardOptions ext = 12345; }
  enum Action { REJECT = 0; REPLACE = 1 [deprecated = true]; }
  message Window { optional uint64 size = 1; }
  repeated string words = 1;
  optional Action action = 2 [default = REPLACE];
  optional int32 limit = 3 [default = 0x7, deprecated = true];
  optional Window window = 4;
  map<string, Window> by_name = 5;
  oneof either { string a = 6; double b = 7; }
  reserved 8, 9 to 11;
}
"""


class Window(msgspec.Struct, frozen=True):
    size: int = 0


class GuardOptions(msgspec.Struct, frozen=True):
    words: tuple[str, ...] = ()
    action: Literal["REJECT", "REPLACE"] = "REJECT"
    limit: int = 1
    window: Window | None = None
    by_name: dict[str, Window] = {}
    a: str = ""


def options(
    directory: Path,
    text: str,
    proto: str = PROTO,
    name: str = "my.pkg.GuardOptions",
    type_: type[Any] = GuardOptions,
) -> Any:
    (directory / "options.proto").write_text(proto)
    file = directory / "graph.pbtxt"
    file.write_text(
        f'node {{\n calculator: "X"\n node_options {{\n [type.googleapis.com/{name}] {{\n {text} }} }} }}'
    )
    return struct_options(Node(load_graph(file), 0, "X", "X"), type_)


def test_the_message_fills_the_struct_with_its_own_defaults(tmp_path: Path) -> None:
    given = 'words: "x" words: "y" window { size: 4 } by_name { key: "k" value { size: 9 } } a: "b"'
    expected = GuardOptions(("x", "y"), "REPLACE", 7, Window(4), {"k": Window(9)}, "b")
    assert options(tmp_path, given) == expected


def test_proto3(tmp_path: Path) -> None:
    proto = 'syntax = "proto3"; message GuardOptions { repeated string words = 1; int32 limit = 2; }'
    assert options(tmp_path, 'words: ["x"] limit: 3', proto, "GuardOptions") == GuardOptions(("x",), limit=3)


@pytest.mark.parametrize(
    ("text", "expected"), [("e: 1 es: B", ["B", "B"]), ("e: 99 es: [0, -7]", [99, "A", -7])]
)
def test_an_open_enum_takes_numbers_without_a_name(
    tmp_path: Path, text: str, expected: list[int | str]
) -> None:
    class Open(msgspec.Struct):
        e: int | str
        es: list[int | str]

    proto = 'syntax = "proto3"; message Open { enum E { A = 0; B = 1; } E e = 1; repeated E es = 2; }'
    read = options(tmp_path, text, proto, "Open", Open)
    assert [read.e, *read.es] == expected


TYPED = """
message TypedOptions {
  enum E { A = 0; B = 1; C = -5; }
  message W { optional uint64 size = 1 [default = 8]; repeated string names = 2; optional bool on = 3; }
  optional E e = 1;
  repeated E es = 2;
  optional bool flag = 3;
  optional float f = 4;
  optional double d = 5;
  optional bytes raw = 6;
  optional W w = 7;
  repeated W ws = 8;
  map<string, W> by = 9;
  map<bool, E> named = 10;
}
"""


class W(msgspec.Struct, frozen=True):
    size: int = 0
    names: tuple[str, ...] = ()
    on: bool = False


class TypedOptions(msgspec.Struct, frozen=True):
    e: Literal["A", "B", "C"] = "A"
    es: tuple[Literal["A", "B", "C"], ...] = ()
    flag: bool = False
    f: float = 0.0
    d: float = 0.0
    raw: bytes = b""
    w: W | None = None
    ws: tuple[W, ...] = ()
    by: dict[str, W] = {}
    named: dict[bool, str] = {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e: 1", TypedOptions(e="B")),
        ("e: -5; es: [0, B], es: C", TypedOptions("C", ("A", "B", "C"))),
        ("flag: 1", TypedOptions(flag=True)),
        ("f: -inf d: -Infinity", TypedOptions(f=-math.inf, d=-math.inf)),
        ("f: 0.1f d: 5.", TypedOptions(f=0.1, d=5.0)),
        (r'raw: "\377" "\000a"', TypedOptions(raw=b"\xff\x00a")),
        ("w { on: 1 } ws < names: 'x' >", TypedOptions(w=W(8, on=True), ws=(W(8, ("x",)),))),
        ('by { key: "k" } by { value { size: 0 } }', TypedOptions(by={"k": W(8), "": W(0)})),
        ("named { key: 1 value: 1 }", TypedOptions(named={True: "B"})),
    ],
)
def test_values_are_what_protobuf_reads(tmp_path: Path, text: str, expected: TypedOptions) -> None:
    assert options(tmp_path, text, TYPED, "TypedOptions", TypedOptions) == expected


@pytest.mark.parametrize("text", ["-inf", "[-inf]", "1.5F", "1_000", "12px"])
def test_numbers_of_a_struct(tmp_path: Path, text: str) -> None:
    class Any_(msgspec.Struct):
        limit: float | list[float] | str

    value = {"-inf": -math.inf, "[-inf]": [-math.inf], "1.5F": 1.5}.get(text, text)
    for body in (f"limit: {text}", f'fields {{ key: "limit" value {{ number_value: {text} }} }}'):
        if body.startswith("limit") or value == -math.inf:
            assert options(tmp_path, body, "", "google.protobuf.Struct", Any_).limit == value


def test_options_as_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "options.proto").write_text(TYPED)
    node = (
        'node { calculator: "X" node_options { type_url: "a.b/TypedOptions" value: "\\x08\\x01\\x18\\x01" } }'
    )
    (tmp_path / "graph.pbtxt").write_text(node)
    graph = Node(load_graph(tmp_path / "graph.pbtxt"), 0, "X", "X")
    assert struct_options(graph, TypedOptions) == TypedOptions(e="B", flag=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('words: "x"\nwrds: 3', "graph.pbtxt:6: node 'X': wrds: my.pkg.GuardOptions has no such field; did you mean words?"),
        ("action: REJCT", "graph.pbtxt:5: node 'X': action: Action has no value REJCT; did you mean REJECT?"),
        ('limit: "a"', "graph.pbtxt:5: node 'X': limit: Couldn't parse integer"),
        ("b: 0.5", "graph.pbtxt:5: node 'X': b: GuardOptions has no such field; it has words"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_graph_is_at_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(LoadError) as error:
        options(tmp_path, text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("proto", "says"),
    [
        ("message A {\n optional string x 1; }", "options.proto:2: expected '=', got '1'"),
        (
            "message A { optional string x = y; }",
            "options.proto:1: expected the number of the field x, got 'y'",
        ),
        ("service S {}", "options.proto:1: 'service' is not supported; a message, enum or import is"),
        ("message A { optional B x = 1; }", "options.proto: not a valid .proto file: "),
        ("message A {", "options.proto:1: the file ends too early; is a closing brace missing?"),
        ('import "other.proto";', "options.proto:1: import 'other.proto': only google/protobuf/any.proto"),
        ("message A {\n\n @ }", "options.proto:3: '@' is not expected here"),
        ("message A { optional string x = 1; optional string x = 2; }", "duplicate field name (x)"),
        ("enum E { A = b; }", "options.proto:1: expected the number of A, got 'b'"),
        ("message A {" * 100, "options.proto:1: messages nested deeper than 32"),
    ],
)
def test_a_file_that_is_none_is_a_load_error(tmp_path: Path, proto: str, says: str) -> None:
    with pytest.raises(LoadError) as error:
        options(tmp_path, "", proto)
    assert says in str(error.value)


def test_an_unknown_message_is_told_with_those_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        LoadError, match=r"unknown option type my.pkg.GuardOption; did you mean my.pkg.GuardOptions\?"
    ):
        options(tmp_path, "", PROTO, "my.pkg.GuardOption")


def test_a_message_of_another_package_is_missed_and_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"unknown option type your.Limits: no .proto file next to the graph"):
        options(tmp_path, "", PROTO, "your.Limits")


def test_two_graphs_may_define_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    other = 'syntax = "proto3"; package my.pkg; message GuardOptions { int32 limit = 1; }'
    assert options(tmp_path / "one", "limit: 3").action == "REPLACE"
    assert options(tmp_path / "two", "limit: 3", other).action == "REJECT"
