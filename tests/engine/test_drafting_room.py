"""Which requests with drafts run side by side: the rules, without an engine; test_left_out.py has it."""

from __future__ import annotations

import random

import pytest

from ovserve.engine.decoding.drafting_room import Demand, DraftingRoom
from ovserve.llm.request import Sampling

BLOCK = 32


def room(blocks: int = 0, batch: int = 256, **options: bool) -> DraftingRoom:
    given: dict[str, bool] = {"pads": True} | options
    return DraftingRoom(block=BLOCK, blocks=blocks, batch=batch, **given)


def demand(prompt: int = 10, answer: int = 50, drafts: int = 5, *, stays: bool = False) -> Demand:
    return Demand(prompt, answer, drafts, stays)


def test_one_alone_always_fits() -> None:
    assert room(blocks=1, batch=2).fits(demand(1000, 1000, 64))


def test_a_step_has_the_drafts_of_all() -> None:
    drafting = room(batch=12)
    drafting.added(1, demand())
    assert drafting.fits(demand())
    assert not drafting.fits(demand(drafts=6))
    assert not drafting.fits(demand(drafts=0)), "without a number they may be a whole step"


def test_a_cancelled_one_holds_blocks_but_no_tokens_for_a_step() -> None:
    drafting = room(blocks=3, batch=7)
    drafting.added(1, demand(10, 20, stays=True))  # two blocks
    assert not drafting.fits(demand(1, 1)), "no tokens"
    drafting.cancelled(1)
    assert drafting.fits(demand(1, 1))
    assert not drafting.fits(demand(BLOCK))
    drafting.stepped()
    assert drafting.fits(demand(BLOCK))


def test_one_that_stays_counts_to_its_end() -> None:
    drafting = room(blocks=4)
    drafting.added(1, demand(20, 40, stays=True))  # two blocks
    assert drafting.fits(demand(10, 200))
    assert not drafting.fits(demand(10, 200, stays=True))


def test_the_latest_gives_its_place_and_none_that_stays() -> None:
    drafting = room(blocks=4)
    for id_ in (1, 2):
        drafting.added(id_, demand(10, 200))
    drafting.added(3, demand(10, 10, stays=True))
    for id_ in (1, 2, 3):
        drafting.gained(id_, 1)
    assert drafting.crowded() == []
    drafting.gained(1, 40)
    assert drafting.crowded() == []
    drafting.gained(2, 20)
    assert drafting.crowded() == [2]


def test_with_a_draft_model_prompts_are_read_whole() -> None:
    drafting = room(batch=64, whole=True)
    drafting.added(1, demand(30))
    assert drafting.fits(demand(34))
    assert not drafting.fits(demand(35))
    drafting.gained(1, 1)
    assert drafting.fits(demand(58))
    assert not drafting.fits(demand(59))


def test_without_split_fuse_prompts_come_in_rounds() -> None:
    drafting = room(batch=64, in_rounds=True)
    drafting.added(1, demand(30))
    assert drafting.fits(demand(34))
    assert not drafting.fits(demand(35))
    drafting.stepped()
    assert not drafting.fits(demand(1))
    drafting.ended(1)
    assert drafting.fits(demand(1))


@pytest.mark.parametrize(
    ("asked", "drafts", "fitted", "answer"),
    [
        (40, 5, 5, 40),  # it fits
        (54, 10, 1, 54),  # what was asked for comes before drafts
        (50, 10, 5, 50),
        (None, 10, 10, 45),  # and these before an open end
        (1000, 10, 10, 45),
        (None, 64, 54, 1),
    ],
)
def test_answer_and_drafts_fit_into_the_cache(
    asked: int | None, drafts: int, fitted: int, answer: int
) -> None:
    drafting, prompt = room(blocks=2), 10
    most = 2 * BLOCK - prompt
    sampling = Sampling(max_tokens=asked, num_assistant_tokens=drafts)
    found, length = drafting.fitted(sampling, prompt, most if asked is None else min(asked, most))
    assert (found.num_assistant_tokens, length) == (fitted, answer)


def test_drafts_fit_into_a_step() -> None:
    found, _ = room(batch=16).fitted(Sampling(num_assistant_tokens=64), 10, 100)
    assert found.num_assistant_tokens == 15


@pytest.mark.parametrize("seed", range(20))
def test_the_cache_is_never_too_small(seed: int) -> None:
    """Whatever is accepted: what all hold during a step, drafts and cancelled ones included, has room."""
    chance, blocks = random.Random(seed), 12
    drafting = room(blocks=blocks)
    held: dict[int, Demand] = {}
    leaving: list[int] = []
    for step in range(400):
        for id_ in drafting.crowded():
            drafting.cancelled(id_)
            leaving.append(id_)
        new = demand(
            chance.randrange(1, 200),
            chance.randrange(1, 150),
            chance.randrange(1, 9),
            stays=chance.random() < 0.3,
        )
        if drafting.fits(new):
            drafting.added(step, new)
            held[step] = new
        for id_ in held:
            if id_ not in leaving and chance.random() < 0.02:  # its client leaves
                drafting.cancelled(id_)
                leaving.append(id_)
        used = 0
        for id_, one in held.items():
            last = one.prompt + one.generated + (0 if id_ in leaving else one.drafts)
            used += -(-last // BLOCK)
        assert used <= blocks
        drafting.stepped()
        for id_ in leaving:
            del held[id_]
        leaving.clear()
        for id_, one in list(held.items()):
            if chance.random() < 0.2 and not one.begun:
                continue  # it is still read
            drafting.gained(id_, min(chance.randrange(1, one.drafts + 2), one.answer - one.generated))
            if one.generated >= one.answer:
                drafting.ended(id_)
                del held[id_]
