"""The two base classes of dialects, and the backtracking attempt that they share.

A tool dialect is a file in `tools/`, a reasoning dialect a row in `reasoning.py`.
A dialect holds no state of an answer: one instance serves all.
"""

# ruff: noqa: RUF001 - the bars are DeepSeek's own characters
from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.guide import Guide
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.loose_json import value
from ovserve.llm.parsing.output import Output

# Ends of calls, of any dialect, that models write after a call that has ended.
STRAY = (
    *("</tool_call>", "</tool_calls>", "</function>", "</function_call>", "</function_calls>", "</_call>"),
    *("</function_invocation>", "</parameter>", "</invoke>", "</arg_value>", "</tools>"),
    *("</minimax:tool_call>", "</seed:tool_call>", "<|tool_calls_section_end|>", "<|tool_call_end|>"),
    *("<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"),
)


class ToolDialect:
    """The format in which a model writes tool calls."""

    name: ClassVar[str]
    # A call may start with any of these, anywhere in the text.
    markers: ClassVar[tuple[str, ...]] = ()
    # Those markers that may also occur in plain text.
    plain: ClassVar[tuple[str, ...]] = ()
    # A call may also be the very start of the answer without a marker; this is its first character.
    bare: ClassVar[str] = ""
    # Texts within calls with special tokens that stand neither in a marker nor in the guide.
    inner: ClassVar[tuple[str, ...]] = ()
    # Special tokens that belong to no construct; erased at the edges of the answer and next to calls.
    erase: ClassVar[tuple[str, ...]] = ()
    # True: the dialect frames the whole answer, reasoning included, and reads it in `run`.
    framed: ClassVar[bool] = False
    # Framed dialects only: the tokens around their messages.
    markup: ClassVar[tuple[str, ...]] = ()
    # How a call is written, to force one. None: `tool_choice: required` is rejected.
    guide: ClassVar[Guide | None] = None

    # Parts of the names of models that write this dialect although their template shows the one it extends.
    models: ClassVar[tuple[str, ...]] = ()
    # Texts that all stand in a chat template that is written for this dialect.
    template_marks: ClassVar[tuple[str, ...]] = ()

    def matches(self, template: str) -> bool:
        """Return whether a chat template is written for this dialect. The registry calls it in its own
        order."""
        return bool(self.template_marks) and all(mark in template for mark in self.template_marks)

    def texts(self) -> tuple[str, ...]:
        """The texts whose special tokens the dialect reads."""
        guide = () if self.guide is None else (self.guide.begin, self.guide.end, *self.guide.block)
        return (*self.markers, *self.inner, *self.markup, *guide)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        """Read one construct, which begins at the cursor with a marker (or `bare`), reporting its calls.

        Raises NotACall if it is not a call; the scanner then goes back and reports it as text.
        Calls that have already ended stay, and their text is not read again. Without a
        marker, only an object that names one of `tools` is a call: any other JSON is an answer.
        """
        raise NotImplementedError

    def run(self, cur: Cursor, out: Output, tools: Tools | None, *, think: bool, inside: bool) -> Steps[None]:
        """Read the whole answer (framed dialects only). `tools` None: calls stay text.

        `think`: reasoning is reported as such, else as content. `inside`: the prompt ended inside the
        reasoning.
        """
        raise NotImplementedError


