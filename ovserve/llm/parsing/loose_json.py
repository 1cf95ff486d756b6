"""JSON as models write it, passed on as valid JSON while it arrives.

Valid JSON passes unchanged. The faults that json_repair and LiteLLM repair are repaired here too. There are
single and curly quotes, keys without quotes, Python's words, comments, and quotes inside strings. Commas may
be missing or too many, and brackets or a quote may be missing at the end. A decision needs at most so many
characters of what follows as Cursor.AHEAD, so the cost is linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Mark, Markers, NotACall, Steps, run_to_end
from ovserve.llm.parsing.json_text import JSON_NUMBER, quote
from ovserve.llm.parsing.literal import number

_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019"}
_BRACKETS = {"{": "}", "[": "]"}
_WORDS = {word: word for word in ("true", "false", "null")}
_WORDS |= dict.fromkeys(("none", "undefined", "nan"), "null")
_LINE = re.compile(r"[^\n]*")
_KEY = re.compile(r"[\w$.\-]{1,128}")
_TOKEN = re.compile(r"[^\s,{}\[\]\"'<]*")
_BARE = re.compile(r"[^,{}\[\]\"'<\n]*")
_MAX_TOKEN = 4096
_CONTROL = re.compile(r"[\x00-\x1f]")
_RUN = re.compile(r"[}\]][}\]\s]{0,64}")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_PLAIN = {q: re.compile(rf"[^\\<\[}}\]{q}]+") for q in _QUOTES.values()}
# After a comma: the key of an object, or an item of a list.
_KEYS = r"""(?:"(?:[^"\\]|\\.){0,128}"|'[^'\n]{0,128}'|“[^”]{0,128}”|[\w$.\-]{1,128})"""
_NEXT_KEY = re.compile(rf"""{_KEYS}\s*:|"(?:[^"\\]|\\.){{128}}""")
_KEY_BEGUN = re.compile(rf"""(?:{_KEYS}\s*|"(?:[^"\\]|\\.){{0,128}}\\?|'[^'\n]{{0,128}}|“[^”]{{0,128}})?\Z""")
_ITEM = re.compile(r"[\"'“\[{\d\-+.,]|(?:true|false|null|True|False|None)\b")
_ITEM_BEGUN = re.compile(r"[a-zA-Z]{0,5}\Z")
_NEXT_OBJECT = re.compile(r"""\s{0,16}[,;]\s{0,16}\{\s{0,16}["'][\w$.\- ]{1,64}["']\s{0,16}:""")
_OBJECT_BEGUN = re.compile(
    r"""\s{0,16}(?:[,;]\s{0,16}(?:\{\s{0,16}(?:["'][\w$.\- ]{0,64}(?:["']\s{0,16})?)?)?)?\Z"""
)
# After a closing tag in a string: another call, which shows that the string ended before the tag.
_NEXT_CALL = re.compile(
    r"""[^"\\]{0,160}\{\s{0,16}["'][\w$.\- ]{1,64}["']\s{0,8}:"""
    r"""|\s{0,16}[<\[][^"\\]{0,160}\{\s{0,16}\}\s{0,16}(?:[<}]|\Z)"""
)


def value(
    cur: Cursor,
    sink: Callable[[str], object],
    closers: Markers | None = None,
    *,
    outer: int = 0,
    as_written: bool = False,
) -> Steps[None]:
    """Read a value and pass it on as JSON.

    `closers` end the call around it, in `outer` further brackets. `as_written`: what cannot be repaired is
    left unread for the caller, who passes it on; else words without quotes are strings. Raises NotACall for
    what is not JSON, and EndOfText within a string, or where a value is missing.
    """
    reader = _Reader(cur, sink, closers, outer, as_written)
    try:
        yield from reader.value()
    except EndOfText:
        reader.flush()
        raise


