"""Chat template rendering, as in transformers: sandboxed jinja2, compiled once per model.

It runs in a template process (`sandbox/rendering.py`), never in the server's: a template is a program.
The environment (immutable sandbox, trimmed and left-stripped blocks, loop controls, `{% generation %}`,
`raise_exception`, `strftime_now`, `tojson` without HTML escaping, `from_json`) is the one for which Hugging
Face templates are written; any other renders some of them wrongly.

What else a template expects of its messages is detected by rendering small probes. Templates differ in ways
that nothing declares: some need tool call arguments as an object (they iterate or re-serialise them), some as
JSON text; reasoning of earlier turns has three names; few know the developer role. A probe tests the actual
template; a list of model names would not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, NoReturn, Protocol

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.arrangement import EFFORTS, Expectations, SystemPlace
from ovserve.llm.chat_template import ChatTemplate, Conversation

NEEDLE = "ovserve-probe"
# Rendered behind the text of a message that the model goes on writing: that text alone may also stand in what
# the template adds. The space shows whether the template trims.
_END_OF_PREFILL = f"{NEEDLE}-end "
USUAL_EFFORTS = ("low", "medium", "high")  # those that OpenAI began with, and gpt-oss was trained on
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning", "thought")

Messages = Sequence[Mapping[str, Any]]


class Render(Protocol):
    """A rendering function; it returns None when the template raises."""

    def __call__(self, messages: Messages, tools: Messages | None = None) -> str | None: ...


def probe(source: str, render: Render) -> Expectations:
    parts = _reads(source, "type") and _wants_parts(render)
    if parts:
        plain = render

        def render(messages: Messages, tools: Messages | None = None) -> str | None:
            return plain([{**m, "content": _as_parts(m["content"])} for m in messages], tools)

    null_content = not _shows_turns(render, "{}", ("", 1)) and _shows_turns(render, "{}", (None, 1))
    if null_content:
        with_text = render

        def render(messages: Messages, tools: Messages | None = None) -> str | None:
            return with_text([_without_content(m) for m in messages], tools)

    tools, bare, whole = _shows_tools(render) if _reads(source, "tools") else (False, False, False)
    objects = _reads(source, "tool_calls") and _wants_objects(render)
    arguments: Any = {} if objects else "{}"

    def needs(*turns: tuple[str, int], instead: tuple[str, int]) -> bool:
        return not _shows_turns(render, arguments, instead) and _shows_turns(render, arguments, *turns)

    text_apart = needs(("first", 0), ("", 1), ("last", 0), instead=("first", 1))
    dropped = _shows(render, "system", "user") and not _shows(render, "developer", "user")
    developer = _reads(source, "developer") and not dropped
    system = _system_place(render, ("system", "developer") if developer else ("system",))
    needs_user = system == "first" and not _shows(render, "system") and _shows(render, "system", "user")
    return Expectations(
        tools=tools,
        bare_tools=bare,
        whole_tools=whole,
        shows_calls=_reads(source, "tool_calls"),
        shows_results=_shows_results(render),
        object_arguments=objects,
        only_objects=objects and NEEDLE not in (render(_exchange(NEEDLE)[:-1]) or ""),
        nine_ids=_wants_nine(render, arguments),
        null_content=null_content,
        text_apart=text_apart,
        text_lost="" if text_apart else _text_lost(render, arguments),
        names_lost=_loses(render, [{"role": "user", "content": "x", "name": f"{NEEDLE}-lost"}]),
        text_or_thoughts=_refuses_both(render, arguments),
        system_beside_user=system == "first"
        and _loses(render, [{"role": "system", "content": f"{NEEDLE}-lost"}, *_exchange(arguments)]),
        named_results=_wants_names(render, arguments),
        one_call=needs(("", 1), ("", 1), instead=("", 2)),
        reasoning_field=next((n for n in REASONING_FIELDS if _reads_field(source, n)), REASONING_FIELDS[0]),
        developer=developer,
        content_parts=parts,
        system=system,
        needs_user=needs_user,
        **_turns(render, arguments),
    )


def adapt(message: Mapping[str, Any], expects: Expectations) -> dict[str, Any]:
    """Return the message in the form that the template expects; the original is unchanged."""
    adapted = dict(message)
    adapted.setdefault("content", "")
    if adapted["content"] is None:
        adapted["content"] = ""
    if expects.content_parts:
        adapted["content"] = _as_parts(adapted["content"])
    if expects.null_content:
        adapted = _without_content(adapted)
    if adapted.get("role") == "developer" and not expects.developer:
        adapted["role"] = "system"
    if "reasoning_content" in adapted and expects.reasoning_field != "reasoning_content":
        adapted[expects.reasoning_field] = adapted["reasoning_content"]
    if adapted.get("tool_calls"):
        adapted["tool_calls"] = [_adapt_call(call, expects) for call in adapted["tool_calls"]]
    else:
        adapted.pop("tool_calls", None)  # an empty list would look like a turn with calls to some templates
    return adapted


def _adapt_call(call: Mapping[str, Any], expects: Expectations) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if expects.object_arguments:
        arguments = _parsed(arguments) if isinstance(arguments, str) else arguments or {}
        if expects.only_objects and not isinstance(arguments, dict):
            arguments = {"arguments": arguments} if arguments else {}
        function["arguments"] = arguments
    elif arguments is None:
        function["arguments"] = "{}"
    elif not isinstance(arguments, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": function}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments  # the model's own broken JSON in a history; the template gets it unchanged


def _as_parts(content: str) -> list[dict[str, str]]:
    """Return the content as one text part: images are tags in the text."""
    return [{"type": "text", "text": content}] if content else []


def _without_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message without content if it has only calls."""
    return {**message, "content": message["content"] or (None if message.get("tool_calls") else "")}