class ReasoningDialect:
    """The format in which a model marks its reasoning: text between one of `starts` and the first of
    `ends`."""

    name: ClassVar[str]
    starts: ClassVar[tuple[str, ...]] = ("<think>",)
    ends: ClassVar[tuple[str, ...]] = ("</think>",)
    # The answer always begins inside the reasoning, whatever the prompt is.
    always: ClassVar[bool] = False
    # The model may omit the start even if the prompt has none: an end without a start means that
    # all text before it was reasoning. A stream has already sent that as content by then.
    start_optional: ClassVar[bool] = False
    # A word after the start that is part of the tag when a newline or the end follows.
    label: ClassVar[str] = ""
    # A tag that a prompt may open inside the reasoning.
    inner: ClassVar[str] = ""
    # Tags around the answer proper.
    erase: ClassVar[tuple[str, ...]] = ()
    # True: the tool dialect of this name reads the whole answer.
    framed: ClassVar[bool] = False
    # For forced answers: the text after the reasoning, and before an answer in a format.
    after: ClassVar[str] = ""
    answer: ClassVar[str] = ""
    # Texts that would begin another construct inside the reasoning; a grammar excludes them.
    foreign: ClassVar[tuple[str, ...]] = ()

    def matches(self, template: str) -> bool:
        return False

    def implicit(self, prompt: str) -> bool:
        """Return whether this rendered prompt ends inside the reasoning. It is trimmed, because templates add
        newlines."""
        prompt = prompt.rstrip().removesuffix(self.inner).rstrip()
        return any(prompt.endswith((start + self.label).rstrip()) for start in self.starts)

    def begun(self, prefill: str) -> bool:
        """Return whether an answer that begins with this text is inside the reasoning where the text ends."""
        text = prefill.lstrip()
        return text.startswith(self.starts) and not any(end in text for end in self.ends)

    def closed(self, prompt: str) -> bool:
        """Return whether this rendered prompt closes the reasoning, so that the answer holds no end of it."""
        return prompt.rstrip().endswith(self.ends)


D = TypeVar("D", bound=ToolDialect | ReasoningDialect)
Sign = Callable[[str], bool]  # whether a chat template shows a dialect


def row(base: type[D], name: str, sign: Sign | None, **fields: object) -> type[D]:
    """Make a dialect of its fields. `sign` None: it is chosen by name only."""

    def matches(self: D, template: str) -> bool:
        return sign is not None and sign(template)

    own = {field for cls in base.__mro__ for field in (*vars(cls), *getattr(cls, "__annotations__", ()))}
    assert fields.keys() <= own, f"{name}: a dialect has no {', '.join(fields.keys() - own)}"
    return type(name, (base,), {"name": name, "matches": matches, **fields})


def all_of(*texts: str | Sign) -> Sign:
    """Return the sign that is each of these texts and signs."""
    return lambda template: all(text(template) if callable(text) else text in template for text in texts)


def any_of(*texts: str) -> Sign:
    return lambda template: any(text in template for text in texts)


def attempt(cur: Cursor, out: Output, steps: Steps[None]) -> Steps[bool]:
    """Read a construct; if it is not one, retract its open call, go back to its start and return False.

    If it had calls before it failed, it goes back to the end of the last one and counts as a construct.
    When a token limit or a stop string cut the answer inside a call, the part of an announced call stays,
    and the beginning of another is dropped: it is markup, not text for the user.
    """
    mark, start = cur.mark(), cur.offset
    try:
        yield from steps
    except NotACall as failure:
        begun = out.call_open or (cur.sure and cur.come > start)
        if isinstance(failure, EndOfText) and cur.cut and begun:
            out.cut()
            cur.advance_all()
            cur.release(mark)
            return True
        out.break_call()
        cur.rollback(mark)
        spent = out.committed - start
        if spent <= 0:
            return False
        cur.advance(spent)
        return True
    cur.release(mark)
    return True


# Calls in tags, one for each parameter, which `xmlcall.py` reads.


CDATA = "<![CDATA["
GAP_CHARACTERS = " \n\t\r"  # between two tags of a call


