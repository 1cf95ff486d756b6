"""The calculator by itself, without model, engine or server:

.venv/bin/python -m pytest examples/02_my_calculator
"""

from __future__ import annotations

from calculators import MaskDigits

from ovserve.graph.testing import CalculatorRunner
from ovserve.llm.output import Parsed

NODE = 'input_stream: "PARSED:a" output_stream: "PARSED:b"'


async def masked(*parsed: Parsed) -> list[Parsed]:
    out = await CalculatorRunner(MaskDigits, NODE).run({"a": parsed})
    return [packet.value for packet in out["b"]]


async def test_digits_are_masked_in_every_packet() -> None:
    first, second = await masked(Parsed("Call 555-0"), Parsed("199 now."))
    assert first.content + second.content == "Call ###-#### now."


async def test_all_else_goes_through() -> None:
    admission, last = Parsed(prompt_tokens=37, max_tokens=40), Parsed("done", 1, "stop")
    assert await masked(admission, last) == [admission, last]


async def test_the_packet_that_came_in_is_not_changed() -> None:
    given = Parsed("1 2 3")
    await masked(given)
    assert given.content == "1 2 3"
