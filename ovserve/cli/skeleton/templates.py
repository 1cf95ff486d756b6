"""The text of a new calculator, of its test, and of its node in a graph."""

from __future__ import annotations

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