def _wants_parts(render: Render) -> bool:
    """Return whether it needs parts: some templates of vision models, such as LLaVA's, ignore plain text."""

    def shown(content: Any) -> bool:
        return NEEDLE in (render([{"role": "user", "content": content}]) or "")

    return not shown(NEEDLE) and shown(_as_parts(NEEDLE))


def _shows(render: Render, *roles: str) -> bool:
    """Return whether it renders the text of each message of these roles."""
    turns = [{"role": role, "content": f"{NEEDLE}-{i}."} for i, role in enumerate(roles)]
    text = render(turns)
    return text is not None and all(turn["content"] in text for turn in turns)


def _system_place(render: Render, roles: Sequence[str]) -> SystemPlace:
    """Return where a system message is shown. A template that drops one is like one that refuses it."""
    if not _shows(render, "user") or not _shows(render, "user", "assistant", "user"):
        return "any"  # unlike any other template: the client's order is the best one
    if not _shows(render, "system", "user"):
        return "none"
    for role in roles:
        for later in (
            ("user", "assistant", role, "user"),
            ("user", "assistant", "user", role),
            ("system", role, "user"),
            ("user", role),
        ):
            if not _shows(render, *later):
                return "first"
    return "any"


def _shows_turns(render: Render, arguments: Any, *turns: tuple[str | None, int]) -> bool:
    """Return whether it renders all of these answers: a text and a number of calls, whose results follow."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    needles: list[str] = []
    for text, number in turns:
        names = [f"{NEEDLE}-{len(messages)}-{k}." for k in range(number)]
        calls = [_call_of(name, arguments, f"call{len(messages)}000{k}") for k, name in enumerate(names)]
        content = text and f"{NEEDLE}-{text}."
        needles += [*names, content or ""]
        messages += [_answer(content, calls), *map(_result, calls)]
    prompt = render(messages)
    return prompt is not None and all(needle in prompt for needle in needles)


def _text_lost(render: Render, arguments: Any) -> Literal["", "answered", "always"]:
    """Return whether it drops the text of a message with calls: of any, or of those before a later answer."""
    if not _shows_turns(render, arguments, ("", 1), ("last", 0)):
        return ""
    if not _shows_turns(render, arguments, ("first", 1)):
        return "always"
    return "" if _shows_turns(render, arguments, ("first", 1), ("last", 0)) else "answered"


def _refuses_both(render: Render, arguments: Any) -> bool:
    """Return whether it refuses text and thoughts in a message with calls, and takes each alone."""
    user, call, result = _exchange(arguments)
    parts: list[dict[str, Any]] = [{"content": NEEDLE}, dict.fromkeys(REASONING_FIELDS, NEEDLE)]
    prompts = [render([user, call | more, result]) for more in (*parts, parts[0] | parts[1])]
    return None not in prompts[:2] and prompts[2] is None


def _loses(render: Render, messages: Messages) -> bool:
    """Return whether it takes the messages, and does not show the text for which this looks."""
    prompt = render(messages)
    return prompt is not None and f"{NEEDLE}-lost" not in prompt


def _wants_names(render: Render, arguments: Any) -> bool:
    *turns, result = _exchange(arguments)
    other = {**result, "tool_call_id": "call00002"}
    prompts = [render([*turns, {**other, "name": name}]) for name in ("probe", None)]
    return prompts[0] is not None and prompts[1] is None


def _wants_nine(render: Render, arguments: Any) -> bool:
    """Return whether it refuses ids of calls but those of nine letters and digits, as Mistral's templates."""
    nine, short, none = (render(_exchange(arguments, id_)) for id_ in ("call00001", "c", None))
    return nine is not None and (short is None or none is None)