class Form(msgspec.Struct, frozen=True):
    """The spelling. An opening tag is its prefix, a name (in quotes if `quoted`) and `tag_end`."""

    call: str
    call_end: str
    parameter: str
    parameter_end: str
    openers: tuple[str, ...] = ()  # of the block around the calls
    closers: tuple[str, ...] = ()
    quoted: bool = True
    trim: bool = True  # one newline next to each tag belongs to the format
    cdata: bool = False
    tag_end: str = ">"
    value: str = ""  # a tag of its own before the value, which models leave out now and then
    name_ends: tuple[str, ...] = ()  # what follows the name of a call, if that is not in its tag
    escapes: tuple[tuple[str, str], ...] = ()  # of a quoted name, and what each stands for
    # Wrong spellings of `call` and `parameter`, and the right ones. Only what names a tool of the request, or
    # a parameter of it that has no value yet, is one.
    variants: tuple[tuple[str, str], ...] = ()

    def meaning(self, tag: str) -> str:
        return dict(self.variants).get(tag, tag)

    def spellings(self, tag: str) -> tuple[str, ...]:
        """Return all spellings of a tag."""
        return (tag, *(variant for variant, right in self.variants if right == tag))

    @property
    def broken_end(self) -> re.Pattern[str]:
        """Return what models write in place of a value's closing tag: without ">", with more in it, or GLM's
        end of a key."""
        other = rf"|{re.escape(self.tag_end)}" if self.value else ""
        return re.compile(rf"(?:{re.escape(self.parameter_end[:-1])}[\w/]*+>?{other})\s*\Z")

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the tags that open something."""
        return (*self.spellings(self.parameter), *self.spellings(self.call), *self.openers)

    @property
    def ends(self) -> tuple[str, ...]:
        return (self.call_end, *self.closers)

    @property
    def inner(self) -> tuple[str, ...]:
        """Return the tags that may follow the name of a call."""
        return (*self.spellings(self.parameter), *self.ends)

    @property
    def ambiguous(self) -> tuple[str, ...]:
        """Return what a grammar excludes from values, because what follows could make it the end of one."""
        ends = [end + after for end in (self.parameter_end, *self.ends) for after in f"<{GAP_CHARACTERS}"]
        own = [CDATA] if self.cdata else [self.tag_end] if self.value else []
        return (self.parameter, *ends, *own)

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.inner, self.parameter_end, *self.spellings(self.call), *self.openers)


# Calls with a marker between name and arguments: `[TOOL_CALLS]f[ARGS]{...}` and similar.
#
# Devstral, mistral, kimi_k2, the deepseek family, functionary and gptoss write them. The marker makes the
# name certain, so the arguments are passed on as written even if they are not JSON: the client sees them
# and can answer with an error that the model understands.


_NAME = re.compile(r"[^\s<>{}\[\]()\"'`,;=|]+")
_MAX_HEADER = 512


def good_name(name: str) -> bool:
    """Return whether this can be a function's name; prose after a marker is not."""
    return _NAME.fullmatch(name) is not None


def header(cur: Cursor, markers: Markers) -> Steps[tuple[str, str]]:
    """Read up to a marker and return (text before, marker). Raises NotACall if it is too far away."""
    parts: list[str] = []
    marker = yield from cur.until(markers, parts.append, _MAX_HEADER)
    if not marker:
        raise EndOfText
    return "".join(parts), marker


def arguments(cur: Cursor, sink: Callable[[str], object], closers: Markers) -> Steps[None]:
    """Read a call's arguments up to a closer (not read), or to the end of the text.

    Text that is not JSON is passed on unchanged, up to the closer. Between complete JSON and the closer only
    white space is expected; other text is left unread.
    """
    yield from cur.space()
    char = yield from cur.peek()
    wrote = False

    def pass_on(text: str) -> None:
        nonlocal wrote
        wrote = wrote or bool(text)
        sink(text)

    if char == "{":
        try:
            yield from value(cur, pass_on, closers, as_written=True)
            return
        except EndOfText:
            if cur.cut:
                raise
            return
        except NotACall:
            pass
    held: list[str] = []  # white space before the closer is not part of the arguments

    def collect(text: str) -> None:
        body = text.rstrip()
        if body:
            pass_on("".join(held) + body)
            held.clear()
        if len(body) < len(text):
            held.append(text[len(body) :])

    marker = yield from cur.until(closers, collect)
    if not marker and cur.cut:
        raise EndOfText
    if not wrote:
        sink("{}")


def call(cur: Cursor, out: Output, name: str, closers: Markers, *, id: str | None = None) -> Steps[None]:
    """Read one call from its arguments on; its closer is left unread."""
    if not good_name(name):
        raise NotACall
    out.start_call(name, id)
    yield from arguments(cur, out.arguments, closers)
    out.end_call()
