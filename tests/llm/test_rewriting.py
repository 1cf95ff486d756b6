"""A text that is rewritten piece by piece is the text that is rewritten whole, wherever it is cut."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ovserve.calculators.library.text_map import MAX_HELD, TokenWindow, Window, rewrite, rewrite_json
from ovserve.llm.request import TokenLogprob

PATTERN = re.compile(r"\b\d(?:[ -]?\d){3,7}\b|[\w.]+@\w+")
TEXTS = st.text(st.sampled_from("12 -@a.é\n你\U0001f600"), max_size=60)
CUTS = st.lists(st.integers(0, 200), max_size=20)


def window(size: int = 24) -> Window:
    return Window(
        lambda text, start: match.span() if (match := PATTERN.search(text, start)) else None,
        lambda text, start, end: "<X>",
        size,
    )


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(TEXTS, CUTS)
def test_cuts_do_not_matter(text: str, cuts: list[int]) -> None:
    whole = rewrite(lambda: window(64), text)
    fed = window(64)
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    out = [s.new for a, b in pairwise(places) for s in fed.feed(text[a:b])]
    out += [s.new for s in fed.feed("", final=True)]
    assert "".join(out) == whole


@given(TEXTS, CUTS)
def test_tokens_show_what_the_text_shows(text: str, cuts: list[int]) -> None:
    """Also where a token is a part of a character. Each log-probability is in exactly one entry."""
    tokens = TokenWindow(window(64))
    given_ = [TokenLogprob(b.decode("utf-8", "replace"), b, -0.5) for b in pieces(text.encode(), cuts)]
    out = [token for one in given_ for token in tokens.feed([one])] + tokens.feed([], final=True)
    assert b"".join(t.utf8 for t in out).decode() == rewrite(lambda: window(64), text)
    assert sum(t.logprob or 0 for t in out) == -0.5 * len(given_)
    assert all(t in given_ for t in out if "<X>" not in t.text)


def test_only_the_window_is_held() -> None:
    fed = window(8)
    assert "".join(s.new for s in fed.feed("x" * 100)) == "x" * 92
    assert fed.held == "x" * 8


def test_a_match_longer_than_the_window_is_waited_for_but_not_for_ever() -> None:
    endless = Window(lambda text, start: (start, len(text)), lambda text, start, end: "<X>", 4)
    assert endless.feed("a" * (MAX_HELD - 1)) == []
    assert [s.new for s in endless.feed("aa")] == ["<X>"]


def test_an_empty_match_is_none() -> None:
    spaces = re.compile(r"\d*")
    fed = Window(lambda t, at: m.span() if (m := spaces.search(t, at)) else None, lambda t, a, b: "#", 2)
    assert "".join(s.new for s in fed.feed("a1b", final=True)) == "a#b"


def change(text: str) -> str:
    return rewrite(window, text)


def test_arguments_are_rewritten_by_value_and_stay_json() -> None:
    text = (
        '{"to": "jo\\u0040x \\"quoted\\"", "card": 41111111, "deep": [true, null, 1.5, {"12345": "1-2-3-4"}]}'
    )
    assert json.loads(rewrite_json(change, text)) == {
        "to": '<X> "quoted"',
        "card": "<X>",
        "deep": [True, None, 1.5, {"12345": "<X>"}],
    }


def test_arguments_without_a_match_keep_their_spelling() -> None:
    assert rewrite_json(change, '{ "a" :  1.50 }') == '{ "a" :  1.50 }'


def test_a_call_that_was_cut_is_rewritten_as_text() -> None:
    assert rewrite_json(change, '{"to": "jo@x", "ca') == '{"to": "<X>", "ca'
    assert rewrite_json(change, "[" * 100_000) == "[" * 100_000
