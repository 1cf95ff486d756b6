"""Dialects that write calls as Python: `[f(a=1), g()]`.

Each call is sent when it is complete, because its arguments are converted to JSON. A broken call does not
affect its siblings.
"""

from __future__ import annotations

import re
from functools import partial

from ovserve.llm.parsing.cursor import Cursor, Markers, NotACall, Steps
from ovserve.llm.parsing.dialect import ToolDialect, attempt
from ovserve.llm.parsing.guide import Guide, listed
from ovserve.llm.parsing.json_call import block, marked_keys, read_list, unmarked
from ovserve.llm.parsing.json_text import quote
from ovserve.llm.parsing.literal import Tools, literal
from ovserve.llm.parsing.output import Output

_NAME = re.compile(r"[\w.\-]+")
_KEY = re.compile(r"[^=,:()\[\]{}'\"<>|\n]+")  # schemas have other names than Python, such as `$filter`
_MAX_NAME = 256


# After a quote: a comma and a key, or the bracket that ends the call. Behind that stands another call or a
# tag; after other text, a quote would show that this one is inside of the string.
_ARGUMENT_ENDS = re.compile(
    r"""(['"])\s*(?:\Z|,\s*(?:(?P<key>[^=,:()\[\]{}'"<>|\n]{1,128})(?:=|\Z)|\)|\Z)"""
    r"""|\)\s*(?:[\],;]|(?P<call>[\w.\-]{1,128})\(|(?:(?!\1)[^<])*(?:<|\Z)))"""
)


def argument_ends(tools: Tools, name: str, quotes: int, text: str, end: bool) -> bool | None:
    """Return whether a quote ends an argument of a call of this name, by the text from the quote on.

    Models write quotes in strings without a backslash, mostly in pairs. So behind an odd number of them only
    a parameter of the tool is the next argument.
    """
    match = _ARGUMENT_ENDS.match(text)
    if match is None or (match.end() == len(text) and not end):
        return None if match else False
    key, call, parameters = match["key"], match["call"], tools.parameters(name)
    is_other = key and parameters and key.rstrip() not in parameters and quotes % 2
    return not (is_other or (call and tools.lacks(call)))


def call(cur: Cursor, out: Output, tools: Tools, *, strict: bool, method: str = "") -> Steps[None]:
    """Read one call, `name(key=literal, ...)`; of these tools if `strict`. `method`: follows the name."""
    name = yield from cur.matching(_NAME, _MAX_NAME)
    if not name:
        raise cur.failure()
    if not (name[0].isalpha() or name[0] == "_") or not name.endswith(method):
        raise NotACall
    name = name.removesuffix(method)
    yield from cur.space()
    yield from cur.expect("(")
    if strict:
        if name not in tools:
            raise NotACall
        cur.sure = True
    arguments: dict[str, str] = {}
    ends = partial(argument_ends, tools, name)
    while True:
        yield from cur.space()
        if (yield from cur.literal(")")):
            break
        key = yield from cur.matching(_KEY, _MAX_NAME)
        if not key:
            raise cur.failure()
        yield from cur.expect("=")
        arguments[key.rstrip()] = yield from literal(cur, ends=ends)
        yield from cur.space()
        if (yield from cur.peek()) != ")":
            yield from cur.expect(",")
    out.start_call(name)
    out.arguments("{" + ", ".join(f"{quote(key)}: {value}" for key, value in arguments.items()) + "}")
    out.end_call()


def bracketed(cur: Cursor, out: Output, tools: Tools, *, strict: bool) -> Steps[None]:
    """Read `[call, call]`. `strict`: without a marker, anything but a call of these tools makes it text."""
    yield from read_list(cur, out, lambda: call(cur, out, tools, strict=strict), strict=strict)


def _calls(cur: Cursor, out: Output, tools: Tools, close: str) -> Steps[None]:
    """Read calls between tokens, as Python or JSON; without the tokens if `close` is empty."""
    yield from cur.space()
    mark = cur.mark()
    char = yield from cur.peek()
    yield from cur.literal("[")
    yield from cur.space()
    is_json = (yield from cur.peek()) == "{"
    cur.rollback(mark)
    if is_json:
        keys = marked_keys(tools) if close else unmarked(tools)
        yield from block(cur, out, keys, closers=(close,) if close else ())
    elif char == "[" or not close:
        yield from bracketed(cur, out, tools, strict=not close)
        yield from cur.close(close)
    else:
        yield from sequence(cur, out, tools, close)