def _turns(render: Render, arguments: Any) -> dict[str, Any]:
    """Return which orders of turns it refuses, as fields of Expectations."""
    if not _shows(render, "user", "assistant", "user"):
        return {}
    repeated = {"user": ("user", "user"), "assistant": ("user", "assistant", "assistant", "user")}
    exchange = _exchange(arguments)
    user, assistant = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
    return {
        "user_first": not _shows(render, "assistant", "user"),
        "empty_answers": render([user, {**assistant, "content": ""}, user]) is not None,
        "merged_roles": tuple(role for role, turns in repeated.items() if not _shows(render, *turns)),
        "tools_before_assistant": render([*exchange, user]) is None
        and render([*exchange, assistant, user]) is not None,
    }


def _shows_tools(render: Render) -> tuple[bool, bool, bool]:
    """Return whether it renders a tool's name, whether only that of a bare function, and whether it refuses
    one that is only a name.

    A template that raises on both supports tools, but rejects the probe.
    """
    name: dict[str, Any] = {"name": NEEDLE}
    function = {**name, "description": "x", "parameters": {"type": "object", "properties": {}}}
    short = {**name, "description": None, "parameters": {"type": "object"}}
    turns = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
    raised = False
    for bare in (False, True):
        for messages in (turns, turns[1:]):  # some reject a system message

            def prompt(tool: Any, messages: Messages = messages, bare: bool = bare) -> str | None:
                return render(messages, [tool if bare else {"type": "function", "function": tool}])

            text = prompt(function)
            if text is not None and NEEDLE in text:
                return True, bare, prompt(name) is None or prompt(short) is None
            raised |= text is None
    return raised, False, False


def _wants_objects(render: Render) -> bool:
    """Return whether arguments should be objects: they render as JSON, and not in Python's form.

    Objects are better even where text would work, because spaces are then those of the training.
    """
    text = render(_exchange({NEEDLE: 1})[:-1])
    return text is not None and NEEDLE in text and f"'{NEEDLE}'" not in text


def _shows_results(render: Render) -> bool:
    """Return whether it shows results of calls, as some do although they show no calls."""
    return NEEDLE in (render(_exchange("{}")) or "")


def _exchange(arguments: Any, id_: str | None = "call00001") -> list[dict[str, Any]]:
    """Return a message of the user, a call and its result."""
    call = _call_of("probe", arguments, id_)
    return [{"role": "user", "content": "x"}, _answer("", [call]), _result(call)]


def _call_of(name: str, arguments: Any, id_: str | None) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _answer(text: str | None, calls: Messages) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def _result(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "content": NEEDLE, "tool_call_id": call["id"]}


