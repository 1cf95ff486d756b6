"""Cache eviction on the real library, with a tiny model: no prompt, and no number of requests, makes a step raise.
What the library does wrong is shown beside what the options and the engine make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.decoding.eviction_budget import EvictionRoom
from ovserve.engine.protocol.specs import CacheEviction, SparseAttention, TextSpec
from tests.engine.real import add, run
from tests.engine.tiny import ENDLESS, table, write

pytestmark = pytest.mark.long

BOUNDED = CacheEviction(32, 512, 1024, crush_budget=4, crush_anchor="MEAN")  # that of graphs/bounded_memory
SMALL = CacheEviction(32, 32, 96)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write(file, table())
    return str(file)


def prompt(tokens: int) -> tuple[int, ...]:
    return tuple(ord(ENDLESS[i % len(ENDLESS)]) - 33 for i in range(tokens))


def spec(tiny: str, eviction: CacheEviction, blocks: int = 400, **options: object) -> TextSpec:
    return TextSpec(tiny, cache_eviction=eviction, num_kv_blocks=blocks, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("sparse", [None, SparseAttention()], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "eviction",
    [
        BOUNDED,
        SMALL,
        CacheEviction(64, 32, 128, snapkv_window_size=1),
        CacheEviction(32, 32, 96, "SUM", False, 32),
    ],
    ids=["graph", "small", "window 1", "sum"],
)
def test_every_length_of_prompt(tiny: str, eviction: CacheEviction, sparse: SparseAttention | None) -> None:
    engine = GenAIEngine(spec(tiny, eviction, sparse_attention=sparse))
    for tokens in range(1, 201):
        add(engine, tokens, prompt(tokens), max_tokens=3)
        assert run(engine)[tokens].tokens == 3


def test_long_answers_to_every_length_of_prompt(tiny: str) -> None:
    engine = GenAIEngine(spec(tiny, SMALL, 1000))
    for tokens in range(1, 201):
        add(engine, tokens, prompt(tokens), max_tokens=150, stop=() if tokens % 2 else ("zq",))
    found = run(engine)
    assert {result.tokens for result in found.values()} == {150}


@pytest.mark.parametrize("tokens", [33, 39])
def test_why_norm_sum_has_no_window(tiny: str, tokens: int) -> None:
    """To be removed together with `loses_window` when this no longer raises."""
    engine = GenAIEngine(spec(tiny, CacheEviction(32, 32, 96, snapkv_window_size=8)))
    add(engine, 1, prompt(tokens))
    with pytest.raises(RuntimeError, match="num_snapkv_scores"):
        run(engine)


@pytest.mark.parametrize(
    "eviction", [SMALL, CacheEviction(32, 32, 96, "SUM", False, 8)], ids=["norm sum", "sum"]
)
def test_more_requests_than_the_cache_has_room_for(tiny: str, eviction: CacheEviction) -> None:
    """Each is given to the engine when it has room, as `turns.py` does it."""
    engine = GenAIEngine(spec(tiny, eviction, 14))
    lengths = {id_: 1 + 37 * id_ % 300 for id_ in range(1, 31)}
    waiting, answered, most = list(lengths), {}, 0
    for step in range(20_000):
        while waiting and engine.can_schedule(ids_tensor(prompt(lengths[waiting[0]]))):
            id_ = waiting.pop(0)
            add(engine, id_, prompt(lengths[id_]), max_tokens=120)
            most = max(most, len(engine.live()))
        if step % 90 == 89 and len(engine.live()) > 1:
            answered[engine.live()[-1]] = 0
            engine.abort(engine.live()[-1])
        if not engine.busy:
            break
        engine.step()
        for word in engine.collect():
            answered[word.id] = answered.get(word.id, 0) + word.tokens  # type: ignore[union-attr]
    assert set(answered) == set(lengths)
    assert set(answered.values()) <= {0, 120}
    assert most > 1


def test_why_they_wait(tiny: str) -> None:
    """To be removed together with `eviction_room.py` when this no longer raises."""
    engine = GenAIEngine(spec(tiny, SMALL, 14))
    for id_ in range(1, 31):
        add(engine, id_, prompt(1 + 37 * id_ % 300), max_tokens=120)
    with pytest.raises(RuntimeError, match="cache_eviction"):
        run(engine)


def test_room() -> None:
    room = EvictionRoom(SMALL, block=32, blocks=14, batch=64)
    assert room.can_schedule(10_000)  # alone
    room.admitted(1, 10, 1)  # 3 blocks, and 2 more
    assert room.can_schedule(200)  # as read in parts of 2 blocks: 7
    room.admitted(2, 200, 1)
    assert not room.can_schedule(1)
    room.cancelled(1)
    assert not room.can_schedule(1)
    room.stepped()
    assert room.can_schedule(1)
    room.ended(2)
    room.ended(2)
    assert room.can_schedule(10_000)
    whole = EvictionRoom(CacheEviction(32, 32, 96, "SUM", False, 8), block=32, blocks=14, batch=64)
    whole.admitted(1, 10, 1)
    assert whole.can_schedule(9 * 32)
    assert not whole.can_schedule(9 * 32 + 1)
