"""Texts that are not JSON, as EBNF: `guided_regex`, formats of type regex, and strings between tags.

The library's own reader inverts classes that begin with `\\^` and reads other escapes in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ovserve.errors import InvalidArgument, shortened
from ovserve.llm.grammar import automata, formats, patterns, regular
from ovserve.llm.grammar.constraint import Format, ebnf
from ovserve.llm.grammar.cost import LISTS_OF_FORMATS
from ovserve.llm.grammar.rules import Rules
from ovserve.llm.grammar.strings import unlike
from ovserve.llm.grammar.text import Ranges, character_class, complement, intersection

MAX_DEPTH = 100  # of formats
_CHARACTERS = complement([(0xD800, 0xDFFF)])


def regex(pattern: str, what: str) -> Format:
    """Return the format of the texts that match as a whole. Raises InvalidArgument. `what`: the field."""
    rules = Rules(what)
    rules.spend(patterns.steps(pattern))
    try:
        root = _root([regular.simplified(patterns.read(pattern))], [], rules)
    except patterns.Malformed as error:
        raise _fault(what, f"not a regular expression: {error}", pattern) from None
    except patterns.Unsupported as error:
        raise _fault(what, f"{error} cannot be enforced", pattern) from None
    except automata.TooLarge:
        raise _fault(what, "it takes too many states; make it simpler", pattern) from None
    grammar = None if root is None else rules.write(root)
    if grammar is None:
        raise _fault(what, "no text matches", pattern)
    return ebnf(grammar)


def without_regex(form: Any, what: str, depth: int = MAX_DEPTH) -> Any:
    """Return a format of the library with its regular expressions as EBNF; invalid parts as they are."""
    if not isinstance(form, dict) or not depth:  # the library reads, and refuses, what is invalid
        return form
    kind = form.get("type")
    if kind == "regex" and form.keys() == {"type", "pattern"} and isinstance(form["pattern"], str):
        return regex(form["pattern"], f"{what}.pattern")
    if kind == "tag":
        return {**form, "content": without_regex(form.get("content"), f"{what}.content", depth - 1)}
    key = LISTS_OF_FORMATS.get(kind) if isinstance(kind, str) else None
    members = form.get(key) if key is not None else None
    if key is None or not isinstance(members, list):
        return form
    parts = [without_regex(one, f"{what}.{key}[{i}]", depth - 1) for i, one in enumerate(members)]
    return {**form, key: parts}


def bare_string(schema: Mapping[str, Any], without: Iterable[str], what: str) -> Format | None:
    """Return the format of the strings of a schema as they stand, not as JSON; None if it does not restrict
    them. They have none of the texts `without`.

    Raises InvalidArgument for what cannot be enforced."""
    pattern, name = schema.get("pattern"), schema.get("format")
    least, most = schema.get("minLength") or 0, schema.get("maxLength")
    for value in (least, most or 0):
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            raise InvalidArgument.at(what, f"expected a count as the length, got {value!r}")
    meaning = formats.tree(name) if isinstance(name, str) else None
    if not (isinstance(pattern, str) or meaning or least or most is not None):
        return None
    rules = Rules(what)
    texts = tuple(map(regular.literal, without))
    lengths = int(least), None if most is None else int(most)
    wholes = [meaning] if meaning else []
    try:
        rules.spend(patterns.steps(str(pattern or "")))
        searches = [regular.simplified(patterns.read(pattern))] if isinstance(pattern, str) else []
        try:
            some: list[regular.Tree] = (
                [regular.Repeat(regular.ANY, *lengths)] if any(lengths) or most is not None else []
            )
            if texts:
                some.append(unlike(regular.Sequence((regular.FREE, regular.Alternatives(texts)))))
            root = _root([*wholes, *some], searches, rules)
        except automata.TooLarge:
            firsts = {ord(one[0]) for one in without}
            root = _without(wholes, searches, lengths, firsts, rules)
    except (patterns.Malformed, patterns.Unsupported, automata.TooLarge) as error:
        why = str(error) or "it takes too many states between the tags of this model's calls"
        raise _fault(what, f"{why}; cannot be enforced", str(pattern or name or most)) from None
    grammar = None if root is None else rules.write(root)
    if grammar is None:
        raise _fault(what, "no text matches", str(pattern or name or most))
    return ebnf(grammar)


def _without(
    wholes: list[regular.Tree],
    searches: list[regular.Tree],
    lengths: tuple[int, int | None],
    firsts: set[int],
    rules: Rules,
) -> int | None:
    """Return the rule of the texts without these characters, which begin what they must not hold. Others are
    allowed, and would take too many states. Raises TooLarge."""
    if len(wholes) + len(searches) > 1:
        raise automata.TooLarge
    plain = regular.anchored(searches[0], regular.FREE) if searches else None
    if searches and plain is None:
        raise automata.TooLarge
    tree = plain[0] if plain else wholes[0] if wholes else regular.FREE
    short = regular.bounded(tree, *lengths)
    if short is None or regular.is_costly(short):
        raise automata.TooLarge

    def one(ranges: Ranges) -> str | None:
        return _character(intersection(ranges, complement([(code, code) for code in firsts])))

    text = regular.to_ebnf(short, one, rules.name_rule)
    return None if text is None else rules.add([[text]] if text else [[]])


def _root(wholes: list[regular.Tree], searches: list[regular.Tree], rules: Rules) -> int | None:
    """Return the rule of the texts that match all; None if there are none."""
    plain = regular.anchored(wholes[0], regular.EMPTY) if len(wholes) == 1 and not searches else None
    if plain is not None and not regular.is_costly(plain[0]):
        text = regular.to_ebnf(plain[0], _character, rules.name_rule)
        return None if text is None else rules.add([[text]] if text else [[]])
    root = rules.states(automata.automaton(wholes, searches, rules.spend), _character, [], None)
    if root is None:
        raise automata.TooLarge
    return root


def _character(ranges: Ranges) -> str | None:
    allowed = intersection(ranges, _CHARACTERS)
    return character_class(allowed) if allowed else None


def _fault(what: str, why: str, pattern: str) -> InvalidArgument:
    return InvalidArgument.at(what, f"{why}, got {shortened(pattern)}")