def string(cur: Cursor) -> Steps[str]:
    """Read a name in quotes, which has none of them inside; return its text."""
    char = yield from cur.peek()
    if char not in _QUOTES:
        raise NotACall if char else EndOfText
    parts: list[str] = []
    yield from _Reader(cur, parts.append, None, 0, as_written=True).name(_QUOTES[char])
    text: str = json.loads("".join(parts))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Reader:
    def __init__(
        self,
        cur: Cursor,
        sink: Callable[[str], object],
        closers: Markers | None,
        outer: int,
        as_written: bool,
    ) -> None:
        self._cur, self._sink = cur, sink
        self._closers = closers.strings if closers is not None else ()
        self._outer, self._as_written = outer, as_written
        self._stack: list[str] = []  # closing brackets
        self._held: list[str] = []  # what the next item needs before it
        self._mark: Mark | None = None  # where that begins
        self._fresh = False  # the bracket opened last has no item yet

    def flush(self) -> None:
        for text in self._held:
            self._sink(text)
        self._held.clear()

    # -- structure

    def value(self) -> Steps[None]:
        yield from self._begin()
        while self._stack:
            yield from self._item()

    def _hold(self) -> None:
        if self._mark is None:
            self._mark = self._cur.mark()

    def _sure(self) -> None:
        """Pass on what was held: the item that it belongs to has begun."""
        if self._mark is not None:
            self._cur.release(self._mark)
            self._mark = None
        self.flush()

    def _unsure(self) -> NotACall:
        """Go back to before what was held."""
        self._held.clear()
        if self._mark is not None:
            self._cur.rollback(self._mark)
            self._mark = None
        return NotACall()

    def _item(self) -> Steps[None]:
        """Read the next item, or the bracket after the last one."""
        first, comma = self._fresh, False
        self._hold()
        while True:
            gap = yield from self._gap()
            char = yield from self._cur.peek()
            if char == ",":
                self._cur.advance(1)
                if not comma and not first:
                    self._held.append(gap + ",")
                    comma = True
                continue
            break
        if char in ("}", "]"):
            self._close(char, "" if comma else gap)
        elif not char and (first or self._cur.cut):
            raise EndOfText
        elif not char or (yield from self._at_closer(char)):
            self._end()
        else:
            yield from self._next_item(char, gap, missing=not (first or comma))

    def _next_item(self, char: str, gap: str, *, missing: bool) -> Steps[None]:
        if missing:  # a comma, or the text goes on with something else
            good = char in _QUOTES or char in "{[" if self._stack[-1] == "]" else False
            if not good and not (yield from self._key_ahead()):
                if self._as_written:
                    raise self._unsure()
                self._end()
                return
            self._held.append(",")
        self._held.append(gap or (" " if missing else ""))
        self._fresh = False
        if self._stack[-1] == "}":
            yield from self._key(char)
        yield from self._begin()

    def _key(self, char: str) -> Steps[None]:
        if char in _QUOTES:
            yield from self.name(_QUOTES[char])
        else:
            key = yield from self._cur.matching(_KEY, _MAX_TOKEN)
            if not key:
                raise self._unsure()
            self._held.append(quote(key))
        self._held.append((yield from self._gap()))
        if not (yield from self._cur.literal(":")):
            if not (yield from self._cur.peek()):
                raise EndOfText
            raise self._unsure()
        self._held += ":", (yield from self._gap())

    def _begin(self) -> Steps[None]:
        """Read a scalar, or an opening bracket."""
        char = yield from self._cur.peek()
        if char in _BRACKETS:
            self._sure()
            self._stack.append(_BRACKETS[char])
            self._fresh = True
            self._sink(self._cur.advance(1))
        elif char in _QUOTES:
            self._sure()
            yield from self._characters(_QUOTES[char], self._sink, strict=False)
            self._fresh = False
        elif not char:
            raise EndOfText
        else:
            yield from self._scalar()
            self._fresh = False

    def _scalar(self) -> Steps[None]:
        token = yield from self._cur.matching(_TOKEN, _MAX_TOKEN)
        if self._cur.cut and not (yield from self._cur.peek()):
            self._held.append(token)
            raise EndOfText
        text = _WORDS.get(token.lower()) or _number(token)
        if text is None:
            if self._as_written or not token:
                raise self._unsure()
            rest = yield from self._cur.matching(_BARE, _MAX_TOKEN)
            text = quote((token + rest).rstrip())
        self._sure()
        self._sink(text)

    def _close(self, char: str, gap: str) -> None:
        """Take a closing bracket. Those that it skips are missing; one without a partner ends the value."""
        self._held.clear()
        # The innermost one is looked at first: a search costs the depth, 8,000 times in a hostile text.
        if self._stack[-1] != char and char not in self._stack:
            self._end()
            return
        self._sink(gap)
        self._sure()
        while self._stack.pop() != char:
            self._sink("]" if char == "}" else "}")
        self._sink(self._cur.advance(1))
        self._fresh = False

    def _end(self) -> None:
        """End the value where its brackets are missing, and leave what follows."""
        self._held.clear()
        if self._mark is not None:
            self._cur.rollback(self._mark)
            self._mark = None
        self._sink("".join(reversed(self._stack)))
        self._stack.clear()

    def _gap(self) -> Steps[str]:
        """Read white space and comments; return the white space."""
        cur, gap = self._cur, ""
        while True:
            gap += yield from cur.space()
            char = yield from cur.peek()
            if char == "#" or (char == "/" and (yield from self._ahead(2)) == "//"):
                yield from cur.matching(_LINE)
            elif char == "/" and (yield from self._ahead(2)) == "/*":
                yield from cur.until(Markers(("*/",)), _nowhere)
                yield from cur.expect("*/")
            else:
                return gap

    # -- what follows

    def _ahead(self, count: int) -> Steps[str]:
        cur = self._cur
        while len(cur.buf) - cur.pos < count and not cur.ended:
            yield
        return cur.buf[cur.pos : cur.pos + count]

    def _at_closer(self, char: str) -> Steps[bool]:
        if not any(closer.startswith(char) for closer in self._closers):
            return False
        return bool((yield from self._cur.next_of(self._closers)))

    def _key_ahead(self) -> Steps[bool]:
        return self._stack[-1] == "}" and (yield from self._cur.decision(_key_follows))

    # -- strings

    def name(self, q: str) -> Steps[None]:
        """Read a string that ends at the next quote."""
        yield from self._characters(
            q, self._held.append if self._mark is not None else self._sink, strict=True
        )

    def _characters(self, q: str, sink: Callable[[str], object], *, strict: bool) -> Steps[None]:
        cur, plain = self._cur, _PLAIN[q]
        ends = q
        cur.advance(1)
        sink('"')
        if not strict and (yield from self._ahead(2)) == q * 2:
            cur.advance(2)
            ends = q * 3
        while True:
            if match := plain.match(cur.buf, cur.pos):
                sink(_escaped(cur.advance(match.end() - cur.pos)))
            char = yield from cur.peek()
            if not char:
                raise EndOfText
            if plain.match(char):
                continue
            if char == "\\":
                yield from self._escape(sink)
            elif char == q and (strict or (yield from self._closes(ends))):
                cur.advance(len(ends))
                break
            elif char in "<[}]" and not strict and (yield from self._broken_off(char)):
                break
            else:
                sink(_escaped(cur.advance(1)))
        sink('"')

    def _escape(self, sink: Callable[[str], object]) -> Steps[None]:
        """Read a backslash and what belongs to it. One that begins no escape was not doubled by the model."""
        cur = self._cur
        two = yield from self._ahead(2)
        if len(two) < 2:
            if not cur.cut:
                raise EndOfText
            cur.advance(1)
            raise EndOfText
        if two[1] == "u":
            six = yield from self._ahead(6)
            if len(six) < 6 and cur.cut and _HEX.match(six[2:] + "0000"):
                sink(cur.advance(6))
                raise EndOfText
            good = len(six) == 6 and _HEX.match(six, 2) is not None
            sink(cur.advance(6) if good else "\\" + cur.advance(1))
        elif two[1] in '"\\/bfnrt':
            sink(cur.advance(2))
        elif two[1] in "'\u2019\u201d":
            cur.advance(1)
            sink(cur.advance(1))
        else:
            sink("\\" + cur.advance(1))

    def _closes(self, ends: str) -> Steps[bool]:
        """Return whether a quote ends the string, by what follows it."""
        if len(ends) > 1:
            return (yield from self._ahead(len(ends))) == ends
        return (yield from self._cur.decision(self._string_ended))

    def _string_ended(self, text: str, end: bool) -> bool | None:
        at = len(text) - len(text[1:].lstrip())
        char = text[at : at + 1]
        if not char:
            return True if end else None
        if char in "}]":
            return self._brackets_fit(text, at, end)
        if not self._stack:
            return char == "," or self._closer_at(text, at, end)
        if char == ",":
            at = len(text) - len(text[at + 1 :].lstrip())
            if at == len(text):
                return True if end else None
            if text[at] in "}],/#":
                return True
            return self._item_follows(text[at:], end)
        if char in _QUOTES and at > 1:
            return self._item_follows(text[at:], end)
        if char == "/" and at + 1 == len(text) and not end:
            return None
        if char == "#" or text.startswith(("//", "/*"), at):
            return True
        return self._closer_at(text, at, end)

    def _item_follows(self, text: str, end: bool) -> bool | None:
        if self._stack[-1] == "}":
            return _key_follows(text, end)
        if _ITEM.match(text):
            return True
        return None if not end and _ITEM_BEGUN.match(text) else False

    def _closer_at(self, text: str, at: int, end: bool) -> bool | None:
        rest = text[at:]
        if rest.startswith((*self._closers, "</", "<|")):
            return True
        begun = not end and any(closer.startswith(rest) for closer in (*self._closers, "</"))
        return None if begun else False

    def _brackets_fit(self, text: str, at: int, end: bool) -> bool | None:
        """Return whether the brackets after a quote can be those of this value."""
        run = _RUN.match(text, at)
        assert run is not None, "the caller saw a bracket"
        brackets = "".join(run[0].split())
        fits = brackets.startswith("".join(reversed(self._stack)))
        if fits and len(brackets) >= len(self._stack) + max(self._outer, 1):
            return True
        if run.end() == len(text):
            return True if end else None
        following = text[run.end()]
        at_closer = self._closer_at(text, run.end(), end)
        if at_closer is not False or (
            fits and (following == "," or (not self._outer and run[0][-1].isspace()))
        ):
            return at_closer is not None or None
        if brackets[0] == self._stack[-1] and not fits:
            return following not in _QUOTES or run[0][-1].isspace()
        return _call_follows(text[run.end() :], end)

    def _broken_off(self, char: str) -> Steps[bool]:
        """Return whether the string ends here although its quote is missing: the call does."""
        if char not in "}]":
            return (yield from self._call_ends(0))
        while True:
            text = self._cur.buf[self._cur.pos : self._cur.pos + Cursor.AHEAD]
            run = _RUN.match(text)
            assert run is not None, "the caller saw a bracket"
            if run.end() < len(text) or self._cur.ended:
                break
            yield
        brackets = "".join(run[0].split())
        due = len(self._stack) + self._outer
        if brackets.endswith("]") and "]" not in self._stack:
            due += 1
        if run.end() < len(text):
            in_list = text[run.end()] in ",;" and len(brackets) >= due
            if not in_list and not any(closer.startswith(text[run.end()]) for closer in self._closers):
                return False
            if in_list:
                size = run.end()
                if not (yield from self._cur.decision(lambda ahead, end: _call_follows(ahead[size:], end))):
                    return False
            elif not (yield from self._call_ends(run.end())):
                return False
        elif len(brackets) < due or not self._cur.ended or self._cur.cut:
            return False
        return len(brackets) <= due

    def _call_ends(self, at: int) -> Steps[bool]:
        """Return whether a closing tag comes `at` so many characters on, and no string goes on after it."""
        if not self._closers:
            return False
        text = yield from self._ahead(at + 1)
        while True:
            text = self._cur.buf[self._cur.pos : self._cur.pos + at + Cursor.AHEAD]
            rest = text[at:]
            if rest.startswith(self._closers):
                break
            if self._cur.ended or not any(closer.startswith(rest) for closer in self._closers):
                return False
            yield
        closer = next(closer for closer in self._closers if text.startswith(closer, at))
        text = yield from self._ahead(at + len(closer) + Cursor.AHEAD)
        rest = text[at + len(closer) :]
        if _NEXT_CALL.match(rest):
            return True
        return len(rest) < Cursor.AHEAD and not self._cur.cut and '"' not in rest and "'" not in rest


def repaired(text: str) -> str | None:
    """Return a text that is an object, with or without faults, as JSON."""
    cur, parts = Cursor(text.strip(), ended=True), list[str]()
    try:
        if cur.buf[:1] == "{":
            run_to_end(value(cur, parts.append, as_written=True))
    except NotACall:
        return None
    return "".join(parts) if parts and cur.pos == len(cur.buf) else None


def _call_follows(text: str, end: bool) -> bool | None:
    """Return whether another object of a list comes."""
    return True if _NEXT_OBJECT.match(text) else None if not end and _OBJECT_BEGUN.match(text) else False


def _key_follows(text: str, end: bool) -> bool | None:
    if _NEXT_KEY.match(text):
        return True
    if _KEY_BEGUN.match(text):
        return text[:1] in _QUOTES if end else None
    return False


def _escaped(text: str) -> str:
    """Return characters of a string in JSON."""
    if '"' in text:
        text = text.replace('"', '\\"')
    return _CONTROL.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _number(token: str) -> str | None:
    if JSON_NUMBER.fullmatch(token):
        return token
    try:
        return number(token)
    except NotACall:
        return None


def _nowhere(text: str) -> None:
    """Drop a comment."""
