"""Dialects that write a call with tags for its name and its parameters."""

from __future__ import annotations

from itertools import product
from typing import ClassVar

import msgspec

from ovserve.llm.parsing.cursor import Cursor, Markers, Steps
from ovserve.llm.parsing.dialect import Form, ToolDialect, call, header
from ovserve.llm.parsing.guide import Guide, tagged
from ovserve.llm.parsing.json_call import block, marked_keys
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.xmlcall import body, call_name, calls

# ruff: noqa: RUF001, RUF002 - these bars are the models' own characters


class TaggedXml(ToolDialect):
    form: ClassVar[Form]

    def texts(self) -> tuple[str, ...]:
        return (*super().texts(), *self.form.tags)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from _block(cur, out, tools, self.form)


def _block(cur: Cursor, out: Output, tools: Tools, form: Form) -> Steps[None]:
    # The marker is the block's opening tag, or the call itself where models leave the block out.
    if form.openers and (yield from cur.either(form.openers)):
        yield from cur.close(*form.openers)  # models open a block twice now and then
        if (yield from cur.close(*form.closers)):
            return
        if (yield from _begins_json(cur)):
            yield from _json(cur, out, tools, form.closers)
            return
    yield from calls(cur, out, tools, form)


def _begins_json(cur: Cursor) -> Steps[bool]:
    yield from cur.space()
    return (yield from cur.peek()) in ("{", "[")


def _json(cur: Cursor, out: Output, tools: Tools, closers: tuple[str, ...]) -> Steps[None]:
    """Read calls in the JSON of hermes3, which models fall back to, of tools of the request."""
    keys = msgspec.structs.replace(marked_keys(tools), good_name=lambda name: not tools.lacks(name))
    yield from block(cur, out, keys, closers=closers)


class Qwen3Coder(TaggedXml):
    """qwen3coder: `<function=f><parameter=k>v</parameter></function>`. Qwen3-Coder, Qwen3.5, Nemotron 3.

    The opening `<tool_call>` is left out by models now and then, and within it the equals signs.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/qwen3coder/qwen3coder_tool_parser.cpp
    """

    name = "qwen3coder"
    markers = ("<tool_call>", "<function=")
    erase = ("<|im_end|>",)
    form = Form(
        call="<function=",
        call_end="</function>",
        parameter="<parameter=",
        parameter_end="</parameter>",
        openers=("<tool_call>",),
        closers=("</tool_call>",),
        quoted=False,
        variants=(("<function ", "<function="), ("<parameter ", "<parameter=")),
    )
    guide = Guide(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=tagged("<parameter=NAME>\n", "\n</parameter>\n", without=form.ambiguous),
    )
    template_marks = ("<function=", "<parameter=", "</parameter>")


class SeedOss(TaggedXml):
    """seed_oss: qwen3coder's tags in a block of its own. ByteDance Seed-OSS.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/3e47bf473f0a/vllm/tool_parsers/seed_oss_tool_parser.py
    """

    name = "seed_oss"
    markers = ("<seed:tool_call>",)
    erase = ("<seed:eos>",)
    form = msgspec.structs.replace(Qwen3Coder.form, openers=markers, closers=("</seed:tool_call>",))
    guide = Guide(
        "<seed:tool_call>\n<function=NAME>\n",
        "</function>\n</seed:tool_call>",
        separator="\n",
        trigger="<seed:tool_call>",
        arguments=tagged("<parameter=NAME>", "</parameter>\n", without=form.ambiguous),
    )
    template_marks = ("<seed:tool_call>",)


_BLOCKS = ("function_calls>", "tool_calls>", "toolcalls>", "calls>")


def _bars(word: str) -> tuple[Form, ...]:
    """Return the spellings of tags with this word between bars: full-width or of ASCII, single or doubled,
    and with a blank before the name of the tag or none."""
    forms = []
    for bar, blank in product(("｜", "｜｜", "|", "||"), ("", " ")):
        begin, end = (f"<{slash}{bar}{word}{bar}{blank}" for slash in ("", "/"))
        forms.append(
            Form(
                call=f'{begin}invoke name="',
                call_end=f"{end}invoke>",
                parameter=f'{begin}parameter name="',
                parameter_end=f"{end}parameter>",
                openers=tuple(begin + block for block in _BLOCKS),
                closers=tuple(end + block for block in _BLOCKS),
                trim=False,
            )
        )
    return tuple(forms)


class Barred(ToolDialect):
    """Calls in tags with a word between bars, and an attribute on each parameter that marks strings."""

    forms: ClassVar[tuple[Form, ...]]

    def __init_subclass__(cls) -> None:
        cls.markers = tuple(tag for form in cls.forms for tag in (*form.openers, form.call))
        # The model also writes ends of calls where there is none, such as after a result.
        ends = (end for form in cls.forms for end in (form.parameter_end, *form.ends))
        cls.erase = (*cls.erase, *ends)
        cls.inner = tuple(tag for form in cls.forms for tag in form.tags)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        marker = yield from cur.next_of(self.markers)
        form = next(form for form in self.forms if marker in (*form.openers, form.call))
        yield from _block(cur, out, tools, form)


