"""Conversations that a strict chat template would refuse are rearranged, and no text of them is lost."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, cast

import msgspec
import pytest

from ovserve.api.ollama.body import Message as Turn
from ovserve.api.ollama.endpoints import _messages
from ovserve.api.openai.logprobs import Pictures
from ovserve.llm.chat_template import ChatTemplate, EncodedConversation
from ovserve.llm.template import CompiledTemplate
from tests.llm.parsing.cuts import result as result_of
from tests.rendering import probed, render

# One system message, first, and at least one of the user, as Qwen3.5 has it.
ONE_FIRST = (
    "{% set ns = namespace(user=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.user = true %}"
    "{% endif %}{% endfor %}{% if not ns.user %}{{ raise_exception('no user query') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system late') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %} calls {{ c.function.name }}"
    "{% endfor %}</{{ m.role }}>{% endfor %}"
)
# A system message becomes part of the first turn; turns alternate, as in Gemma 3.
ALTERNATING = (
    "{% set prefix = '' %}{% set turns = messages %}{% if messages[0].role == 'system' %}"
    "{% set prefix = messages[0].content + ' / ' %}{% set turns = messages[1:] %}{% endif %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('alternate') }}{% endif %}"
    "<{{ m.role }}>{{ prefix if loop.first }}{{ m.content }}</{{ m.role }}>{% endfor %}"
)
# The same without any system message, as in Gemma 2.
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('system') }}{% endif %}" + ALTERNATING
# Calls and results do not count, but a result is followed by the assistant, as in Mistral's templates.
UNCOUNTED = (
    "{% set ns = namespace(i=0) %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system late') }}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "{% set ns.i = ns.i + 1 %}{% endif %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %} calls "
    "{{ c.function.name }}{% endfor %}</{{ m.role }}>{% endfor %}"
)
# Later system messages are dropped without a word, as in gpt-oss's template.
DROPPING = (
    "{% if messages[0].role in ('system', 'developer') %}<developer>{{ messages[0].content }}</developer>"
    "{% endif %}{% for m in messages %}{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}"
    "</{{ m.role }}>{% endif %}{% endfor %}"
)
FREE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
STRICT = {"one_first": ONE_FIRST, "alternating": ALTERNATING, "no_system": NO_SYSTEM, "dropping": DROPPING}
NO_TOOL = "{% if m.role == 'tool' %}{{ raise_exception('tool') }}{% endif %}"
CALL = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]


def said(*turns: str) -> list[dict[str, Any]]:
    """Messages such as `user:x`."""
    return [{"role": role, "content": text} for role, _, text in (turn.partition(":") for turn in turns)]


@pytest.mark.parametrize("source", STRICT.values(), ids=STRICT)
def test_every_order_of_roles_is_rendered_with_all_its_texts(source: str) -> None:
    template = probed(source)
    compiled = CompiledTemplate(template)
    for length in range(1, 5):
        for roles in itertools.product(("system", "developer", "user", "assistant"), repeat=length):
            turns = said(*(f"{role}:text{i}." for i, role in enumerate(roles)))
            prompt = compiled.render(template.conversation(turns))
            assert [text for text in (t["content"] for t in turns) if prompt.count(text) != 1] == [], roles


@pytest.mark.parametrize(
    ("source", "turns", "prompt", "changes"),
    [
        (ONE_FIRST, said("user:x", "assistant:y", "system:n", "user:z"),
         "<system>n</system><user>x</user><assistant>y</assistant><user>z</user>", ("system-merged",)),
        (ONE_FIRST, said("system:a", "developer:b", "user:x", "system:c"),
         "<system>a\n\nb\n\nc</system><user>x</user>", ("system-merged",)),
        (ONE_FIRST, said("system:a", "user:x", "user:y"), "<system>a</system><user>x</user><user>y</user>", ()),
        (ONE_FIRST, said("system:a"), "<user>a</user>", ("system-in-user",)),
        (ALTERNATING, said("system:a", "user:x", "user:y", "assistant:b", "assistant:c", "user:z"),
         "<user>a / x\n\ny</user><assistant>b\n\nc</assistant><user>z</user>", ("turns-merged",)),
        (ALTERNATING, said("user:x", "system:a", "user:y"), "<user>a / x\n\ny</user>",
         ("system-merged", "turns-merged")),
        (ALTERNATING, said("assistant:hello", "user:x"), "<user></user><assistant>hello</assistant><user>x</user>",
         ("user-added",)),
        (NO_SYSTEM, said("system:a", "user:x"), "<user>a\n\nx</user>", ("system-in-user",)),
        (NO_SYSTEM, said("system:a", "assistant:hello", "user:x"),
         "<user>a</user><assistant>hello</assistant><user>x</user>", ("system-in-user",)),
        (DROPPING, said("developer:a", "user:x", "developer:b"), "<developer>a\n\nb</developer><user>x</user>",
         ("system-merged",)),
        (FREE, said("user:x", "system:a", "user:y", "user:z"),
         "<user>x</user><system>a</system><user>y</user><user>z</user>", ()),
    ],
)  # fmt: skip
def test_what_a_template_gets(
    source: str, turns: list[dict[str, Any]], prompt: str, changes: tuple[str, ...]
) -> None:
    template = probed(source)
    before = [dict(turn) for turn in turns]
    conversation = template.conversation(turns)
    assert CompiledTemplate(template).render(conversation) == prompt
    assert conversation.adapted == changes
    assert EncodedConversation.of(conversation).adapted == changes
    assert turns == before


def test_a_developer_message_keeps_its_role_where_the_template_has_it() -> None:
    source = "{# developer #}" + FREE.replace(
        "{% for",
        "{% if messages[1:] | selectattr('role', 'in', ['system', 'developer']) | list %}{{ raise_exception('late') }}{% endif %}{% for",
        1,
    )
    assert (
        render(source, said("developer:a", "user:x", "system:b"))
        == "<developer>a\n\nb</developer><user>x</user>"
    )


CALLED = [
    *said("user:x"),
    {"role": "assistant", "content": "", "tool_calls": CALL},
    {"role": "tool", "content": "found", "tool_call_id": "a"},
]


def test_calls_and_results_keep_their_places() -> None:
    assert render(ONE_FIRST, [*CALLED, *said("system:n", "user:z")]) == (
        "<system>n</system><user>x</user><assistant> calls look</assistant><tool>found</tool><user>z</user>"
    )
    two_turns = [*said("user:x", "assistant:let me see"), *CALLED[1:]]
    assert render(UNCOUNTED, two_turns) == (
        "<user>x</user><assistant>let me see calls look</assistant><tool>found</tool>"
    )


@pytest.mark.parametrize("source", STRICT.values(), ids=STRICT)
def test_calls_and_results_become_text_where_the_template_has_none(source: str) -> None:
    """Also in a request without tools, such as that of an agent that has its work summed up."""
    template = probed(
        source.replace("m.tool_calls", "none").replace("<{{ m.role }}>", NO_TOOL + "<{{ m.role }}>")
    )
    conversation = template.conversation([*CALLED, *said("assistant:y", "user:z")])
    text = CompiledTemplate(template).render(conversation)
    assert re.findall(r"x|look|found|y|z", text) == ["x", "look", "found", "y", "z"]
    assert conversation.adapted[0] == "calls-in-text"
    assert template.conversation(said("user:x")).adapted == ()


def test_calls_become_text_where_the_template_shows_messages_of_any_role() -> None:
    """Plain ChatML dropped the names and arguments of calls, and showed their results."""
    template = probed(FREE)
    conversation = template.conversation(CALLED)
    text = CompiledTemplate(template).render(conversation)
    assert text.endswith("</tool_call></assistant><tool>found</tool>")
    assert '"name": "look"' in text
    assert conversation.adapted == ("calls-in-text",)
    assert template.conversation(said("user:x", "tool:found")).adapted == ()


LFM2 = "{# <|tool_list_start|> #}" + FREE


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"city": "Os\\"lo", "n": 2, "on": true, "at": [null, {"x": "y"}]}',
         """look(city="Os\\"lo", n=2, on=True, at=[None, {'x': 'y'}])"""),
        ("", "look()"),
        ({"a": "ß"}, 'look(a="ß")'),
        ('{"a-b": 1}', None),
        ('{"a": ', None),
    ],
)  # fmt: skip
def test_calls_become_the_text_that_lfm2_writes(arguments: Any, text: str | None) -> None:
    template = probed(LFM2)
    asked = [
        {"id": c, "type": "function", "function": {"name": "look", "arguments": arguments}} for c in "ab"
    ]
    turns = [
        *said("user:x"),
        {"role": "assistant", "content": "I look.", "tool_calls": asked},
        *said("tool:found"),
    ]
    prompt = CompiledTemplate(template).render(template.conversation(turns))
    if text is None:
        assert prompt.count("<tool_call>") == 2
        return
    written = f"<|tool_call_start|>[{text}, {text}]<|tool_call_end|>"
    assert prompt == f"<user>x</user><assistant>I look.\n{written}</assistant><tool>found</tool>"
    whole = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    assert [(name, json.loads(read)) for name, read in result_of([written], "lfm2")[2]] == [
        ("look", whole)
    ] * 2


