"""Cache eviction on the real library, with a tiny model: no prompt, and no number of requests, makes a step
raise. What the library does wrong is shown beside what the options and the engine make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.engine.protocol.specs import CacheEviction, SparseAttention, TextSpec
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.kinds.text.worker.genai.continuous import CacheReservation
from ovserve.llm.request import Sampling
from tests.engine.real import Queued, add, run
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
    queued = Queued(GenAIEngine(spec(tiny, SMALL, 1000)))
    for tokens in range(1, 201):
        queued.add(tokens, prompt(tokens), max_tokens=150, stop=() if tokens % 2 else ("zq",))
    assert {result.tokens for result in queued.run().values()} == {150}


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
    queued = Queued(GenAIEngine(spec(tiny, eviction, 14)))
    for id_ in range(1, 31):
        queued.add(id_, prompt(1 + 37 * id_ % 300), max_tokens=120)
    steps = 0
    while queued.queue.waiting or queued.engine.busy or not steps:
        queued.step()
        steps += 1
        if steps % 90 == 0 and len(queued.engine.live()) > 1:
            queued.abort(queued.engine.live()[-1])
    assert 10 < len(queued.results) < 30
    assert {(result.tokens, result.finish) for result in queued.run().values()} == {(120, "length")}
    assert queued.most > 1


def test_why_they_wait(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be removed when this no longer raises."""
    monkeypatch.setattr(CacheReservation, "fits", lambda *_: True)
    engine = GenAIEngine(spec(tiny, SMALL, 14))
    for id_ in range(1, 31):
        add(engine, id_, prompt(1 + 37 * id_ % 300), max_tokens=120)
    with pytest.raises(RuntimeError, match="cache_eviction"):
        run(engine)


def test_the_blocks_that_are_reserved() -> None:
    room = CacheReservation(spec("m", SMALL, max_num_batched_tokens=64), 14 * 32)
    greedy = Sampling(temperature=0.0)
    assert room.fits(room.demand(greedy, 10_000, 100))  # alone
    room.admitted(1, room.demand(greedy, 10, 100))  # 3 blocks, and 2 more
    read, one = room.demand(greedy, 200, 100), room.demand(greedy, 1, 1)
    assert room.fits(read)  # in parts of 2 blocks: 7
    room.admitted(2, read)
    assert not room.fits(one)
    room.cancelled(1)
    assert not room.fits(one)
    room.stepped()
    assert room.fits(one)
    room.ended(2)
    room.ended(2)
    assert room.fits(room.demand(greedy, 10_000, 100))
    whole = CacheReservation(spec("m", CacheEviction(32, 32, 96, "SUM", False, 8)), 14 * 32)
    whole.admitted(1, whole.demand(greedy, 10, 100))
    assert whole.fits(whole.demand(greedy, 9 * 32, 100))
    assert not whole.fits(whole.demand(greedy, 9 * 32 + 1, 100))