def _guide(form: Form, block: int) -> Guide:
    opener, closer = form.openers[block], form.closers[block]
    begin = form.parameter + 'NAME" string='
    return Guide(
        form.call + 'NAME">\n',
        form.call_end + "\n",
        block=(opener + "\n", closer),
        trigger=opener,
        arguments=tagged(
            begin + '"false">', form.parameter_end + "\n", text=begin + '"true">', without=form.ambiguous
        ),
    )


class DeepseekV32(Barred):
    """deepseek_v32: `<｜DSML｜invoke name="f">`. DeepSeek V3.2, V4 and V4.1; the block's name differs.

    Sources: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/17c620f127b8/vllm/entrypoints/openai/tool_parsers/deepseek_v32_tool_parser.py;
    of other spellings: read 2026-11-30, https://github.com/openclaw/openclaw/issues/128858,
    https://github.com/ai-dynamo/frontend-crates/pull/252, https://github.com/local-inference-lab/vllm/pull/417
    """

    name = "deepseek_v32"
    forms = _bars("DSML")
    erase = ("<｜end▁of▁sentence｜>",)
    guide = _guide(forms[0], 0)
    template_marks = ("｜DSML｜",)


class GigaChat35(Barred):
    """gigachat35: the same with another word. Sber GigaChat 3.5.

    Source: read 2026-11-30,
    https://github.com/sgl-project/sglang/blob/166b30d48513/python/sglang/srt/function_call/gigachat35_detector.py
    """

    name = "gigachat35"
    forms = _bars("GCML")
    erase = ("<|message_sep|>", "</s>")
    guide = _guide(forms[0], 1)
    template_marks = ("｜GCML｜",)


_RESPONSE_END = "<|close|>response<|sep|>"
KIMI_K3_FRAME = ("<|open|>response<|sep|>", _RESPONSE_END, "<|close|>message<|sep|>", "<|end_of_msg|>")


class KimiK3(TaggedXml):
    """kimi_k3: `<|open|>call tool="f" index="1"<|sep|>`, and an argument with its type. Kimi K3.

    Calls follow the answer. The end of that is not text, whether a call follows or not.

    Source: read 2026-11-30,
    https://github.com/vllm-project/vllm/blob/055e47c28003/vllm/frontend/processing/tool_parsers/kimi_k3_tool_parser.py
    """

    name = "kimi_k3"
    erase = KIMI_K3_FRAME
    form = Form(
        call='<|open|>call tool="',
        call_end="<|close|>call<|sep|>",
        parameter='<|open|>argument key="',
        parameter_end="<|close|>argument<|sep|>",
        openers=("<|open|>tools<|sep|>",),
        closers=("<|close|>tools<|sep|>",),
        trim=False,
        tag_end="<|sep|>",
        escapes=(("&quot;", '"'), ("&amp;", "&")),
    )
    markers = (_RESPONSE_END, *form.openers, form.call)
    guide = Guide(
        form.call + 'NAME" index="1"<|sep|>',
        form.call_end,
        block=(form.openers[0], form.closers[0]),
        trigger=form.openers[0],
        arguments=tagged(
            form.parameter + 'NAME" type="KIND"<|sep|>', form.parameter_end, without=form.ambiguous
        ),
    )
    template_marks = ("<|open|>", "<|sep|>")

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        if (yield from cur.literal(_RESPONSE_END)):
            yield from cur.space()
            if not (yield from cur.next_of(self.form.openers)):
                return
        yield from _block(cur, out, tools, self.form)


class MiniCpm5(TaggedXml):
    """minicpm5: `<function name="f"><param name="k">v</param></function>`. MiniCPM5.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/minicpm5/minicpm5_tool_parser.cpp
    """

    name = "minicpm5"
    markers = ('<function name="',)
    erase = ("<s>", "</s>", "<|im_end|>")
    form = Form(
        call='<function name="',
        call_end="</function>",
        parameter='<param name="',
        parameter_end="</param>",
        cdata=True,
    )
    guide = Guide(
        '<function name="NAME">',
        "</function>",
        trigger='<function name="',
        arguments=tagged('<param name="NAME">', "</param>", without=form.ambiguous),
    )
    template_marks = ('<param name="',)


