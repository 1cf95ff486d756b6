"""Options that a `.proto` file beside the graph defines fill the struct of the message's name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

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
    directory: Path, text: str, proto: str = PROTO, name: str = "my.pkg.GuardOptions"
) -> GuardOptions:
    (directory / "options.proto").write_text(proto)
    file = directory / "graph.pbtxt"
    file.write_text(
        f'node {{\n calculator: "X"\n node_options {{\n [type.googleapis.com/{name}] {{\n {text} }} }} }}'
    )
    return struct_options(Node(load_graph(file), 0, "X", "X"), GuardOptions)


def test_the_message_fills_the_struct_with_its_own_defaults(tmp_path: Path) -> None:
    given = 'words: "x" words: "y" window { size: 4 } by_name { key: "k" value { size: 9 } } a: "b"'
    expected = GuardOptions(("x", "y"), "REPLACE", 7, Window(4), {"k": Window(9)}, "b")
    assert options(tmp_path, given) == expected


def test_proto3(tmp_path: Path) -> None:
    proto = 'syntax = "proto3"; message GuardOptions { repeated string words = 1; int32 limit = 2; }'
    assert options(tmp_path, 'words: ["x"] limit: 3', proto, "GuardOptions") == GuardOptions(("x",), limit=3)


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
