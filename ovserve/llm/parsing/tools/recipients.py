"""Dialects of messages to recipients, where a message to a tool is a call.

Each message has a header that names its reader, in the harmony format (gptoss) and in onyx. Both dialects
read the whole answer, because the header defines the kind of a text: reasoning, answer or call. Special
tokens at the borders may be missing, because engines stop on them; an answer without any is all content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.dialect import Form, ToolDialect, attempt, call, header
from ovserve.llm.parsing.guide import Guide, tagged
from ovserve.llm.parsing.json_text import quote
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.xmlcall import calls

_MESSAGE, _START = "<|message|>", "<|start|>"
_TO = "to="
# Possible content of a truncated header: a few words and tokens, not a sentence.
_WORDS_OF_A_HEADER = re.compile(r"\s*+(?:(?>[\w.=:/-]+|<(?:\|\w*\|?>?)?)\s*+){1,9}+")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class FramedDialect(ToolDialect):
    framed = True
    starters: ClassVar[tuple[str, ...]]  # tokens that begin a header, at any position
    enders: ClassVar[tuple[str, ...]]  # tokens that end a message
    unframed: ClassVar[str] = ""  # a call that comes without any header begins with this
    # What a header holds, for one whose last token is missing. None: without that it is none.
    parts: ClassVar[re.Pattern[str] | None] = None

    def __init_subclass__(cls) -> None:
        cls.markup = (*cls.starters, *cls.enders)

    def __init__(self) -> None:
        self._stops = Markers(self.starters + self.enders)
        self._header_end = Markers((_MESSAGE, _START, *self.enders))

    def route(self, header: str, recipient: str, tools: Tools | None) -> tuple[str, str]:
        """Return the kind of a message, which is content, reasoning or call, and the name of its tool."""
        raise NotImplementedError

    def body(self, cur: Cursor, out: Output, tools: Tools, name: str, stops: Markers) -> Steps[None]:
        """Read the call in a message to `name`. Raises NotACall if there is none."""
        raise NotImplementedError

    def run(self, cur: Cursor, out: Output, tools: Tools | None, *, think: bool, inside: bool) -> Steps[None]:
        thought: Callable[[str], None] = out.reasoning if think else out.content
        if inside:
            out.begin_thinking(0)
            yield from self._text(cur, thought)
            out.end_thinking()
        elif self.unframed and tools is not None:
            mark = cur.mark()
            yield from cur.space()
            is_call = yield from cur.literal(self.unframed)
            cur.rollback(mark)
            if is_call:
                yield from attempt(cur, out, self.body(cur, out, tools, "", self._stops))
        while (yield from cur.peek()):
            mark, start = cur.mark(), cur.offset
            try:
                head = yield from self._header(cur)
            except NotACall as failure:
                cut_off = cur.cut and isinstance(failure, EndOfText)
                cur.rollback(mark)
                if cut_off and _WORDS_OF_A_HEADER.fullmatch(cur.buf, cur.pos):
                    out.cut()
                    cur.advance_all()
                    return
                yield from self._plain(cur, out)
                continue
            recipient = _RECIPIENT.search(head)
            kind, name = self.route(head, recipient[1] if recipient else "", tools)
            if kind != "call":
                cur.release(mark)
                out.new_message()
                if kind == "reasoning":
                    out.begin_thinking(start)
                yield from self._text(cur, thought if kind == "reasoning" else out.content)
                out.end_thinking()
                continue
            cur.sure = True
            body = self.body(cur, out, tools, name, self._stops) if tools is not None else None
            if body is not None and (yield from attempt(cur, out, body)):
                cur.release(mark)
                yield from self._rest(cur, out)
            elif cur.cut and cur.come == cur.offset:
                cur.release(mark)  # only the header arrived
            else:
                cur.rollback(mark)
                yield from self._raw(cur, out)

    def _header(self, cur: Cursor) -> Steps[str]:
        """Read a header, if one begins here; return its text."""
        yield from cur.space()
        begins = (*self.starters, _TO)
        first = yield from cur.either(begins)
        if not first:
            rest = cur.buf[cur.pos :]
            raise EndOfText if any(begin.startswith(rest) for begin in begins) else NotACall
        if first == _MESSAGE:
            return ""
        mark, text, marker, is_cut = cur.mark(), "", _START, False
        is_first = first == _START or cur.offset == len(first)
        try:
            while marker == _START and not text.strip():  # it may be doubled
                yield from cur.literal(_START)
                text, marker = yield from header(cur, self._header_end)
        except NotACall as failure:
            marker, is_cut = "", cur.cut and isinstance(failure, EndOfText)
        if marker == _MESSAGE:
            cur.advance(len(_MESSAGE))
            return first + text
        cur.rollback(mark)
        if is_cut and (cur.pos == len(cur.buf) or _WORDS_OF_A_HEADER.fullmatch(cur.buf, cur.pos)):
            raise EndOfText
        match = self.parts.match(cur.buf, cur.pos) if self.parts is not None and is_first else None
        if match is None or not (match["channel"] or match["to"] or marker in self.enders):
            raise NotACall
        return first + cur.advance(match.end() - cur.pos)

    def _text(self, cur: Cursor, sink: Callable[[str], None]) -> Steps[None]:
        """Read the text of a message and the token that ends it. A token that begins the next one is left."""
        stop = yield from cur.until(self._stops, sink)
        while stop == _MESSAGE:
            sink(cur.advance(len(stop)))
            stop = yield from cur.until(self._stops, sink)
        if stop in self.enders:
            cur.advance(len(stop))

    def _rest(self, cur: Cursor, out: Output) -> Steps[None]:
        """Read the rest of the message after a call, which may be cut inside a token."""
        if cur.cut:
            at, token = self._stops.find(cur.buf, cur.pos, ended=False)
            if token is None:
                out.content(cur.advance(at - cur.pos))
                cur.advance_all()
        yield from self._text(cur, out.content)

    def _plain(self, cur: Cursor, out: Output) -> Steps[None]:
        """Read text without a header, up to a token that may begin one."""
        stop = yield from cur.until(self._stops, out.content)
        if stop in self.enders:
            cur.advance(len(stop))
        elif stop:
            mark = cur.mark()
            try:
                yield from self._header(cur)
                cur.rollback(mark)
            except NotACall:
                cur.rollback(mark)
                out.content(cur.advance(len(stop)))

    def _raw(self, cur: Cursor, out: Output) -> Steps[None]:
        """Read a whole message as text, markup included."""
        out.new_message()
        stop = yield from cur.until(self._header_end, out.content)
        out.content(cur.advance(len(stop)))
        stop = yield from cur.until(self._stops, out.content)
        if stop in self.enders:
            out.content(cur.advance(len(stop)))


_CHANNEL = re.compile(r"<\|channel\|>\s*(analysis|commentary|final)")
_PREFIX = "functions."


class GptOss(FramedDialect):
    """The harmony format: messages with a channel, and a recipient where they are calls. OpenAI gpt-oss.

    Of the channels, analysis is reasoning, anything else is for the user. The recipient may stand in the
    role's header or in the channel's. Calls of built-in tools that the request did not offer (python,
    browser) are neither calls of this API nor for the user, so they count as reasoning. Models leave out the
    token between header and text, and join a tool's name with the type of its arguments.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/gptoss/harmony.cpp
    """

    name = "gptoss"
    starters = ("<|start|>", "<|channel|>", "<|message|>")
    enders = ("<|end|>", "<|return|>", "<|call|>")
    parts = re.compile(
        r"(?:\s*(?:assistant|<\|channel\|>|(?P<channel>analysis|commentary|final)|to=(?P<to>[\w.:/-]{1,128})"
        r"|<\|constrain\|>\s*\w{0,16}|(?:json|code)\b)){0,8}\s*"
    )
    guide = Guide(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "",
        trigger="<|channel|>commentary to=functions.",
        single=True,
    )
    template_marks = ("<|channel|>",)

    def route(self, header: str, recipient: str, tools: Tools | None) -> tuple[str, str]:
        name = recipient.removeprefix(_PREFIX)
        if tools is not None and name.removesuffix("json") in tools:
            name = name if name in tools else name.removesuffix("json")
        if name and (name != recipient or (tools is not None and name in tools)):
            return "call", name
        channels = _CHANNEL.findall(header)
        to_tool = recipient not in ("", "user", "assistant")
        return "reasoning" if to_tool or "analysis" in channels[-1:] else "content", ""

    def body(self, cur: Cursor, out: Output, tools: Tools, name: str, stops: Markers) -> Steps[None]:
        yield from call(cur, out, name, stops)


_OPEN = "<atem:function_calls>"
_FORM = Form(
    call='<atem:invoke name="',
    call_end="</atem:invoke>",
    parameter='<atem:parameter name="',
    parameter_end="</atem:parameter>",
    closers=("</atem:function_calls>",),
    trim=False,
)


class Onyx(FramedDialect):
    """Messages to recipients; a call is a message to a tool, in `<atem:...>` tags.

    `to=self` is reasoning, `to=user` the answer. Markup quoted in those is text; prose before the call in a
    message to a tool is content. Values are typed like qwen3coder's but keep their newlines.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/onyx/onyx_tool_parser.cpp
    """

    name = "onyx"
    starters = ("<|start|>", "<|message|>")
    enders = ("<|eom|>", "<|eot|>")
    inner = _FORM.tags
    unframed = _OPEN
    guide = Guide(
        ' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
        "</atem:invoke>\n</atem:function_calls>",
        single=True,
        inside=('<atem:invoke name="NAME">\n',),
        arguments=tagged('<atem:parameter name="NAME">', "</atem:parameter>\n", without=_FORM.ambiguous),
    )
    template_marks = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")

    def route(self, header: str, recipient: str, tools: Tools | None) -> tuple[str, str]:
        if recipient == "self":
            return "reasoning", ""
        return "content" if recipient in ("", "user") else "call", recipient

    def body(self, cur: Cursor, out: Output, tools: Tools, name: str, stops: Markers) -> Steps[None]:
        prose: list[str] = []
        marker = yield from cur.until(Markers((_OPEN, _FORM.call, *stops.strings)), prose.append)
        if not marker:
            raise EndOfText
        if marker in stops.strings:
            raise NotACall
        yield from cur.literal(_OPEN)
        yield from calls(cur, out, tools, _FORM)
        out.content("".join(prose).strip())


_NEXT, _EVERYBODY = ">>>", "all"
_NEXTS = Markers((_NEXT,))
_NAME = re.compile(r"[\w.\-]+")


class FunctionaryV32(ToolDialect):
    """functionary_v32: messages `>>>f`, a line end and the arguments; `>>>all` is for the user.

    Functionary 3.2 on Llama 3. The prompt ends with the first `>>>`. Code for a tool with one parameter comes
    without JSON. `>>>` before other text than a recipient, as Python's prompt, is text.

    Source: read 2026-11-30, the models' chat template, as
    https://github.com/ye-NX/llama.cpp/blob/b354d7c9ecb7/models/templates/meetkai-functionary-medium-v3.2.jinja
    """

    name = "functionary_v32"
    framed = True
    markup = (_NEXT,)
    guide = Guide("NAME\n", "", separator=_NEXT, inside=("NAME\n",))
    template_marks = (">>>all",)

    def run(self, cur: Cursor, out: Output, tools: Tools | None, *, think: bool, inside: bool) -> Steps[None]:
        marked = False  # the prompt has the mark of the first header
        while True:
            mark = cur.mark()
            name = yield from _recipient(cur, tools, marked)
            (cur.release if name else cur.rollback)(mark)
            if name == _EVERYBODY:
                out.new_message()
            elif name and tools is not None:
                yield from attempt(cur, out, _message(cur, out, tools, name))
                yield from cur.space()
            yield from _text(cur, out.content, tools)
            if not (yield from cur.peek()):
                return
            marked = True


def _text(cur: Cursor, sink: Callable[[str], None], tools: Tools | None) -> Steps[None]:
    """Read text up to the header of a message, which is left."""
    while (yield from cur.until(_NEXTS, sink)):
        mark = cur.mark()
        name = yield from _recipient(cur, tools, True)
        cur.rollback(mark)
        if name:
            return
        sink(cur.advance(len(_NEXT)))


def _recipient(cur: Cursor, tools: Tools | None, marked: bool) -> Steps[str]:
    """Read the line that names whom a message is for; return "" if there is none."""
    if not (yield from cur.literal(_NEXT)) and marked:
        return ""
    name = yield from cur.matching(_NAME)
    is_tool = tools is not None and name in tools
    if not (yield from cur.literal("\n")):
        is_cut = cur.cut and (yield from cur.peek()) == ""
        return _EVERYBODY if is_cut and (marked or is_tool or name == _EVERYBODY) else ""
    if name == _EVERYBODY or is_tool:
        return name
    return name if tools is not None and not tools.lacks(name) and (yield from cur.peek()) == "{" else ""


def _message(cur: Cursor, out: Output, tools: Tools, name: str) -> Steps[None]:
    """Read the arguments of a call, which are JSON, or code if the tool takes that alone."""
    parameters = list(tools.parameters(name))
    if (yield from cur.peek()) == "{" or len(parameters) != 1:
        yield from call(cur, out, name, _NEXTS)
        return
    out.start_call(name)
    out.arguments(f'{{{quote(parameters[0])}: "')
    yield from _text(cur, lambda text: out.arguments(quote(text)[1:-1]), tools)
    if cur.cut:
        raise EndOfText
    out.arguments('"}')
    out.end_call()