def _reads(source: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", source) is not None


def _reads_field(source: str, name: str) -> bool:
    return re.search(rf"""\.{name}\b|\[['"]{name}['"]\]|\.get\(['"]{name}['"]""", source) is not None


# Exceptions of templates on unexpected messages. ArithmeticError includes OverflowError.
REFUSALS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,  # includes RecursionError
    AssertionError,
)


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the answer for training; here its content is plain
    text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class CompiledTemplate:
    """One model's template, and its variant for requests with tools if it has one.

    Raises LoadError if a source does not compile.
    """

    def __init__(self, template: ChatTemplate) -> None:
        environment = _environment()
        source, tool_source = template.source, template.tool_source
        try:
            self._plain = environment.from_string(source)
            self._tools = environment.from_string(tool_source) if tool_source else self._plain
        except (TemplateError, RecursionError, MemoryError) as exc:
            at = f"line {exc.lineno}: " if isinstance(exc, TemplateSyntaxError) else ""
            raise LoadError(f"the chat template does not compile: {at}{exc or type(exc).__name__}") from exc
        self._tokens = {n: getattr(template, n) for n in ("bos_token", "eos_token", "pad_token")}
        text = template.text
        expects = probe(text, self._try)
        self.expects = replace(
            expects, efforts=self._efforts(text), thoughts_lost=self._loses_thoughts(expects)
        )

    def render(self, conversation: Conversation) -> str:
        """Return the prompt. Raises InvalidArgument with the template's own message."""
        messages, last = [*conversation.messages], conversation.messages[-1].get("content") or ""
        if conversation.continue_final_message:
            messages[-1] = {**messages[-1], "content": last + _END_OF_PREFILL}
        messages = [adapt(message, self.expects) for message in messages]
        template, tools = self._plain, None
        if conversation.tools:
            template, tools = self._tools, conversation.tools
            if self.expects.whole_tools:
                tools = [_whole(tool) for tool in tools]
            if self.expects.bare_tools:
                tools = [tool.get("function", tool) for tool in tools]
        try:
            text = template.render(messages=messages, tools=tools, **self._tokens, **conversation.variables)
        except REFUSALS as exc:
            raise InvalidArgument(
                f"the chat template rejected the messages: {exc or type(exc).__name__}",
                param=conversation.param,
            ) from exc
        if not text:
            raise InvalidArgument("the chat template rendered an empty prompt", param=conversation.param)
        return _cut_after(text, last) if conversation.continue_final_message else text

    def _try(self, messages: Messages, tools: Messages | None = None, **variables: Any) -> str | None:
        """Return the rendered probe; None when it raises, whatever it raises."""
        try:
            return self._tools.render(
                messages=messages, tools=tools, add_generation_prompt=False, **self._tokens, **variables
            )
        except (*REFUSALS, MemoryError):
            return None

    def _loses_thoughts(self, expects: Expectations) -> bool:
        user, call, result = _exchange("{}")
        turns = [adapt(m, expects) for m in (user, {**call, "reasoning_content": f"{NEEDLE}-lost"}, result)]
        return _loses(lambda *turns: self._try(*turns, enable_thinking=True, thinking=True), turns)

    def _efforts(self, source: str) -> tuple[str, ...]:
        """Return the efforts that a template like gpt-oss's knows, which writes whatever it is given."""
        turns = [{"role": "user", "content": "x"}]
        if NEEDLE not in (self._try(turns, reasoning_effort=NEEDLE, thinking_effort=NEEDLE) or ""):
            return ()
        return tuple(e for e in EFFORTS if e in USUAL_EFFORTS or re.search(rf"""(['"]){e}\1""", source))


def _whole(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool with all that it may lack."""
    function = tool["function"]
    present = {key: value for key, value in (function.get("parameters") or {}).items() if value is not None}
    parameters = {"type": "object", "properties": {}, **present}
    complete = {**function, "description": function.get("description") or "", "parameters": parameters}
    return {**tool, "function": complete}


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["from_json"] = json.loads
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _cut_after(text: str, content: str) -> str:
    """Return the prompt up to the mark behind the last message's content, as transformers cuts it."""
    prompt, mark, rest = text.rpartition(_END_OF_PREFILL.strip())
    if not rest.startswith(" "):
        prompt = prompt.rstrip()  # the template trims
    words = _without_space(content)  # which a template may set differently around tags
    if not (mark and words and _without_space(prompt).endswith(words)):
        raise InvalidArgument.at(
            "continue_final_message", "the last message is empty, or the chat template changed it"
        )
    return prompt


def _without_space(text: str) -> str:
    return "".join(text.split())


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which models have never seen.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
