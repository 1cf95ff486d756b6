"""Chat templates render as transformers renders them (ovserve.llm.template)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.chat_template import ChatTemplate, Conversation
from ovserve.llm.template import CompiledTemplate
from tests.rendering import render

USER = [{"role": "user", "content": "<hi> & 'é'"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0]['content'] }}", "<hi> & 'é'"),
        ("{{ messages[0].content | tojson }}", "\"<hi> & 'é'\""),
        ("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  1,\n  2\n ]\n}'),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools is none %}no tools{% endif %}", "no tools"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ extra }}", "given"),
    ],
)
def test_rendering(source: str, expected: str) -> None:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert render(template, USER, {"extra": "given"}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidArgument, match="chat template rejected"):
        render(source, USER)


def test_a_template_that_does_not_compile_is_a_load_error() -> None:
    with pytest.raises(LoadError, match="does not compile"):
        CompiledTemplate(ChatTemplate("{% for %}"))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="empty prompt"):
        render("{% if false %}x{% endif %}", USER)


VECTORS = json.loads((Path(__file__).parents[1] / "vectors/templates_render.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_vectors(vector: dict[str, Any]) -> None:
    accepted = [vector["expect"], *vector.get("accept_also", [])]
    prepare = vector.get("prepare", {})
    source = ChatTemplate(vector["template"], bos_token=vector["bos_token"], eos_token=vector["eos_token"])
    template = CompiledTemplate(source)
    if "object_arguments" in prepare:
        template.expects = replace(template.expects, object_arguments=prepare["object_arguments"])
    elif vector["name"].startswith("arguments"):
        template.expects = replace(
            template.expects, object_arguments=False
        )  # the vector is about not preparing
    if "reasoning_field" in prepare:
        assert template.expects.reasoning_field == prepare["reasoning_field"]
    kwargs = vector.get("chat_template_kwargs")
    if vector["expect"].get("error"):
        with pytest.raises(InvalidArgument, match=vector["expect"]["message_contains"]):
            template.render(source.conversation(vector["messages"], kwargs))
    else:
        prompt = template.render(source.conversation(vector["messages"], kwargs))
        assert {"prompt": prompt} in accepted


CALLS = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n": [1]}'}}]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ messages[1].tool_calls[0].function.arguments }}", '{"n": [1]}'),
        ("{{ messages[1].tool_calls[0].function.arguments | tojson }}", '{"n": [1]}'),
        (
            "{% for k, v in messages[1].tool_calls[0].function.arguments | items %}{{ k }}={{ v }}{% endfor %}",
            "n=[1]",
        ),
        (
            "{% set a = messages[1].tool_calls[0].function.arguments %}{{ a if a is string else a | tojson(indent=0) }}",
            '{\n"n": [\n1\n]\n}',
        ),
    ],
)
def test_arguments_are_text_or_object_as_the_template_needs(source: str, rendered: str) -> None:
    assert render(source, CALLS) == rendered


@pytest.mark.parametrize("arguments", ['{"n": [1', "[1]", "null", ""])
def test_arguments_that_are_no_object_reach_a_template_that_lists_them(arguments: str) -> None:
    """As Qwen3-Coder's: after an answer cut within a call, it refused all further requests."""
    source = "{% for k, v in m.function.arguments | items %}{{ k }}={{ v }}{% endfor %}"
    source = "{% for m in messages[1].tool_calls %}call " + source + "{% endfor %}"
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    shown = {"null": "", "": ""}.get(arguments, f"arguments={arguments}")
    assert (
        render(source, [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}]) == f"call {shown}"
    )


@pytest.mark.parametrize("function", [{"name": "f"}, {"name": "f", "description": None, "parameters": None}])
def test_tools_without_a_description_reach_a_template_that_reads_it(function: dict[str, Any]) -> None:
    """As gpt-oss's does."""
    tool = "{{ t.function.name + t.function.description }}{{ t.function.parameters.properties | length }}"
    source = "{% for t in tools or [] %}" + tool + "{% endfor %}"
    assert render(source, USER, tools=[{"type": "function", "function": function}]) == "f0"
    kept = "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}"
    assert json.loads(render(kept, USER, tools=[{"type": "function", "function": function}])) == function


def test_tools_choose_the_tool_variant() -> None:
    template = ChatTemplate("plain", "tools: {{ tools[0].name }}")
    assert CompiledTemplate(template).expects.tools
    assert render(template, USER) == "plain"
    assert render(template, USER, tools=[{"name": "f"}]) == "tools: f"
    assert not CompiledTemplate(ChatTemplate("plain")).expects.tools


# As of LLaVA 1.5: images first, then texts, of parts alone.
PARTS = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
BOTH = "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if c['type'] == 'text' %}<{{ c['text'] }}>{% endif %}{% endfor %}{% endif %}{% endfor %}"


def test_a_template_that_reads_parts_gets_parts() -> None:
    compiled = CompiledTemplate(ChatTemplate(PARTS))
    assert compiled.expects.content_parts
    turns = [{"role": "user", "content": "<ov_genai_image_0>look"}, {"role": "assistant", "content": "I see"}]
    assert render(ChatTemplate(PARTS), turns) == "USER: <ov_genai_image_0>look ASSISTANT: I see ASSISTANT:"
    going_on = Conversation(turns, {"add_generation_prompt": False}, continue_final_message=True)
    assert compiled.render(going_on) == "USER: <ov_genai_image_0>look ASSISTANT: I see"


ENDED = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
# As of Qwen3: reasoning in the content is set anew, with newlines of the template's own.
THOUGHTS = (
    "{% for m in messages %}{% set parts = m.content.split('</think>') %}<|{{ m.role }}|>"
    "{% if parts | length > 1 %}{{ parts[0] + '\n</think>\n\n' }}{% endif %}{{ parts[-1] }}<|end|>{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "prefill", "end"),
    [
        (ENDED, "<", "<"),
        (ENDED, "end", "end"),
        (ENDED, ">\n", ">\n"),
        (ENDED, "I am ", "I am "),
        (ENDED.replace("content", "content | trim"), "|> ", "|>"),
        (THOUGHTS, "<think>hm</think>So ", "<think>hm\n</think>\n\nSo "),
    ],
)
def test_the_answer_goes_on_behind_the_last_message(source: str, prefill: str, end: str) -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": prefill}]
    going_on = Conversation(turns, {"add_generation_prompt": False}, continue_final_message=True)
    prompt = CompiledTemplate(ChatTemplate(source)).render(going_on)
    assert prompt.partition("<|assistant|>")[2] == end


def test_a_last_message_that_a_template_cuts_is_refused() -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>hm</think>So"}]
    template = ChatTemplate("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}")
    with pytest.raises(InvalidArgument, match="continue_final_message: .* the chat template changed it"):
        CompiledTemplate(template).render(Conversation(turns, {}, continue_final_message=True))


@pytest.mark.parametrize("source", [BOTH, "{{ messages[0]['content'] }}", "{{ messages[0]['role'] }} type"])
def test_other_templates_get_text(source: str) -> None:
    assert not CompiledTemplate(ChatTemplate(source)).expects.content_parts