def sequence(cur: Cursor, out: Output, tools: Tools, end: str) -> Steps[None]:
    """Read calls without brackets, separated by white space, commas or semicolons, and the end tag.

    Other text after a good call is dropped up to the end tag, and is content without an end tag.
    """
    good = 0
    rest: list[str] = []
    ends = Markers((end,))
    while True:
        yield from cur.space()
        if (yield from cur.either((",", ";"))):
            continue
        if (yield from cur.close(end)):
            break
        if (yield from attempt(cur, out, call(cur, out, tools, strict=False))):
            good += 1
        elif not good:
            raise cur.failure()
        elif not (yield from cur.until(ends, rest.append)):
            out.content("".join(rest))
            return
    if not good:
        raise NotACall


_OPEN, _CLOSE = "<|python_start|>", "<|python_end|>"


class Pythonic(ToolDialect):
    """The answer is `[f(a=1), g()]`. Llama 3.2 1B/3B, ToolACE; Llama 4 in `<|python_start|>`.

    Without that token a call must name a tool of the request. Some checkpoints write JSON
    (https://github.com/vllm-project/vllm/pull/46890).

    Source: read 2026-11-22,
    https://github.com/sgl-project/sglang/blob/0813438c0321/python/sglang/srt/function_call/pythonic_detector.py
    """

    name = "pythonic"
    markers = (_OPEN,)
    inner = (_CLOSE,)
    bare = "[{"
    erase = ("<|eom|>", "<|eot|>", "<|eom_id|>", "<|eot_id|>")
    guide = Guide(
        "NAME(",
        ")",
        separator=", ",
        block=("[", "]"),
        inside=("[NAME(", ", NAME("),
        arguments=listed("NAME=", ", "),
    )
    template_marks = (_OPEN,)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tagged = yield from cur.literal(_OPEN)
        yield from _calls(cur, out, tools, _CLOSE if tagged else "")


_OLMO_OPEN, _OLMO_CLOSE = "<function_calls>", "</function_calls>"


class Olmo3(ToolDialect):
    """Calls as Python, one a line, in `<function_calls>`. AI2 Olmo 3.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/2ca253f2ef2f/vllm/entrypoints/openai/tool_parsers/olmo3_tool_parser.py
    """

    name = "olmo3"
    markers = (_OLMO_OPEN,)
    erase = ("<|im_end|>", "<|endoftext|>")
    guide = Guide(
        "NAME(",
        ")",
        separator="\n",
        block=("<function_calls>\n", "\n</function_calls>"),
        trigger="<function_calls>",
        arguments=listed("NAME=", ", "),
    )
    template_marks = (_OLMO_OPEN,)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OLMO_OPEN)
        if (yield from cur.close(_OLMO_CLOSE)):
            return
        yield from _calls(cur, out, tools, _OLMO_CLOSE)


_LFM_OPEN, _LFM_CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


class Lfm2(ToolDialect):
    """`<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>`. Liquid LFM2 and LFM2.5.

    Some fine-tunes leave the brackets out or write JSON between the tokens. LFM2.5 also leaves out the tokens
    (https://github.com/ggml-org/llama.cpp/pull/24071): then a call must name a tool of the request.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/lfm2/lfm2_tool_parser.cpp
    """

    name = "lfm2"
    markers = (_LFM_OPEN,)
    bare = "["
    erase = ("<|im_end|>",)
    guide = Guide(
        "NAME(",
        ")",
        separator=", ",
        block=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        trigger="<|tool_call_start|>",
        arguments=listed("NAME=", ", "),
    )

    def matches(self, template: str) -> bool:
        lists = ("<|tool_list_start|>", "<|tool_response_start|>")  # LFM2's own template has no calls
        others = ("<|assistant_tool_call|>", _LFM_OPEN, "keep_past_thinking")
        return any(text in template for text in lists + others)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tagged = yield from cur.literal(_LFM_OPEN)
        if not (tagged and (yield from cur.close(_LFM_CLOSE))):
            yield from _calls(cur, out, tools, _LFM_CLOSE if tagged else "")
