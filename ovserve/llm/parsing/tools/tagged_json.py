"""Dialects that put JSON calls between two tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import msgspec

from ovserve.llm.parsing import json_call
from ovserve.llm.parsing.cursor import Cursor, EndOfText, NotACall, Steps, markers_of
from ovserve.llm.parsing.dialect import ToolDialect, all_of, any_of, attempt, row
from ovserve.llm.parsing.guide import Guide, json_list
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.loose_json import string, value
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.tools import pythonic
from ovserve.llm.parsing.tools.tagged_xml import FUNCTION, function


class TaggedJson(ToolDialect):
    tags: ClassVar[dict[str, tuple[str, ...]]]  # opening tag to the closing tags it may have
    keys: ClassVar[json_call.Keys] = json_call.MARKED
    forms: ClassVar[dict[str, str]] = {}  # what may follow an opening tag, if not both object and list

    def __init_subclass__(cls) -> None:
        tags = getattr(cls, "tags", {})
        cls.markers, cls.inner = tuple(tags), tuple(end for ends in tags.values() for end in ends)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tag = yield from cur.either(self.markers)
        if not tag:
            raise NotACall
        yield from cur.close(tag)  # models open a block twice now and then
        ends = self.tags[tag]
        stops = markers_of(frozenset((*ends, tag) if ends else ()))
        keys = msgspec.structs.replace(self.keys, closers=stops, parameters=tools.parameters)
        yield from braced(cur, out, keys, ends, self.forms.get(tag, "{["))


def braced(
    cur: Cursor, out: Output, keys: json_call.Keys, closers: Sequence[str], forms: str = "{["
) -> Steps[None]:
    """Read a block, perhaps with one more pair of braces around the call."""
    yield from cur.space()
    if "{" in forms and (yield from cur.next_of(("{{",))):
        cur.advance(1)
        ends = keys.closers or markers_of(frozenset(closers))
        yield from json_call.block(cur, out, msgspec.structs.replace(keys, closers=ends, outer=2))
        yield from cur.close("}")
        yield from cur.close(*closers)
    else:
        yield from json_call.block(cur, out, keys, closers=tuple(closers), forms=forms)


_CALL_TAGS = (
    "<|message_sep|>\n\nfunction call<|role_sep|>",
    "<|message_sep|>function call<|role_sep|>",
    "function call<|role_sep|>",
    "<|function_call|>",
)
_GIGACHAT = dict.fromkeys(_CALL_TAGS, ("<|message_sep|>",))
_LIST, _LIST_GUIDE = {"<tool_calls>": ("</tool_calls>",)}, json_list("<tool_calls>", "</tool_calls>")
_OBJECT: dict[str, tuple[str, ...]] = {"<tool_call>": ("</tool_call>",)}
_OBJECT_GUIDE = Guide(
    '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", separator="\n", trigger="<tool_call>"
)
_row = partial(row, TaggedJson)


# Dialects that differ in tags and keys only, in the order of detection. Sources: read 2026-11-22, others at
# the row.
ROWS: tuple[type[TaggedJson], ...] = (
    # InternLM 2 and 3. The interpreter's variant carries code, not calls, and stays text.
    # https://github.com/sgl-project/sglang/blob/0c50dc90ffc6/python/sglang/srt/function_call/internlm_detector.py
    _row(
        "internlm",
        all_of("<|action_start|>"),
        tags={f"<|action_start|>{gap}<|plugin|>": ("<|action_end|>",) for gap in ("", " ", "\n")},
        erase=("<|im_end|>",),
        guide=Guide(
            '<|action_start|><|plugin|>{"name": "NAME", "parameters": ',
            "}<|action_end|>",
            separator="\n",
            trigger="<|action_start|>",
        ),
    ),
    # Sber GigaChat 3.1 and 3: one object, after a token or in a message of the role `function call`. Tokens
    # hold the newlines after them. Sources: read 2026-11-30,
    # https://github.com/ggml-org/llama.cpp/blob/6f9ffbd9dba6/models/templates/GigaChat3-10B-A1.8B.jinja;
    # https://github.com/vllm-project/vllm/pull/36664 (both versions)
    *(
        _row(
            name,
            all_of("<|role_sep|>", "<|message_sep|>", mark),
            tags=_GIGACHAT,
            erase=("<|message_sep|>", "</s>"),
            guide=Guide(f'{begin}{{"name": "NAME", "arguments": ', "}", trigger=trigger, single=True),
        )
        for name, mark, begin, trigger in (
            ("gigachat31", "<|function_call|>", "<|function_call|>", "<|function_call|>"),
            ("gigachat3", "function call", f"{_CALL_TAGS[0]}\n", "<|message_sep|>"),
        )
    ),
    # `functools[{...}]`, vLLM's template for Phi-4-mini, and the stock template's `<|tool_call|>` with an
    # object or a list. `functools` is a module of Python, too: only a list makes it a call. Source:
    # https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/phi4/tool_parser.cpp
    _row(
        "phi4",
        any_of("functools", "<|/tool_call|>", "<|/tool|>"),
        tags={"functools": (), "<|tool_call|>": ("<|/tool_call|>",)},
        plain=("functools",),
        forms={"functools": "["},
        erase=("<|end|>", "<|endoftext|>"),
        guide=json_list("functools", trigger="functools["),
    ),
    # IBM Granite 3.x: a list; also 3.1's and the 20b model's tags. Granite 4 writes hermes3.
    # https://github.com/vllm-project/vllm/blob/037ed0620610/vllm/tool_parsers/granite_tool_parser.py
    _row(
        "granite",
        all_of("<|tool_call|>"),
        tags={"<|tool_call|>": ("<|/tool_call|>",), **_OBJECT, "<function_call>": ("</function_call>",)},
        erase=("<|end_of_text|>",),
        guide=json_list("<|tool_call|>"),
    ),
    # AI21 Jamba 1.5 and later; ServiceNow Apriel 1.5; Tencent Hunyuan A13B and the small Hunyuan models.
    *(
        _row(name, sign, tags=_LIST, erase=erase, guide=_LIST_GUIDE)
        for name, sign, erase in (
            ("jamba", all_of("<tool_calls>", "<|bom|>"), ("<|eom|>", "<|endoftext|>")),
            ("apriel", all_of("<tool_calls>", any_of("<thinking>", "FINAL RESPONSE]")), ("<|end|>",)),
            ("hunyuan", all_of("<tool_calls>"), ()),
        )
    ),
    # Nemotron Nano v2: a list. Nemotron 3 writes qwen3coder.
    # https://github.com/vllm-project/vllm/blob/719d683d6bfa/vllm/tool_parsers/nemotron_nano_v2_tool_parser.py
    _row(
        "nemotron_nano_v2",
        all_of("<TOOLCALL>"),
        tags={"<TOOLCALL>": ("</TOOLCALL>",)},
        erase=("<SPECIAL_12>",),
        guide=json_list("<TOOLCALL>", "</TOOLCALL>"),
    ),
    # Cohere Command R7B and A: a list with keys of its own. The model numbers its calls; templates require
    # the number.
    # https://github.com/vllm-project/vllm/blob/0a024b5698d7/vllm/entrypoints/openai/tool_parsers/command_tool_parser.py
    _row(
        "command_r7b",
        all_of("<|START_ACTION|>"),
        tags={"<|START_ACTION|>": ("<|END_ACTION|>",)},
        keys=json_call.Keys(name=("tool_name", "name"), id=("tool_call_id",)),
        erase=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"),
        guide=json_list("<|START_ACTION|>", "<|END_ACTION|>", keys="tool_name parameters"),
    ),
    # Baidu ERNIE 4.5 reasoning models: hermes3's tags; an answer stands in `<response>` (`reasoning.py`).
    # https://github.com/vllm-project/vllm/blob/0558e317a13a/vllm/entrypoints/openai/tool_parsers/ernie45_tool_parser.py
    _row(
        "ernie45",
        all_of("<tool_call>", "<response>"),
        tags=_OBJECT,
        erase=("<response>", "</response>"),
        guide=_OBJECT_GUIDE,
    ),
)


# Hermes 2/3, Qwen2.5, Qwen3, QwQ, Granite 4: one object in tags. JSON without the tags is an answer, also
# where it looks like a call: qwen25coder is the dialect of the models that leave the tags out. Source:
# https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/hermes3/tool_parser.cpp
Hermes3 = _row(
    "hermes3",
    all_of("<tool_call>", "</tool_call>"),
    tags=_OBJECT,
    erase=("<|im_end|>",),
    guide=_OBJECT_GUIDE,
)


_DOUBLED = re.compile(r"""<tool_call>(?:\\n|\s)*\{\{\\?["']name""")
# Models write these in place of `<tool_call>`.
_OTHER_TAGS = {
    f"<{tag}>": f"</{tag}>" for tag in ("tools", "tool", "function_call", "response", "json", "JSON", "xml")
}


class Qwen25Coder(Hermes3):  # type: ignore[misc, valid-type]
    """Hermes3, whose tags the model leaves out as often as not. Qwen2.5-Coder.

    Met when the model was run: its template asks for tags around an object in doubled braces. It answers with
    that, with the bare object, or with the object in a code fence or in other tags. Without its own tags a
    call must begin the answer and name a tool of the request. The doubled braces of the template, or the
    model's name, choose this dialect.
    """

    name = "qwen25coder"
    bare = "{[`<"
    models = ("qwen2.5-coder", "qwen25-coder", "qwen2_5-coder")

    def matches(self, template: str) -> bool:
        return super().matches(template) and _DOUBLED.search(template) is not None

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        if (yield from cur.next_of(self.markers)):
            yield from super().calls(cur, out, tools)
            return
        keys = json_call.unmarked(tools)
        yield from _untagged(cur, out, keys)
        while (yield from attempt(cur, out, _next(cur, out, keys))):
            pass


def _untagged(cur: Cursor, out: Output, keys: json_call.Keys) -> Steps[None]:
    fence = yield from cur.either(json_call.FENCES)
    yield from cur.space()
    tag = yield from cur.either(_OTHER_TAGS)
    ends = [end for end in (tag.replace("<", "</"), fence and "```") if end]
    yield from braced(cur, out, keys, ends[:1])
    yield from cur.close(*ends[1:])


def _next(cur: Cursor, out: Output, keys: json_call.Keys) -> Steps[None]:
    cur.sure = False
    yield from cur.space()
    yield from _untagged(cur, out, keys)


# Dialects that write calls as JSON without two tags around each.


_TAG = "<|python_tag|>"
_TAGGED = json_call.Keys(needs_arguments=True)


class Llama3(ToolDialect):
    """JSON objects, after `<|python_tag|>` or as the whole answer. Llama 3.1, 3.2, 3.3.

    Models drop the tag often, so an answer that starts with `{` may be a call; it is one only with parameters
    and the name of a tool of the request. Calls are parted by `;` (or just follow each other). Tools that
    Llama 3.1 was trained with are called as `brave_search.call(query="x")` after the tag. Some
    prompts ask for the form of functionary_v31.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/llama3/tool_parser.cpp
    """

    name = "llama3"
    markers = (_TAG, FUNCTION)
    bare = "{"
    erase = ("<|eom_id|>", "<|eot_id|>", "<|begin_of_text|>", "<|end_of_text|>")
    guide = Guide('{"name": "NAME", "parameters": ', "}", separator="; ", trigger='{"name":')

    def matches(self, template: str) -> bool:
        return _TAG in template or ("<|start_header_id|>" in template and '"parameters":' in template)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        if (yield from cur.literal(FUNCTION)):
            yield from function(cur, out)
            return
        tagged = yield from cur.literal(_TAG)
        yield from cur.space()
        first = yield from cur.peek()
        if tagged and first != "{":
            listed = first == "["
            yield from (
                json_call.call_list(cur, out, _TAGGED)
                if listed
                else pythonic.call(cur, out, tools, strict=True, method=".call")
            )
            return
        keys = _TAGGED if tagged else json_call.unmarked(tools)
        yield from json_call.call_object(cur, out, keys)
        while (yield from json_call.another(cur, out, keys, _TAG)):
            pass


_TAGS = {"<tool_call>": ("</tool_call>",), "[TOOL_CALLS]": ()}
_THOUGHT = "</think>"  # text, unless a reasoning dialect takes it; what follows may be a bare list


class Xlam(ToolDialect):
    """A JSON list, bare, in a code fence, after the reasoning or in tags. Salesforce xLAM 2.

    No template shows it, so it is never detected. Outside of tags a call must name a tool of the request.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/01d3ce8c0e53/vllm/entrypoints/openai/tool_parsers/xlam_tool_parser.py
    """

    name = "xlam"
    markers = (*_TAGS, *json_call.FENCES, _THOUGHT)
    plain = (*json_call.FENCES, _THOUGHT)
    bare = "[{"
    erase = ("<|im_end|>", "<|eot_id|>")
    guide = msgspec.structs.replace(json_list(""), inside=('{"name": "NAME", "arguments": ',))

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tag = yield from cur.either(_TAGS)
        if tag:
            yield from json_call.block(cur, out, json_call.marked_keys(tools), closers=_TAGS[tag])
            return
        thought = yield from cur.literal(_THOUGHT)
        fence = yield from cur.either(json_call.FENCES)
        yield from json_call.block(cur, out, json_call.unmarked(tools))
        if thought:
            out.content(_THOUGHT)
        if fence:
            yield from cur.close("```")


_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus(ToolDialect):
    """`<|tools_prefix|>[{"f": {...}}]<|tools_suffix|>`: the name is the key. Swiss AI Apertus.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/0de63034526f/vllm/entrypoints/openai/tool_parsers/apertus_tool_parser.py
    """

    name = "apertus"
    markers = (_OPEN,)
    erase = ("<|assistant_end|>",)
    guide = Guide(
        '{"NAME": ',
        "}",
        separator=", ",
        block=("<|tools_prefix|>[", "]<|tools_suffix|>"),
        trigger="<|tools_prefix|>",
    )
    template_marks = (_OPEN,)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        yield from cur.space()
        yield from json_call.call_list(cur, out, json_call.MARKED, _item)
        yield from cur.close(_CLOSE)


def _item(cur: Cursor, out: Output, keys: json_call.Keys) -> Steps[None]:
    yield from cur.expect("{")
    while True:
        yield from cur.space()
        name = (yield from string(cur)).strip()
        yield from cur.space()
        yield from cur.expect(":")
        yield from cur.space()
        if not name or (yield from cur.peek()) not in ("{", ""):
            raise NotACall
        out.start_call(name)
        try:
            yield from value(cur, out.arguments, outer=1)
        except EndOfText:
            if cur.cut:
                raise
        out.end_call()
        yield from cur.space()
        if (yield from cur.literal("}")):
            return
        yield from cur.expect(",")
