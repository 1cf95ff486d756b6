"""TextFilter: ends the answer where the model writes what is not allowed.

    @calculator("NoRecipesCalculator")
    class NoRecipes(TextFilter):
        pattern = re.compile(r"preheat the oven", re.IGNORECASE)
        message = "I do not give recipes."

| port | type | |
|---|---|---|
| input `GENERATE` | `GenerateRequest` | how many choices there are |
| input `PARSED` | `Parsed` | from OutputParser |
| output `PARSED` | `Parsed` | |

In a stream the text before a match has been sent; `window` characters are held back, so nothing of the match
itself has. Then comes `message`, and the choice ends with the finish reason `content_filter`. With
`whole = True` nothing is sent before the answer is complete, and a match leaves `message` alone. Arguments of
tool calls are held until the call is complete, and log-probabilities until the choice is. A match counts as
the node's event `filtered`. When every choice has ended the model is stopped.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, calculator
from ovserve.llm.output import Content, Parsed, Part, Reasoning, ToolCallDelta, with_top
from ovserve.llm.request import GenerateRequest, TokenLogprob


class Matcher(Calculator):
    """Looks for matches in an answer. A node that could not match anything fails instead of letting all pass.

    Known by the class alone it is a load error. What `open` sets is checked in each request.
    """

    pattern: re.Pattern[str] | None = None
    window: int = 64  # characters; at least as long as a match with what the pattern looks at around it

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        if fault := cls.fault(cls, opened=cls.open is Calculator.open):
            raise node.error(fault, "calculator")
        return super().get_contract(node)

    @classmethod
    def needs_pattern(cls) -> bool:
        """Return whether the matches are those of `pattern`."""
        return True

    @classmethod
    def fault(cls, node: Matcher | type[Matcher], opened: bool) -> str:
        """Return why `node`, a calculator or its class, cannot match anything; "" if it can.

        `opened`: no `open` will set the pattern any more.
        """
        if opened and node.pattern is None and cls.needs_pattern():
            return f"{cls.__name__} has no pattern: set it in the class or in open()"
        if not isinstance(node.window, int) or node.window < 1:
            return f"{cls.__name__}.window: expected at least 1 character, got {node.window!r}"
        return ""

    def check(self) -> None:
        """Raise ValueError if nothing would be matched."""
        if fault := self.fault(self, opened=True):
            raise ValueError(fault)


CONTENT_FILTER = "content_filter"


class TextFilter(Matcher):
    """Base of filters. Set `pattern`, or override `find`."""

    message: str = ""
    whole: bool = False

    request = Input("GENERATE", GenerateRequest)
    parsed = Input("PARSED", Parsed)
    filtered = Output("PARSED", Parsed)

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._open: set[int] = set()

    @classmethod
    def needs_pattern(cls) -> bool:
        return cls.find is TextFilter.find

    def find(self, text: str) -> bool:
        """Return whether the text holds what is not allowed: the last two windows of it, and what is new."""
        assert self.pattern is not None
        return self.pattern.search(text) is not None

    def process(self, cc: Context) -> None:
        request, parsed = cc[self.request], cc[self.parsed]
        if request is not None:
            self._open = set(range(request.choices))
        if parsed is None:
            return
        if parsed.index not in self._choices:
            self.check()
            self._choices[parsed.index] = _Choice(self)
        choice = self._choices[parsed.index]
        if choice.ended:
            parts: tuple[Part, ...] = ()
            parsed = msgspec.structs.replace(parsed, parts=parts, logprobs=None, finish_reason=None)
        else:
            parsed = choice.feed(cc, parsed)
        if parsed.finish_reason is not None:
            self._open.discard(parsed.index)
            if not self._open:
                parsed = msgspec.structs.replace(parsed, last=True)
        cc.send(self.filtered, parsed)
        if parsed.last:
            cc.finish()


class _Choice:
    """One choice: the packets' parts that are held back, oldest first, and the text for matches."""

    def __init__(self, node: TextFilter) -> None:
        self._node = node
        self._held: list[Part] = []
        self._text = ""  # of what is held, with as much before it as a match may need
        self._kind: type[Part] | None = None
        self._tokens: list[TokenLogprob] = []  # shown when it is certain that they may be
        self.ended = False

    def feed(self, cc: Context, parsed: Parsed) -> Parsed:
        for part in parsed.parts:
            text = _text_of(part)
            if text is not None:
                if type(part) is not self._kind:
                    self._text, self._kind = "", type(part)
                self._text += text
                if self._node.find(self._text):
                    return self._end(cc, parsed)
            self._held.append(part)
        final = parsed.finish_reason is not None
        out = self._released(final)
        self._text = self._text[-2 * self._node.window :]
        self._tokens += with_top(parsed.logprobs or [], lambda text: not self._node.find(text))
        logprobs = self._tokens or None if final else None
        return msgspec.structs.replace(parsed, parts=tuple(out), logprobs=logprobs)

    def _end(self, cc: Context, parsed: Parsed) -> Parsed:
        cc.count("filtered")
        self.ended = True
        message = self._node.message
        parts: tuple[Part, ...] = (Content(message),) if message else ()
        return msgspec.structs.replace(parsed, parts=parts, logprobs=None, finish_reason=CONTENT_FILTER)

    def _released(self, final: bool) -> list[Part]:
        """Return the parts that no match can reach any more."""
        if final:
            out, self._held = self._held, []
            return out
        if self._node.whole:
            return []
        out, remaining = [], self._node.window
        held_back: list[Part] = []
        for part in reversed(self._held):
            text = _text_of(part) or ""
            if remaining > 0 or (isinstance(part, ToolCallDelta) and self._kind is ToolCallDelta):
                cut = len(text) - remaining
                if isinstance(part, Content | Reasoning) and cut > 0:
                    out.append(type(part)(text[:cut]))
                    part = type(part)(text[cut:])
                held_back.append(part)
                remaining -= len(text)
            else:
                out.append(part)
        self._held = held_back[::-1]
        return out[::-1]


def _text_of(part: Part) -> str | None:
    match part:
        case Content(text) | Reasoning(text):
            return text
        case ToolCallDelta(_, _, _, arguments):
            return arguments
    return None


class TextFilterOptions(msgspec.Struct, frozen=True):
    """Patterns in the syntax of Python's `re`."""

    patterns: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    message: str = "The answer was withheld."
    ignore_case: bool = True
    whole: bool = False
    window: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            compiled(pattern)


@calculator("TextFilterCalculator")
class PatternFilter(TextFilter):
    """A filter whose patterns are in the graph."""

    options_type = TextFilterOptions

    def open(self, cc: Context) -> None:
        options = cc.options(TextFilterOptions)
        flags = re.IGNORECASE if options.ignore_case else re.NOFLAG
        self.pattern = re.compile("|".join([f"(?:{p})" for p in options.patterns]), flags)
        self.message, self.whole, self.window = options.message, options.whole, options.window


def compiled(pattern: str) -> re.Pattern[str]:
    """Raises ValueError for a pattern that is not one, or that matches nothing at all everywhere."""
    try:
        regex = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern {pattern!r}: {error}") from None
    if regex.fullmatch(""):
        raise ValueError(f"pattern {pattern!r} also matches empty text")
    return regex
