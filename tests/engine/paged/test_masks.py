"""A mask allows exactly the tokens that the grammar accepts; drafts, ends, and what becomes of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovserve.kinds.text.worker.genai.vocabulary import Vocabulary
from ovserve.kinds.text.worker.paged.masks import mask_bits, mask_of, restrict
from ovserve.kinds.text.worker.paged.sampler import Choice
from ovserve.llm.grammar import constraint as c
from ovserve.llm.grammar.writer import compact
from ovserve.llm.request import Sampling
from tests.engine.paged.conftest import Masks
from tests.schemas import SCHEMAS

PERSON = compact(SCHEMAS["strings"])
CASES: list[tuple[c.Format, bytes]] = [
    (PERSON, b""),
    (PERSON, b'{"name": "An'),
    (PERSON, b'{"name": "Ann", "city": "Oslo"'),
    (PERSON, '{"name": "né 😀'.encode()[:-2]),  # in the middle of a character
    (c.json_object(), b'{"a": [1, "x'),
    (c.regex("[0-9]{2,}"), b"123"),
    (c.any_text(), b"so "),
    (c.triggered(["<tool>"], [c.tag("<tool>", c.literal("x"), "</tool>")], only_one=False), b"so <to"),
    ({**c.tag("", c.any_text(["<x>"]), ""), "end": ["</t>"]}, b"a<"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "begun"), CASES)
def test_a_mask_is_what_the_grammar_accepts(masks: Masks, form: c.Format, begun: bytes) -> None:
    """Every token of the vocabulary is tried."""
    matcher = masks.matcher(form)
    for byte in begun:
        assert matcher.accept(masks.id_of[bytes([byte])])
    allowed = masks.allowed(matcher)
    assert allowed.any()
    for token in range(masks.vocabulary.logits):
        accepted = matcher.accept(token)
        assert accepted is bool(allowed[token]), masks.vocabulary.texts[token]
        if accepted:
            matcher.rollback(1)
    assert (masks.allowed(matcher) == allowed).all()


def test_the_end_is_allowed_where_a_text_is_whole(masks: Masks) -> None:
    matcher, (end, other) = masks.matcher(c.regex("[0-9]{1,2}")), masks.vocabulary.eos_ids
    states = []
    for digit in (*b"12", None):
        allowed = masks.allowed(matcher)
        assert allowed[end] == allowed[other]
        states.append((bool(allowed[end]), matcher.may_end, matcher.ended))
        assert digit is None or matcher.accept(masks.id_of[bytes([digit])])
    assert states == [(False, False, False), (True, True, False), (True, True, True)]
    assert matcher.accept(end)
    assert matcher.ended
    assert not matcher.accept(end)
    assert not masks.allowed(matcher).any()
    matcher.rollback(2)
    assert masks.allowed(matcher).sum() > 2


def test_min_tokens_hold_the_end_back_while_more_text_is_allowed(masks: Masks) -> None:
    ends = masks.vocabulary.eos_ids
    choice = Choice(Sampling(temperature=0.0, min_tokens=9), (), ends, masks.matcher(c.regex("1{1,3}")))
    row = np.zeros(masks.vocabulary.logits, np.float32)
    row[list(ends)] = 5
    row[masks.id_of[b"1"]] = 4
    tokens = []
    for _ in range(4):
        tokens.append(choice.choose(row.copy())[0])
        choice.append(tokens[-1])
    assert tokens[:3] == [masks.id_of[b"1"]] * 3
    assert tokens[3] in ends


def test_tokens_that_are_no_text_are_never_taken_for_it(masks: Masks) -> None:
    """A literal that looks like the token of the end is spelled; the token that begins texts is in none."""
    end, other = masks.vocabulary.eos_ids
    matcher = masks.matcher(c.literal("<|im_end|>"))
    assert not matcher.accept(end)
    assert not matcher.accept(1), "<|im_start|> begins texts"
    for byte in b"<|im_end|>":
        assert not masks.allowed(matcher)[[end, other, 1]].any()
        assert matcher.accept(masks.id_of[bytes([byte])])
    assert matcher.ended
    assert not masks.allowed(masks.matcher(c.any_text()))[1]


@pytest.mark.parametrize("token", [-1, 49152, 10**9])
def test_what_is_no_token_is_refused(masks: Masks, token: int) -> None:
    matcher = masks.matcher(c.any_text())
    assert not matcher.accept(token)
    assert matcher.allowed_prefix([token]) == 0


@pytest.mark.parametrize(
    ("drafted", "taken"),
    [("12-34", 5), ("12x34", 2), ("x", 0), ("", 0), ("12-3456", 5)],
)
def test_drafts_are_taken_as_far_as_the_grammar_allows(masks: Masks, drafted: str, taken: int) -> None:
    form, tokens = c.regex("[0-9]{2}-[0-9]{2}"), [masks.id_of[char.encode()] for char in drafted]
    matcher = masks.matcher(form)
    assert matcher.allowed_prefix(tokens) == taken
    assert masks.allowed(matcher)[masks.id_of[b"1"]], "it is where it was"


def test_a_draft_stops_before_the_end(masks: Masks) -> None:
    matcher, one = masks.matcher(c.regex("1*")), masks.id_of[b"1"]
    for end in masks.vocabulary.eos_ids:
        assert matcher.allowed_prefix([one, one, end, one]) == 2


def test_forced_text(masks: Masks) -> None:
    matcher = masks.matcher(PERSON)
    assert matcher.forced_text() == '{"name": "'
    for token in masks.tokens(b'{"name": "Ann"'):
        assert matcher.accept(token)
    assert matcher.forced_text() == ', "city": "'


def test_where_no_token_can_follow_a_mask_is_empty(masks: Masks) -> None:
    texts = [b"" if b"b" in text else text for text in masks.vocabulary.texts]
    poor = Masks(Vocabulary(texts, *masks.vocabulary[1:]))
    matcher, a = poor.matcher(c.literal("ab")), poor.id_of[b"a"]
    assert matcher.accept(a)
    row = poor.row()
    assert matcher.fill(row)
    assert not row.any()
    assert not matcher.ended


def test_more_logits_than_tokens_are_forbidden(masks: Masks) -> None:
    padded = Masks(Vocabulary(masks.vocabulary.texts, masks.vocabulary.eos_ids, masks.vocabulary.logits + 45))
    allowed = padded.allowed(padded.matcher(c.any_text()))
    assert len(allowed) == masks.vocabulary.logits + 45
    assert not allowed[-45:].any()


MAP = compact({"type": "object", "additionalProperties": {"type": "integer"}})
NESTED = compact(
    {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }
)
CALL = c.triggered(["<call>"], [c.tag('<call>{"f": ', MAP, "}</call>")], only_one=False)
THOUGHT = {**c.tag("", c.any_text(), ""), "end": ["</think>"]}
WHOLE = (b'"a": 1, "b', b'1, "a": ', b'{"a": 1, "a": 2', b'}, "a": ', b'a": 1, "', b'a": 1, "a"', b'\\u0061"')


@pytest.mark.parametrize(
    ("form", "begun", "refused", "allowed"),
    [
        (MAP, '{"a": 1, "a', '"|":', "b|a|\\\\"),
        (MAP, '{"a": 1, "', 'a": 1, "|\\u0061"', 'a|b|"|é'),
        (MAP, '{"a": 1, ', '"a": 1, "b', '"'),
        (MAP, '{"a": ', '1, "a": ', "1"),
        (MAP, "", '{"a": 1, "a": 2', "{|{}"),
        (MAP, '{"', 'a": 1, "a"', 'a": 1, "|"|a'),
        (MAP, '{"a": 1, "\\u006', "", "1|2"),
        (MAP, '{"a": 1, "\\u0061', '"|":', "a"),
        (MAP, '{"\\u0061": 1, "a', '"|":', "a"),
        (MAP, '{"\\ud83d\\ude00": 1, "😀', '"', "a"),
        (MAP, '{"a\\"": 1, "a', "", '":|"'),
        (MAP, '{"a\\"": 1, "a\\"', '":|"', "a"),
        (MAP, '{"a\\\\": 1, "a\\\\', '":|"', "a"),
        (MAP, '{"": 1, "', '":|"', "a"),
        (NESTED, '[{"a": {"a', "", '"|":'),
        (NESTED, '[{"a": {"b": 1, "b', '"|":', "a"),
        (NESTED, '[{"a": {"b": 1}, "a', '"|":', "b"),
        (NESTED, '[{"a": {"b": 1', '}, "a": ', "}"),
        (c.json_object(), '{"a": ["a", "a", {"x": "a"}], "a', '"|":', "b"),
        (c.json_object(), '{"a": "\\\\", "a', '"|":', "b"),
        (CALL, '{"a": 1, "a": 1} <call>{"f": {"a": 1, "a', '"|":', "b"),
        (CALL, '<call>{"f": {"a": 1}}</call> "a', "", '"|":'),
        (CALL, '<call>{"f": {"a": 1}}</call><call>{"f": {"a', "", '"'),
        (c.sequence(THOUGHT, c.regex("[ \\n]{0,3}"), MAP), '"{</think>\n\n{"a": 1, "a', '"|":', "b"),
        (c.either([c.literal("none"), MAP]), '{"a": 1, "a', '"|":', "b"),
        (c.ebnf('root ::= "{\\"a\\": 1, \\"a" "\\": 2}"'), '{"a": 1, "a', "", '"|":'),
    ],
)  # fmt: skip
def test_a_key_that_its_object_has_is_not_completed(
    masks: Masks, form: c.Format, begun: str, refused: str, allowed: str
) -> None:
    tokens = [*WHOLE, *masks.vocabulary.texts[len(WHOLE) :]]  # the first are markers
    odd = Masks(masks.vocabulary._replace(texts=tokens, eos_ids=(len(WHOLE),)))
    matcher = odd.matcher(form)
    for byte in begun.encode():
        assert matcher.accept(odd.id_of[bytes([byte])])
    for _ in range(2):
        mask = odd.allowed(matcher)
        for texts, good in ((refused, False), (allowed, True)):
            for text in filter(None, texts.split("|")):
                token = odd.id_of.get(text.encode(), odd.id_of[text.encode()[:1]])
                assert mask[token] == good, text
                assert matcher.allowed_prefix([token]) == good


def test_keys_are_taken_back(masks: Masks) -> None:
    matcher, [quote] = masks.matcher(MAP), masks.tokens(b'"')
    for token in masks.tokens(b'{"a": 1, '):
        assert matcher.accept(token)
    rest = [masks.id_of[bytes([byte])] for byte in b'"b": 2, "b']
    for _ in range(2):
        assert matcher.allowed_prefix([*rest, quote]) == len(rest)
        assert all(map(matcher.accept, rest))
        assert not masks.allowed(matcher)[quote]
        matcher.rollback(len(rest))
        assert matcher.allowed_prefix(masks.tokens(b'"b": 1}')) > 1


def test_where_a_grammar_admits_no_other_key_the_mask_stays(masks: Masks) -> None:
    matcher = masks.matcher(c.ebnf(c.JSON_MARK + 'root ::= "{\\"a\\": 1, \\"a" "\\": 2}"'))
    assert all(map(matcher.accept, masks.tokens(b'{"a": 1, "a')))
    assert masks.allowed(matcher).nonzero()[0].tolist() == sorted(masks.id_of[text] for text in (b'"', b'":'))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.4, 0.6, 0.999, 1.0])
@pytest.mark.parametrize("count", [96, 100, 49152])
def test_restrict(share: float, count: int) -> None:
    random: Any = np.random.default_rng(0)
    allowed = [np.flatnonzero(random.random(count) < share) for _ in range(2)]
    logits = random.normal(size=(4, count)).astype(np.float32)
    before = logits.copy()
    for row, some in ((2, allowed[0]), (0, allowed[1])):
        restrict(logits[row], mask_of(some, count))
        assert (mask_bits(mask_of(some, count), count).nonzero()[0] == some).all()
        assert (logits[row, some] == before[row, some]).all()
        assert (np.delete(logits[row], some) == -np.inf).all()
    assert (logits[[1, 3]] == before[[1, 3]]).all()
