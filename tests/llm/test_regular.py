"""Regular expressions as grammars, judged by the real compiler and by Python's `re`, another implementation."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar import automata, patterns, regular
from ovserve.llm.grammar.whole_text import regex, without_regex
from ovserve.llm.grammar.writer import write
from tests.breadth import examples
from tests.bytewise import Language, instances

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
UUID = (
    r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    r"|00000000-0000-0000-0000-000000000000)$"
)
HOST = r"^(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$"
PASSWORD = r"^(?=.*[A-Z])(?=.*[a-z])(?=.*\d).{8,64}$"
# As Angular writes it.
ATOM, PART = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+", "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
ADDRESS = rf"^(?=.{{1,254}}$)(?=.{{1,64}}@){ATOM}(?:\.{ATOM})*@{PART}(?:\.{PART})*$"
AMBIGUOUS = [  # parts that may be counted in several ways
    "([a-z]?[0-9]?){0,200}",
    r"[\u0000-\uffff]{0,500}[^\u4e00-\u9fff]{0,500}",
    r".{0,1000}\d{0,1000}.{0,1000}",
    "(a|b{1,50}){1,50}",
    r"(\w{1,20}\s?){1,100}",
]
NESTED = [
    "((((a{1,50}b?){1,50}){1,50}c?){1,50})",
    "([a-z]{1,50} ?){1,50}",
    "((a{0,100}b){0,100}c?){0,100}",
    "([a-c]{1,40}|[b-d]{1,40}){1,40}",
    "((ab?c?){1,60}d?){1,60}",
    ".{1,1000}(.{1,50}.{1,50}?){1,50}",
    "([a-z]+ ?){1,5000}",
]


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]+(-[a-z]+)*$", "a", "^a|b$", "(?i)^abC$", EMAIL, r"\bab\b", r"\Bb", "a(?=b)", "a(?!b)", "x*", "",
        r"^(?=.*\d)(?=.*[a-c]).{2,5}$", "^(?:a|ab)(?:c|bcd)?$", "a{2,4}b*", "^$|^ab$", "(^a|b)c", "(a|b)*c|d$",
        "(?<=a)b", "(?<!a)b", "(?<!-)$", "^(?!-)[ab-]{1,4}(?<!-)$", "(?<=a.)b", "(?<!^a)b", "(?!(?<=a)b).",
        "^((?!ab).)*$", "^(?:(?!--)[a-c-]){1,4}$", "^((?!ab).)*c$", r"(?:-\b[ab]){2}", r"^[ab-]+\b-", r"(?!.*\bab\b)^",
        r"^(a|b)-\1$", r"(?P<q>['@])a(?:\1b)*", r"^(?:(a|b)\1)+$", r"(a|b)(c|d)?\1", "^[^a]{1,3}$", "^.{0,4}$", "(?P<year>1)-(?P<month>1)", r"[\w.-]+@", "^(?i:a)b$", "^(a|)$", "^a(?s:.)b$",
    ],
)  # fmt: skip
def test_an_automaton_finds_what_another_implementation_finds(pattern: str) -> None:
    tree = patterns.read(pattern)
    found = automata.automaton((), (tree,), lambda _: None)
    assert found is not None
    judge, chance = re.compile(pattern, re.ASCII), random.Random(1)
    for _ in range(examples(1000)):
        text = "".join(chance.choice("ab-.cdD1@ A'\n") for _ in range(chance.randint(0, 7)))
        state: int | None = 0
        for char in text:
            edges = found.edges[state] if state is not None else []
            state = next((to for some, to in edges if any(a <= ord(char) <= b for a, b in some)), None)
        accepted = state is not None and found.accepting[state]
        ends = text.endswith("\n") and "$" in pattern  # there `$` also means before the last line's end
        assert accepted == bool(judge.search(text)) or ends, text


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"format": "email", "pattern": EMAIL}, ["a.b@example.com"], ["a..b@example.com", ".a@b.de", "a@b"]),
        ({"format": "email", "maxLength": 12}, ["a@example.de"], ["ab@example.de"]),
        ({"format": "uuid", "pattern": UUID}, ["123e4567-e89b-42d3-a456-426614174000"],
         ["123e4567-e89b-92d3-a456-426614174000"]),
        ({"format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}, ["2024-02-29T10:00:00Z"],
         ["2024-02-30T10:00:00Z", "2024-02-29T10:00:00+01:00"]),
        ({"format": "uri", "pattern": "^https?://"}, ["https://example.com/a"], ["ftp://example.com", "https://a b"]),
        ({"format": "date", "pattern": "^2024"}, ["2024-02-29"], ["2023-01-01", "2024-02-30"]),
        ({"pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4}, ["ab", "abcd"], ["a", "abcde", "AB"]),
        ({"pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 5}, ["a-b-c", "abcde"], ["abcdef", "ab-", "a-b-c-d"]),
        ({"pattern": "^[a-z][a-z0-9-]*[a-z0-9]$", "maxLength": 63}, ["a" * 63], ["a" * 64, "a-"]),
        ({"pattern": "^https?://.+$", "maxLength": 1024}, ["http://a", "https://" + "a" * 1016],
         ["https://" + "a" * 1017, "https://"]),
        ({"pattern": "[0-9a-f]", "minLength": 3, "maxLength": 3}, ["xya"], ["xyz", "a", "abcd"]),
        ({"pattern": "^(?:\\S+\\s+){0,99}\\S+$", "minLength": 1}, ["a b c"], ["", " a"]),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["ab", "xbxa"], ["a", "b"]),
        ({"pattern": "(?i)^(yes|no)$"}, ["YES", "no", "nO"], ["y", "yess"]),
        ({"pattern": "^(?<year>\\d{4})$"}, ["2024"], ["20245"]),
        ({"pattern": "^[\\w-.]+$"}, ["a.b-c_1"], ["a b"]),
        ({"pattern": "^a++b$"}, ["aab"], ["b", "aa"]),
        ({"pattern": "^\\p{Lu}\\p{Ll}+$"}, ["\u00c4pfel", "Ab"], ["apfel", "A1"]),
        ({"pattern": r"^\p{Script=Greek}[\p{sc=Grek}0-9]\P{scx=Greek}$"}, ["\u03b1\u03b1b", "\u03b10\u00df"],
         ["aab", "\u03b1ab", "\u03b10\u1dc1"]),
        ({"pattern": r"^\p{Alphabetic}\p{Emoji_Presentation}$"}, ["\u00aa\U0001f600"], ["1\U0001f600", "a*"]),
        ({"pattern": "^\\u{1F600}\\ud83d\\ude00$"}, ["\U0001f600\U0001f600"], ["\U0001f600"]),
        ({"pattern": "^[\\^a]{2}$"}, ["^a"], ["bb"]),
        ({"pattern": "^a(?:b*){0}(?:(c?){2,}){0}$"}, ["a"], ["ab", "ac"]),
        ({"pattern": "^a|b$"}, ["axx", "xxb"], ["xa", "bx"]),
        ({"pattern": "^https://"}, ["https://example.com"], ["http://example.com"]),
        ({"pattern": HOST}, ["example.com", "kubernetes-dashboard-metrics.example.com", "a.b.c.d.e.f.de"],
         ["-a.com", "a..b", "a" * 64 + ".com", ".".join(["a" * 63] * 4)]),
        ({"pattern": PASSWORD}, ["Aa345678", "a" * 62 + "1A"], ["Aa34567", "aa345678", "a" * 63 + "1A"]),
        ({"pattern": r"^(?=.*[A-Z])(?=.*[a-z])(?=.*\d)(?=.*[^A-Za-z\d]).{8,255}$"}, ["a" * 252 + "1A!"],
         ["a" * 253 + "1A!", "Aa345678"]),
        ({"pattern": "^(?!.*foo).{1,1000}$"}, ["fof" * 333], ["fof" * 334, "", "a foo"]),
        ({"pattern": ADDRESS}, ["a.b@example.com", "a@" + "b" * 27 + ".de"],
         ["a" * 65 + "@b.de", "a@b.", "a@-b", "a@" + ".".join(["a" * 60] * 5)]),
        ({"pattern": "(?<=^|, )a"}, ["a", "b, a"], ["ba", "b,a"]),
        ({"pattern": "^(?=[a-z0-9-]{1,63}$)[a-z0-9]+(-[a-z0-9]+)*$"}, ["a-b", "a" * 63], ["a--b", "a" * 64, ""]),
        ({"pattern": "^(?!.{9})(?=.{2,})[a-z]+$"}, ["ab", "a" * 8], ["a", "a" * 9, "A1"]),
        ({"pattern": "^(?=.{1,3}$)[a-z\n]+$"}, ["a", "abc"], ["abcd"]),
        ({"pattern": "^(?!-)(?:[a-z-]{1,63}(?<!-)\\.)+[a-z]{2,6}$"}, ["a-b.example.com"], ["a-.com", "-a.com"]),
        ({"pattern": "^((?!foo).)*$"}, ["", "fo", "barf\t"], ["foo", "a foo b"]),
        ({"pattern": "^(?:(?!\\.\\.)[a-z.]){1,40}$"}, ["a.b", "a" * 40], ["a..b", "", "a" * 41]),
        ({"pattern": "^(['\"]).*\\1$"}, ["'a'", '"it\'s"'], ["'a\"", "a"]),
        ({"pattern": "^(\\d{4})([-/.])(\\d\\d)\\2(\\d\\d)$"}, ["2024-01-02", "2024/01/02"], ["2024-01/02"]),
        ({"pattern": "^<(?<tag>b|i)>[^<]*</\\k<tag>>$"}, ["<b>x</b>"], ["<b>x</i>"]),
        ({"not": {"pattern": "(?<=a)b"}}, ["b", "ba"], ["ab", "cabc"]),
        ({"pattern": "^\\D\\W\\S\\s$"}, ["\u07c0\u00e9\x01\xa0"], ["1\u00e9\x01 ", "aa\x01 "]),
    ],
)  # fmt: skip
def test_keywords_of_strings_hold_together(schema: Any, right: list[str], wrong: list[str]) -> None:
    found = instances({"type": "string", **schema})
    assert [text for text in right if json.dumps(text, ensure_ascii=False) not in found] == []
    assert [text for text in wrong if json.dumps(text, ensure_ascii=False) in found] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(?<=a(?=b))b",
        "(?<=a$)b",
        r"(\w+)\1",
        r"(a)?\1",
        r"\1(a)",
        r"(?i)(a)\1",
        "(?>a|ab)c",
        "(?:a|b)++c",
        "a{,3}",
        "[]a]",
        r"\p{Script=Nobody}",
        r"\p{punct}",
        r"\p{VS}",
        "[[:alpha:]]",
        r"^a\Z",
    ],
)
def test_what_cannot_be_held_is_reported(pattern: str) -> None:
    assert write({"type": "string", "pattern": pattern}).unenforced == ["pattern"]
    with pytest.raises(InvalidArgument, match="guided_regex: .*cannot be enforced") as caught:
        regex(pattern, "guided_regex")
    assert caught.value.param == "guided_regex"


@pytest.mark.parametrize(
    "pattern",
    [
        "a)",
        "*a",
        "a**",
        "(?<=a",
        r"(a)\1(",
        "a{2}{3}",
        "[b-a]",
        "a{3,2}",
        "(?<1>a)",
        "\\",
        "(?!a",
        "(?<=a)b(",
        "\\u{110000}",
    ],
)
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    """Also after a part that cannot be held."""
    with pytest.raises(InvalidArgument, match="not a regular expression"):
        write({"type": "string", "pattern": pattern})
    with pytest.raises(InvalidArgument, match="guided_regex: not a regular expression"):
        regex(pattern, "guided_regex")


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"[\^a]{2}", ["^a", "aa"], ["bb", "^"]),
        (r"[^\^a]{2}", ["bb"], ["^b"]),
        (r"^[a-z]+$", ["abc"], ["abc "]),
        (r"(?=.*\d)[a-z\d]{3}", ["ab1"], ["abc", "ab12"]),
        (PASSWORD, ['Aa34"678', "a" * 62 + "1A"], ["Aa34567", "aa345678", "a" * 63 + "1A"]),
        (r"\x2da", ["-a"], ["\u02da"]),
        (r"[\x2da]", ["-", "a"], ["\u02da"]),
        ("(([a-z]{1,3}){1,3}){1,3}", ["a", "a" * 27], ["", "a" * 28]),
        ("(a{2,3}){5,7}", ["a" * 10, "a" * 21], ["a" * 9, "a" * 22]),
        ("(a{3}){0,2}", ["", "aaa", "a" * 6], ["a", "a" * 5]),
        (r"^[a-z0-9]{1,63}(\.[a-z0-9]{1,63}){0,8}$", ["a.b", "a" * 63 + ".b"], ["a" * 64, "a."]),
        ("([a-z]+ ?){1,5}", ["ab cd e"], ["a b c d e ", " a", "1"]),
    ],
)
def test_a_whole_text_matches(pattern: str, right: list[str], wrong: list[str]) -> None:
    found = Language(regex(pattern, "guided_regex"))
    assert [text for text in right if text not in found] == []
    # `([a-z]+ ?){1,5}` may end in a blank, and letters may be repeated without one.
    judged = [text for text in wrong if not re.fullmatch(pattern, text)]
    assert [text for text in judged if text in found] == []


@pytest.mark.long
@pytest.mark.parametrize("pattern", [*NESTED, *AMBIGUOUS])
def test_nested_counts_are_refused_by_their_form(pattern: str) -> None:
    """Such a grammar took more than 15 s for a token."""
    with pytest.raises(InvalidArgument, match="guided_regex: it takes too many states; make it simpler"):
        regex(pattern, "guided_regex")
    assert write({"type": "string", "pattern": f"^({pattern})$"}).unenforced == ["pattern"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a-z0-9]{1,63}(\.[a-z0-9]{1,63}){0,8}", r"(\S+\s+){0,99}\S+", "(a|b)*a(a|b){9}", "((a*)*)*b",
        "([0-9]{1,3}\\.){3}[0-9]{1,3}", "[a-z]{1,100000}", "(?:[A-Z][a-z]{0,20} ){1,9}[A-Z]", r"\p{L}{1,64}",
    ],
)  # fmt: skip
def test_expressions_of_users_are_not_costly(pattern: str) -> None:
    plain = regular.anchored(regular.simplified(patterns.read(pattern)), regular.EMPTY)
    assert plain is not None
    assert not regular.is_costly(plain[0])


def test_expressions_inside_structural_tags() -> None:
    inner = {"type": "regex", "pattern": "[\\^a]"}
    form = {
        "type": "sequence",
        "elements": [
            {"type": "tag", "begin": "<", "content": inner, "end": ">"},
            {"type": "or", "elements": [inner, {"type": "const_string", "value": "b"}]},
        ],
    }
    found = Language(without_regex(form, "response_format"))
    assert [text for text in ("<^>a", "<a>b") if text not in found] == []
    assert "<b>a" not in found
    with pytest.raises(
        InvalidArgument, match=r"response_format.elements\[0\].content.pattern: not a regular"
    ):
        without_regex({"type": "sequence", "elements": [{"type": "tag", "content": {**inner, "pattern": "("}}]},
                      "response_format")  # fmt: skip


def test_unknown_formats_are_named_once_and_refuse_nothing() -> None:
    schema = {"properties": {name: {"type": "string", "format": "colour"} for name in "ab"}}
    written = write(schema)
    assert (written.unenforced, written.noted) == ([], ["format: colour"])


@pytest.mark.parametrize(
    ("schema", "right"),
    [
        ({"format": "email", "minLength": 6, "maxLength": 254}, "ann.lee@mail.example.com"),
        ({"format": "uri", "minLength": 1, "maxLength": 255}, "https://example.com/a/b?c=d#e"),
        ({"format": "uri-reference", "maxLength": 2000}, "/a/b?c=d"),
        ({"format": "hostname", "maxLength": 63}, "www.example.com"),
        ({"format": "email", "maxLength": 50}, "ann.lee@mail.example.com"),
        ({"format": "uri", "maxLength": 100}, "https://example.com/a/b?c=d"),
        ({"format": "hostname", "maxLength": 30}, "www.abc.com"),
        ({"format": "ipv6", "maxLength": 40}, "2001:0db8:0000:0000:0000:ff00:0042:8329"),
        ({"format": "date-time", "maxLength": 40}, "2024-02-29T10:00:00.123+01:00"),
    ],
)
def test_a_format_within_a_length(schema: Any, right: str) -> None:
    found = instances({"type": "string", **schema})
    assert json.dumps(right) in found
    padding = "a" * (schema["maxLength"] - len(right) + 1)
    assert json.dumps(padding + right) not in found
    assert json.dumps(right + padding) not in found