def test_text_of_the_user_after_a_result_joins_it_where_the_template_wants_an_answer() -> None:
    template = probed(UNCOUNTED)
    conversation = template.conversation([*CALLED, *said("user:and now?", "user:well?")])
    assert CompiledTemplate(template).render(conversation) == (
        "<user>x</user><assistant> calls look</assistant><tool>found\n\nand now?\n\nwell?</tool>"
    )
    assert conversation.adapted == ("turns-merged",)
    answered = [*CALLED, *said("assistant:y", "user:z")]
    assert template.conversation(answered).adapted == ()


def test_images_and_the_beginning_of_an_answer_survive() -> None:
    template = probed(ALTERNATING)
    turns = said("user:<ov_genai_image_0>", "system:n", "user:look", "assistant:I", "assistant: see")
    conversation = template.conversation(turns, continue_final_message=True)
    assert CompiledTemplate(template).render(conversation) == (
        "<user>n / <ov_genai_image_0>\n\nlook</user><assistant>I\n\n see"
    )
    assert conversation.prefill == EncodedConversation.of(conversation).prefill == "I\n\n see"


def test_the_tools_of_a_generic_prompt_join_the_system_message() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    template = probed(ChatTemplate(NO_SYSTEM, generic_tools=True))
    conversation = template.conversation(
        [*said("user:x"), *CALLED[1:], *said("system:n", "user:z")], tools=[tool]
    )
    prompt = CompiledTemplate(template).render(conversation)
    assert prompt.startswith("<user># Tools")
    assert "n\n\nx</user><assistant><tool_call>" in prompt
    assert prompt.endswith("<user><tool_response>\nfound\n</tool_response>\n\nz</user>")


