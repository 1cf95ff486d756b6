"""No body holds the event loop: `/v2/health/live` is asked while generated worst cases are worked off.

What is judged is the CPU time of the server's main thread within one such question, as `make hostile` prints it:
other work on the machine lengthens the wait, but not this.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.hostile import Seen, attack, post, victim
from benchmarks.hostile_bodies import BODIES, CHAT, INFER, MESSAGES, RESPONSES, TOKENIZE, Hostile
from ovserve.http.body import SEARCH_BYTES, has_surrogates
from tests.breadth import examples
from tests.conftest import Server

pytestmark = pytest.mark.long

# ms of the event loop. `make hostile` holds 100 on a quiet machine; a processor without AVX-512, next to another test
# process, took 146. The faults that this finds took 200 to 30,000.
HELD = 200.0
MEMORY = 800.0  # MB of the server
TRIES = 3  # CPU time varies too, with what runs on the other half of a core

PIECES = (
    b'""', b"{}", b"[]", b"1", b"-0.5e-7", b"12345678901234567890123", b"null", b'"\\u00e4"', b'"\\n\\""', b'"\\\\"',
    "\"\u20ac\U0001f600\"".encode(), b'{"a":1}', b"[[[[]]]]", b'"data:image/png;base64,"', b'{"data":""}', b'",[{"',
    b'{"role":"user","content":"x"}', b'{"role":"tool","content":"x","tool_call_id":"c"}', b'{"type":"text","text":"x"}',
    b'{"type":"function","function":{"name":"f"}}', b'{"type":"message","role":"user","content":"x"}',
)  # fmt: skip
ONE = b'"messages":[{"role":"user","content":"x"}]'
PLACES: tuple[tuple[str, bytes, bytes], ...] = (
    (CHAT, b'"messages":', b""),
    (CHAT, b'"messages":[{"role":"user","content":', b"}]"),
    (CHAT, b'"messages":[{"role":"assistant","tool_calls":', b"}]"),
    (CHAT, ONE + b',"tools":', b""),
    (CHAT, ONE + b',"tools":[{"type":"function","function":{"name":"f","parameters":', b"}}]"),
    (CHAT, ONE + b',"chat_template_kwargs":{"a":', b"}"),
    (CHAT, ONE + b',"stop":', b""),
    (CHAT, ONE + b',"unknown":', b""),
    (RESPONSES, b'"input":', b""),
    (RESPONSES, b'"input":"x","metadata":', b""),
    (RESPONSES, b'"input":[{"type":"function_call_output","call_id":"c","output":', b"}]"),
    (MESSAGES, b'"max_tokens":1,"messages":', b""),
    (MESSAGES, b'"max_tokens":1,"messages":[{"role":"user","content":', b"}]"),
    (MESSAGES, b'"max_tokens":1,"system":', b"," + ONE),
    (TOKENIZE, b'"text":', b""),
    (TOKENIZE, b'"prompt":"x","unknown":', b""),
    (INFER, b'"inputs":', b""),
    (INFER, b'"inputs":[{"name":"http","datatype":"FP32","shape":[7],"data":', b"}]"),
    (INFER, b'"inputs":[],"parameters":', b""),
)
VALUES = (12_000, 16_000, 19_000, 100_000, 500_000)
MOST_BYTES = 30_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with victim() as running:
        yield running


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    path, before, after = draw(st.sampled_from(PLACES))
    pieces = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3))
    count = draw(st.sampled_from(VALUES)) // len(pieces)
    count = min(count, MOST_BYTES // (sum(map(len, pieces)) + 12 * len(pieces)))
    form = draw(st.sampled_from(("array", "object", "long keys", "deep")))
    if form == "array":
        value = b"[" + b",".join(pieces * count) + b"]"
    elif form == "deep":
        depth = draw(st.sampled_from((100, 900, 5000)))
        value = b"[" * depth + b",".join(pieces * count) + b"]" * depth
    else:
        prefix = b"k" * 40 if form == "long keys" else b"k"
        count = min(count, MOST_BYTES // 80)
        value = (
            b"{" + b",".join(b'"%s%d":%s' % (prefix, i, p) for i in range(count) for p in pieces[:1]) + b"}"
        )
    return (
        path,
        b'{"model":"m","max_output_tokens":1,"max_completion_tokens":1,' + before + value + after + b"}",
    )


def judge(server: Server, path: str, body: bytes, *, packed: bool = False) -> Seen:
    """The best of a few tries; the answer must be a documented one each time."""
    best: Seen | None = None
    for _ in range(TRIES):
        seen = attack(server, path, body, packed=packed)
        assert seen.status in (200, 400, 413, 422), body[:300]
        best = seen if best is None or seen.held < best.held else best
        if best.held < HELD:
            break
    assert best is not None
    assert best.held < HELD, f"{path} {len(body)} bytes {body[:200]!r}: {best}"
    assert best.server_memory < MEMORY, f"{path} {body[:200]!r}: {best}"
    return best


@settings(
    max_examples=examples(10),
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)
@given(made=bodies())
def test_no_generated_body_holds_the_loop(server: Server, made: tuple[str, bytes]) -> None:
    judge(server, *made)


@pytest.mark.parametrize("hostile", BODIES, ids=lambda hostile: hostile.name)
def test_no_hostile_body_holds_the_loop(server: Server, hostile: Hostile) -> None:
    for n in (7_000_000,) if hostile.text else (15_000, 300_000):
        judge(server, hostile.path, hostile.make(n), packed=hostile.gzip)


@pytest.mark.parametrize("name", ["text, packed", "escapes, packed"])
def test_a_packed_body_of_the_largest_size_is_unpacked_in_pieces(server: Server, name: str) -> None:
    hostile = next(h for h in BODIES if h.name == name)
    judge(server, hostile.path, hostile.make(31_000_000), packed=True)


FIGURES = (  # of issue G, points 16, 17 and 23: what held the server up, and the bound that is named now
    ("tools", 4 * 16_000, "--max_tools"),
    ("unknown fields", 1_000_000, "--max_json_nodes"),
    ("messages", 3 * 300_000, "--max_messages"),
    ("responses: items", 3 * 300_000, "--max_messages"),
    ("content parts", 3 * 400_000, "--max_json_nodes"),
    ("responses: metadata", 500_000, "--max_properties"),
    ("KServe: inputs", 6 * 200_000, "--max_json_nodes"),
    ("KServe: inputs", 6 * 100_000, "--max_tensors"),
    ("required of a forced tool", 3 * 50_000, "--max_properties"),
)


@pytest.mark.parametrize(("name", "values", "option"), FIGURES)
def test_the_bodies_that_were_seen_are_refused_by_a_bound(
    server: Server, name: str, values: int, option: str
) -> None:
    hostile = next(h for h in BODIES if h.name == name)
    seen = judge(server, hostile.path, hostile.make(values))
    assert seen.status == 400
    assert option in seen.answer.decode()


def test_a_large_body_that_the_options_allow_does_not_hold_it_either() -> None:
    flags = ("--max_json_nodes", "2000000", "--max_messages", "500000", "--max_tools", "20000")
    with victim(*flags, "--max_properties", "60000") as server:
        tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(12_000)]
        turns = [{"role": "user", "content": "x"}] * 180_000
        body = json.dumps({"model": "m", "max_tokens": 1, "messages": turns, "tools": tools}).encode()
        assert judge(server, CHAT, body).status == 200


def test_a_streamed_answer_to_a_large_body_is_a_stream(server: Server) -> None:
    turns = [{"role": "user", "content": "x"}] * 9_000
    body = {"model": "m", "max_tokens": 3, "messages": turns, "stream": True}
    status, answer = post(server, CHAT, json.dumps(body).encode())
    assert status == 200
    assert answer.startswith(b"data: {")
    assert answer.endswith(b"data: [DONE]\n\n")


async def test_others_have_turns_while_a_large_body_is_searched() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for escape in (b"\\ud83d", b"\\uD83D", b""):
        at_the_border = SEARCH_BYTES * 20 - 1
        assert await has_surrogates(b"\\u00e9" * (at_the_border // 6 + 1) + escape) == bool(escape)
        body = b"d" * at_the_border + escape + b"d" * SEARCH_BYTES
        turns = 0
        assert await has_surrogates(body) == bool(escape)
        assert turns >= 19
    counting.cancel()
