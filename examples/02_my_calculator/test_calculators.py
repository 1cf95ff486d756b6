"""The calculator by itself, without model, engine or server:

.venv/bin/python -m pytest examples/02_my_calculator
"""

from __future__ import annotations

from calculators import MaskDigits

from ovserve.graph.testing import CalculatorRunner
from ovserve.llm.output import Content, Parsed, Reasoning, ToolCallDelta
from ovserve.llm.request import TokenLogprob

NODE = 'input_stream: "PARSED:a" output_stream: "PARSED:b"'


async def masked(*parsed: Parsed) -> list[Parsed]:
    out = await CalculatorRunner(MaskDigits, NODE).run({"a": parsed})
    return [packet.value for packet in out["b"]]


def said(content: str) -> Parsed:
    return Parsed((Content(content),))


async def test_digits_are_masked_in_every_packet() -> None:
    first, second = await masked(said("Call 555-0"), said("199 now."))
    assert first.content + second.content == "Call ###-#### now."


async def test_nothing_hides_behind_a_call() -> None:
    call = ToolCallDelta(0, "id", "pay", '{"card": "4111", "cents": 250}')
    logprobs = [TokenLogprob("41", b"41", -0.5)]
    packet = Parsed((Content("My card is 4111."), Reasoning("So 4111."), call, Content("Paid 2.50.")))
    packet.logprobs = logprobs
    (out,) = await masked(packet)
    assert out.parts == (
        Content("My card is ####."),
        Reasoning("So ####."),
        ToolCallDelta(0, "id", "pay", '{"card": "1111", "cents": 111}'),
        Content("Paid #.##."),
    )
    assert out.logprobs == [TokenLogprob("##", b"##", -0.5)]


async def test_all_else_goes_through() -> None:
    admission, last = Parsed(prompt_tokens=37, max_tokens=40), Parsed((Content("done"),), 1, "stop")
    assert await masked(admission, last) == [admission, last]


async def test_the_packet_that_came_in_is_not_changed() -> None:
    given = said("1 2 3")
    await masked(given)
    assert given.content == "1 2 3"
