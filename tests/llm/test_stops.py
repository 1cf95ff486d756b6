"""Stop strings: cut at the wrong character, found or missed depending on the chunks, text held too long."""

from codecs import getincrementaldecoder

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.kinds.text.worker.decoding import Output, StopMatcher
from ovserve.llm.request import Sampling, TokenLogprob

TEXTS = st.text(alphabet="abc", max_size=40)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4).map(tuple)
CUTS = st.lists(st.integers(1, 7), min_size=1)


def whole_search(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, bool]:
    """The definition: the first character at which some stop string is complete, then the longest such."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return (text[:end] if include else text[: end - max(map(len, complete))]), True
    return text, False


def run(text: str, stops: tuple[str, ...], cuts: list[int], include: bool) -> tuple[str, bool]:
    matcher, out, at, turn = StopMatcher(stops, include=include), "", 0, 0
    while at < len(text):
        size = cuts[turn % len(cuts)]
        piece, matched = matcher.feed(text[at : at + size])
        out, at, turn = out + piece, at + size, turn + 1
        if matched:
            return out, True
    return out + matcher.flush(), False


@given(TEXTS, STOPS, CUTS, st.booleans())
def test_any_split_equals_the_search_in_the_whole(
    text: str, stops: tuple[str, ...], cuts: list[int], include: bool
) -> None:
    assert run(text, stops, cuts, include) == whole_search(text, stops, include)


@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_could_still_become_a_stop(text: str, stops: tuple[str, ...]) -> None:
    matcher, out = StopMatcher(stops), ""
    for end, character in enumerate(text, 1):
        piece, matched = matcher.feed(character)
        if matched:
            return
        out += piece
        held = text[len(out) : end]
        starts = [n for stop in stops for n in range(len(stop)) if n and text[:end].endswith(stop[:n])]
        assert len(held) == max(starts, default=0)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("The capital", ("apit",), "The c"),
        ("aaab", ("aab",), "a"),
        ("abcd", ("abcd", "bc"), "a"),
        ("one\n\ntwo", ("\n\n",), "one"),
        ("日本語です", ("語",), "日本"),
        ("xENDy", ("EN", "END"), "x"),
        ("", ("a",), ""),
    ],
)
def test_examples(text: str, stops: tuple[str, ...], expected: str) -> None:
    assert run(text, stops, [1], include=False)[0] == expected
    assert run(text, stops, [100], include=False)[0] == expected


def test_without_stops_nothing_is_held() -> None:
    assert StopMatcher(()).feed("abc") == ("abc", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("",))


def test_log_probabilities_end_where_the_text_is_cut() -> None:
    """Also where tokens are parts of characters."""
    tokens = [b" \xf0\x9f", b"\x8e", b"\x89"] * 4 + [b" one", b" t", b"wo"]
    scored = [TokenLogprob(utf8.decode("utf-8", "replace"), utf8, -1.0) for utf8 in tokens]
    for sent in range(len(tokens)):  # in the first of two steps
        output, decoder = Output(1, Sampling(logprobs=True, stop=("two",))), getincrementaldecoder("utf-8")()
        found: list[TokenLogprob] = []
        for start, end in ((0, sent), (sent, len(tokens))):
            output.add_logprobs(scored[start:end])
            stopped = output.add_text(decoder.decode(b"".join(tokens[start:end])))
            if (item := output.take()) is not None:
                found += item.logprobs or []
        assert stopped
        assert [token.utf8 for token in found] == tokens[:-1]