# Forms of calls that templates refuse, as public reports have them.
ROLES = "{% for m in messages %}<{{ m.role }}>"
NAMES = "{% for c in m.tool_calls or [] %} {{ c.function.name }}{% endfor %}"
# As in Llama 3.1: one call of a message, without its text.
ONE_CALL = ROLES + (
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one at once') }}{% endif %}"
    + NAMES + "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)  # fmt: skip
NULL_CONTENT = (
    ROLES + "{% if m.content is none %}" + NAMES + "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
NINE = ROLES + (
    "{{ m.content }}{% for c in m.tool_calls or [m] %}{% set id = c.id or c.tool_call_id %}"
    "{% if c is not mapping or c.function or m.role == 'tool' %}"
    "{% if id | length != 9 %}{{ raise_exception('nine') }}{% endif %} {{ id }}{% endif %}{% endfor %}{% endfor %}"
)
# As in Mistral's: the text before a call is not shown, and could not stand alone.
NO_TEXT = UNCOUNTED.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}")
# As in gpt-oss: text or thoughts before a call, as long as no answer follows.
UNTIL_ANSWER = (
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% set ns = namespace(answer=false) %}"
    "{% for n in messages[loop.index:] %}{% if n.role == 'assistant' and not n.tool_calls %}"
    "{% set ns.answer = true %}{% endif %}{% endfor %}{% if m.content and m.reasoning_content %}"
    "{{ raise_exception('both') }}{% endif %}{% if not ns.answer %}{{ m.content or m.reasoning_content }}"
    "{% endif %}" + NAMES + "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
# As in Mistral Nemo: the system message stands in the last one, if it is the user's.
SYSTEM_LAST = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if system else messages) %}<{{ m.role }}>"
    "{% if m.role == 'system' %}{{ raise_exception('late') }}{% endif %}"
    "{% if loop.last and m.role == 'user' and system %}{{ system }} {% endif %}{{ m.content }}"
    + NAMES + "{% endfor %}"
)  # fmt: skip
# As in Gemma 4: a result has the name of a call in the message before it, or its own.
NAMED = (
    "{% set ns = namespace(calls=[]) %}{% for m in messages %}{% if m.role != 'tool' %}"
    "{% set ns.calls = m.tool_calls or [] %}<{{ m.role }}>{{ m.content }}" + NAMES + "{% else %}"
    "{% set f = namespace(name=m.name) %}{% for c in ns.calls %}{% if c.id == m.tool_call_id %}"
    "{% set f.name = c.function.name %}{% endif %}{% endfor %}{{ '<' + f.name + '>' + m.content }}"
    "{% endif %}{% endfor %}"
)
THOUGHT = {"reasoning_content": "why"}
NO_EMPTY = ALTERNATING.replace("<{{", "{% if not m.content %}{{ raise_exception('empty') }}{% endif %}<{{")