class MiniMaxM2(TaggedXml):
    """minimax_m2: `<invoke name="f"><parameter name="k">v</parameter></invoke>`. MiniMax M2, also
    with names in single quotes or none. Sources: read 2026-11-22 and 2026-11-29,
    https://github.com/sgl-project/sglang/blob/087f50049752/python/sglang/srt/function_call/minimax_m2.py;
    https://github.com/MiniMax-AI/MiniMax-M2.5/blob/main/docs/tool_calling_guide.md (extract_name)
    """

    name = "minimax_m2"
    markers = ("<minimax:tool_call>",)
    erase = ("[e~[",)
    form = Form(
        call="<invoke name=",
        call_end="</invoke>",
        parameter="<parameter name=",
        parameter_end="</parameter>",
        openers=markers,
        closers=("</minimax:tool_call>",),
        quoted=False,
    )
    guide = Guide(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        block=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        trigger="<minimax:tool_call>",
        arguments=tagged('<parameter name="NAME">', "</parameter>\n", without=form.ambiguous),
    )
    template_marks = ("<minimax:tool_call>",)


_SECTION, _SECTION_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"


class Step3(TaggedXml):
    """step3: `<steptml:invoke name="f">` inside two layers of special tokens. StepFun Step 3.

    Step 3.5 writes qwen3coder.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/0a426f59b232/vllm/entrypoints/openai/tool_parsers/step3_tool_parser.py
    """

    name = "step3"
    markers = (_SECTION, _BEGIN, '<steptml:invoke name="')
    form = Form(
        call='<steptml:invoke name="',
        call_end="</steptml:invoke>",
        parameter='<steptml:parameter name="',
        parameter_end="</steptml:parameter>",
        closers=(_END, _SECTION_END),
    )
    guide = Guide(
        f'{_BEGIN}function{_SEPARATOR}<steptml:invoke name="NAME">',
        f"</steptml:invoke>{_END}",
        block=(_SECTION, _SECTION_END),
        trigger=_SECTION,
        arguments=tagged('<steptml:parameter name="NAME">', "</steptml:parameter>", without=form.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return "<steptml:" in template or _SECTION in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.literal(_SECTION)
        while True:
            if (yield from cur.close(_BEGIN)):
                yield from cur.close("function")
                yield from cur.close(_SEPARATOR)
            yield from calls(cur, out, tools, self.form)
            yield from cur.close(_END)
            out.commit()
            mark = cur.mark()
            again = yield from cur.close(_BEGIN)
            cur.rollback(mark)
            if not again:
                break
        yield from cur.close(_SECTION_END)


FUNCTION, _CLOSE = "<function=", "</function>"
_NAME_END = Markers((">", "\n"))
_CLOSERS = Markers((_CLOSE,))


class FunctionaryV31(ToolDialect):
    """`<function=f>{...}</function>`. MeetKai Functionary on Llama 3.1, Llama's own variant."""

    name = "functionary_v31"
    markers = (FUNCTION,)
    erase = ("<|eom_id|>", "<|eot_id|>")
    guide = Guide("<function=NAME>", "</function>", trigger="<function=")

    def matches(self, template: str) -> bool:
        return FUNCTION in template and _CLOSE in template and "<parameter=" not in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(FUNCTION)
        yield from function(cur, out)


def function(cur: Cursor, out: Output) -> Steps[None]:
    """Read a call from its name on."""
    name, _ = yield from header(cur, _NAME_END)
    yield from cur.close(">")  # left out at the end of a line now and then
    yield from cur.space()
    if (yield from cur.peek()) not in ("{", "<"):
        raise cur.failure()
    yield from call(cur, out, name.strip(), _CLOSERS)
    yield from cur.close(_CLOSE)


_GLM_FORM = Form(
    call="<tool_call>",
    call_end="</tool_call>",
    parameter="<arg_key>",
    parameter_end="</arg_value>",
    quoted=False,
    trim=False,
    tag_end="</arg_key>",
    value="<arg_value>",
    name_ends=("\n", "<arg_key>", "</arg_key>", "<tool_call>", "</tool_call>"),
)


class Glm45(ToolDialect):
    """`<tool_call>f` and pairs of `<arg_key>` and `<arg_value>`. GLM 4.5, 4.6, 4.7.

    GLM 4.7 writes no newlines. Values are typed by the tool's schema. `<arg_value>` is left out by models now
    and then.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/0241e7d69100/vllm/entrypoints/openai/tool_parsers/glm4_moe_tool_parser.py
    """

    name = "glm45"
    markers = (_GLM_FORM.call,)
    inner = (*_GLM_FORM.tags, _GLM_FORM.tag_end, _GLM_FORM.value)
    erase = ("<|user|>", "<|observation|>", "<|endoftext|>")
    guide = Guide(
        "<tool_call>NAME\n",
        "</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=tagged(
            "<arg_key>NAME</arg_key>\n<arg_value>", "</arg_value>\n", without=_GLM_FORM.ambiguous
        ),
    )
    template_marks = (_GLM_FORM.parameter,)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_GLM_FORM.call)
        yield from cur.close(_GLM_FORM.call)
        if (yield from _begins_json(cur)):
            yield from _json(cur, out, tools, (_GLM_FORM.call_end,))
            return
        name = yield from call_name(cur, tools, _GLM_FORM)
        yield from body(cur, out, tools, _GLM_FORM, name)