def calls(*names: str, text: str = "", ids: bool = True) -> dict[str, Any]:
    made = [
        {
            "id": f"call_{name}" if ids else None,
            "type": "function",
            "function": {"name": name, "arguments": "{}"},
        }
        for name in names
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def theirs(id_: str) -> dict[str, Any]:
    """A call with an id of nine characters that the client chose."""
    call = {"id": id_, "type": "function", "function": {"name": "g", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(name: str, text: str, ids: bool = True) -> dict[str, Any]:
    return {"role": "tool", "content": text} | ({"tool_call_id": f"call_{name}"} if ids else {})


@pytest.mark.parametrize(
    ("source", "turns", "prompt", "changes"),
    [
        (ONE_CALL, [*said("user:x"), calls("f", "g", text="t"), result("g", "two"), result("f", "one")],
         "<user>x<assistant>t<assistant> f<tool>one<assistant> g<tool>two", ("calls-apart",)),
        (ONE_CALL, [*said("user:x"), calls("f", "g", ids=False), result("", "one", False), result("", "two", False)],
         "<user>x<assistant> f<tool>one<assistant> g<tool>two", ("calls-apart",)),
        (ONE_CALL, [*said("user:x"), calls("f"), result("f", "one")], "<user>x<assistant> f<tool>one", ()),
        (NULL_CONTENT, [*said("user:x"), calls("f", "g", text="t"), result("f", "one")],
         "<user>x<assistant>t<assistant> f g<tool>one", ("calls-apart",)),
        (NINE, [*said("user:x"), calls("f", "g"), result("g", "two"), result("f", "one")],
         "<user>x<assistant> call00001 call00002<tool>two call00002<tool>one call00001", ("call-ids",)),
        (NINE, [*said("user:x"), calls("f", ids=False), result("", "one", False), calls("g"), result("lost", "two")],
         "<user>x<assistant> call00001<tool>one call00001<assistant> call00002<tool>two call00002", ("call-ids",)),
        (NO_TEXT, [*said("user:x"), calls("f", text="t"), result("f", "one"), *said("assistant:z")],
         "<user>x</user><assistant> calls f</assistant><tool>one</tool><assistant>z</assistant>", ("text-lost",)),
        (UNTIL_ANSWER, [*said("user:x"), calls("f", text="t") | THOUGHT, result("f", "one")],
         "<user>x<assistant>why\n\nt f<tool>one", ("text-in-thoughts",)),
        (UNTIL_ANSWER, [*said("user:x"), calls("f", text="t"), result("f", "one")], "<user>x<assistant>t f<tool>one", ()),
        (UNTIL_ANSWER, [*said("user:x"), calls("f", text="t"), result("f", "one"), *said("assistant:z")],
         "<user>x<assistant> f<tool>one<assistant>z", ("text-lost",)),
        (SYSTEM_LAST, said("system:s", "user:x"), "<user>s x", ()),
        (SYSTEM_LAST, [*said("system:s", "user:x"), calls("f"), result("f", "one")],
         "<user>s\n\nx<assistant> f<tool>one", ("system-in-user",)),
        (NAMED, [*said("user:x"), calls("f"), calls("g"), result("f", "one"), result("g", "two")],
         "<user>x<assistant> f<assistant> g<f>one<g>two", ()),
        (NAMED, [*said("user:x"), calls("f"), result("other", "one")], "<user>x<assistant> f<f>one", ()),
        (FREE, [*said("user:x"), {**said("assistant:y")[0], **THOUGHT}], "<user>x</user><assistant>y</assistant>", ("thoughts-lost",)),
        (FREE, [{**said("user:x")[0], "name": "ann"}], "<user>x</user>", ("names-lost",)),
        (FREE, [{**said("assistant:y")[0], **THOUGHT}, *said("user:x")], "<assistant>y</assistant><user>x</user>", ()),
        (NINE, [*said("user:x"), calls("f"), result("f", "one"), theirs("call00001"), theirs("call00002")],
         "<user>x<assistant> call00003<tool>one call00003<assistant> call00001<assistant> call00002", ("call-ids",)),
        (NO_EMPTY, said("user:x", "assistant:", "user:y"), "<user>x\n\ny</user>", ("turns-merged",)),
        (UNCOUNTED, [*said("user:x"), calls("f"), *said("user:stop")],
         "<user>x</user><assistant> calls f</assistant><tool>stop</tool>", ("turns-merged",)),
    ],
)  # fmt: skip
def test_calls_get_the_form_that_a_template_takes(
    source: str, turns: list[dict[str, Any]], prompt: str, changes: tuple[str, ...]
) -> None:
    template = probed(source)
    conversation = template.conversation(turns)
    assert (CompiledTemplate(template).render(conversation), conversation.adapted) == (prompt, changes)


def test_ollamas_calls_without_ids_get_none_of_the_clients() -> None:
    turns = msgspec.convert(
        [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, {"id": "call00001", "function": {"name": "g"}}]},
            {"role": "tool", "content": "one"},
        ],
        list[Turn],
    )  # fmt: skip
    calling, answer = _messages(turns, cast(Pictures, None))
    assert [call.id for call in calling.tool_calls or ()] == ["call00002", "call00001"]
    assert answer.tool_call_id == "call00002"
