"""Bodies of chat and completions: what is absent, unknown or bound to the model; tests/http/test_refusals.py has
the wrong values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.api.openai import ENDPOINTS
from ovserve.api.openai.body import peek_model, unique_members
from ovserve.api.openai.chat import ChatRequest
from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.decoding import Mode
from ovserve.llm.model import ModelContext
from tests.rendering import rendered

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
MODEL = ModelContext(
    template=TEMPLATE, max_length=100, max_tokens_limit=50, defaults={"temperature": 0.3, "top_k": 7}
)


def chat(**fields: Any) -> Any:
    return ENDPOINTS["chat/completions"].decode(json.dumps(CHAT | fields).encode())


def request(model: ModelContext = MODEL, **fields: Any) -> Any:
    return rendered(ENDPOINTS["chat/completions"].to_request(chat(**fields), model), model)


def test_null_is_absent() -> None:
    optional = {*ChatRequest.__struct_fields__} - {"model", "messages"}
    assert chat(**dict.fromkeys(optional)).ignored == ()


def test_neutral_values_of_unsupported_fields_ask_for_nothing() -> None:
    decoded = chat(
        n=1, logprobs=False, tools=[], logit_bias={}, response_format={"type": "text"}, top_logprobs=0
    )
    assert decoded.ignored == ()


def test_unknown_fields_are_reported_not_refused() -> None:
    assert chat(user="me", zebra=1, metadata={}).ignored == ("metadata", "zebra")


def test_unknown_fields_inside_are_reported_by_path() -> None:
    """The first of each kind. What asks for nothing is not, and what is free to have any field has none."""
    text = {"type": "text", "text": "a"}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "odd": 1, "annotations": [], "audio": None, "extra": {}},
        {"role": "user", "content": [text, text | {"zip": 2}], "odd": 3},
        {"role": "user", "content": [text | {"zip": 4}]},
    ]
    decoded = chat(
        messages=messages,
        stream=True,
        stream_options={"include_usage": True, "odd": 1},
        chat_template_kwargs={"odd": {"odd": 1}},
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}, "odd": 1}],
        logit_bias={},
    )
    assert decoded.ignored == ("messages[1].odd", "messages[2].content[1].zip", "stream_options.odd")


def test_unknown_fields_inside_are_bounded() -> None:
    """All of them would be sorted and written into a header in the event loop: 0.5 s for 300,000."""
    odd = {f"odd{i}": 1 for i in range(5000)}
    assert len(chat(messages=[{"role": "user", "content": "a", **odd}]).ignored) == 100


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b"{'model': 1}", "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"model": "m"} trailing', "not valid JSON"),
        (b"{}", "model: required, but missing"),
        (b'{"model": null}', "model: expected `str`, got null"),
        (b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nests too deeply"),
        (b'{"a": ' * 10_000 + b"1" + b"}" * 10_000, "nests too deeply"),
        (b"[" * 1_000_000, "not a JSON object"),
    ],
)
def test_a_body_that_is_not_a_request(body: bytes, says: str) -> None:
    for use in (peek_model, ENDPOINTS["chat/completions"].decode, ENDPOINTS["completions"].decode):
        with pytest.raises(InvalidArgument, match=".") as caught:
            use(body)
        if use is peek_model:
            assert says in str(caught.value)


def test_brackets_in_strings_are_not_nesting() -> None:
    chat(messages=[{"role": "user", "content": '["{' * 500}])


def test_long_values_are_cut_in_the_message() -> None:
    with pytest.raises(InvalidArgument) as caught:
        chat(temperature="x" * 10_000)
    assert len(str(caught.value)) < 300


def test_defaults_come_from_the_request_then_the_model_then_us() -> None:
    assert request().sampling.temperature == 0.3
    assert request(temperature=0).sampling.temperature == 0
    assert request(ModelContext(template=TEMPLATE)).sampling.temperature == 1.0
    assert request().sampling.top_k == 7
    assert request(top_k=-1).sampling.top_k is None


def test_max_tokens_limit_is_inclusive_and_is_the_default() -> None:
    assert request(max_tokens=50).sampling.max_tokens == 50
    assert request().sampling.max_tokens == request(max_tokens=-1).sampling.max_tokens == 50
    with pytest.raises(InvalidArgument, match="max_completion_tokens: 51 is above max_tokens_limit 50"):
        request(max_completion_tokens=51)
    assert request(ModelContext(template=TEMPLATE)).sampling.max_tokens is None
    assert request(max_tokens=3, max_completion_tokens=4).sampling.max_tokens == 4


def test_seed_is_random_when_absent_and_kept_when_given() -> None:
    assert request(seed=5).sampling.seed == 5
    assert request(seed=-1).sampling.seed == 2**64 - 1
    assert len({request().sampling.seed for _ in range(5)}) == 5


def test_content_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert request(messages=[{"role": "user", "content": parts}]).prompts == ("user:a\nb;",)
    assert request(messages=[{"role": "assistant", "content": None}]).prompts == ("assistant:;",)


def test_a_part_a_text_model_cannot_take_is_named_by_index_and_type() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(InvalidArgument) as caught:
        request(messages=[{"role": "user", "content": parts}])
    assert caught.value.param == "messages[0].content[1].type"
    assert "image_url" in str(caught.value)


def test_template_errors_carry_the_template_s_words() -> None:
    model = ModelContext(template=ChatTemplate("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(InvalidArgument, match="roles must alternate"):
        request(model)


def test_a_model_without_template_says_so() -> None:
    with pytest.raises(InvalidArgument, match="no chat template"):
        request(ModelContext())


def test_reserved_template_kwargs_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="'messages' is set by the server"):
        request(chat_template_kwargs={"messages": []})


def completion(**fields: Any) -> Any:
    return ENDPOINTS["completions"].decode(json.dumps(COMPLETION | fields).encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_prompts_in_every_form(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_limits_that_depend_on_the_model() -> None:
    model = ModelContext(template=TEMPLATE, best_of_limit=3)
    assert request(model, best_of=3, temperature=0).sampling.beams == 3
    with pytest.raises(InvalidArgument, match="best_of: 4 is above best_of_limit 3"):
        request(model, best_of=4)
    with pytest.raises(InvalidArgument, match="min_tokens: 9 is more than max_tokens 5"):
        request(model, min_tokens=9, max_tokens=5)


def test_assisted_decoding_fields_are_reported_where_they_have_no_effect() -> None:
    def ignored(mode: Mode) -> tuple[str, ...]:
        model = ModelContext(template=TEMPLATE, decoding=mode)
        return request(model, num_assistant_tokens=5, max_ngram_size=3).presentation.ignored_params

    assert ignored("plain") == ("max_ngram_size", "num_assistant_tokens")
    assert ignored("draft") == ("max_ngram_size",)
    assert ignored("prompt_lookup") == ()


def test_assisted_decoding_comes_of_the_request_then_the_model() -> None:
    def assisted(mode: Mode, file: dict[str, float], **fields: object) -> tuple[float, float, float]:
        model = ModelContext(template=TEMPLATE, decoding=mode, defaults=file)
        s = request(model, **fields).sampling
        return s.num_assistant_tokens, s.assistant_confidence_threshold, s.max_ngram_size

    assert assisted("prompt_lookup", {}) == (0, 0, 0)  # the engine's defaults
    assert assisted("prompt_lookup", {"max_ngram_size": 4}, num_assistant_tokens=7) == (7, 0, 4)
    assert assisted("draft", {"num_assistant_tokens": 8}) == (8, 0, 0)
    # One of the two set by the client unsets the other of the model, where OVMS answers 400.
    assert assisted("draft", {"num_assistant_tokens": 8}, assistant_confidence_threshold=0.5) == (0, 0.5, 0)
    assert assisted("draft", {"assistant_confidence_threshold": 0.5}, num_assistant_tokens=2) == (2, 0, 0)
    with pytest.raises(
        InvalidArgument, match="assistant_confidence_threshold: 0.5 has no meaning with prompt lookup"
    ):
        assisted("prompt_lookup", {}, assistant_confidence_threshold=0.5)


def test_with_a_draft_model_greedy_is_the_default() -> None:
    model = ModelContext(template=TEMPLATE, decoding="draft", defaults={"temperature": 0.7})
    assert request(model).sampling.temperature == 0
    assert request(model, temperature=0.3).sampling.temperature == 0.3  # the engine says no


def test_top_k_is_40_only_when_sampling() -> None:
    plain = ModelContext(template=TEMPLATE)
    assert request(plain).sampling.top_k == 40
    assert request(plain, temperature=0).sampling.top_k is None


def test_the_developer_role_becomes_system_where_the_template_has_none() -> None:
    messages = [{"role": "developer", "content": "be brief"}]
    assert request(messages=messages).prompts == ("system:be brief;",)
    knows = ModelContext(
        template=ChatTemplate(
            "{% for m in messages %}{% if m.role == 'developer' %}dev{% endif %}{% endfor %}"
        )
    )
    assert request(knows, messages=messages).prompts == ("dev",)


def test_continue_final_message_ends_inside_it() -> None:
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one two"}]
    assert request(messages=messages, continue_final_message=True).prompts == (
        "user:count;assistant:one two",
    )
    with pytest.raises(InvalidArgument, match="the last message is empty"):
        request(messages=[{"role": "assistant", "content": ""}], continue_final_message=True)


def test_reasoning_effort_reaches_a_template_that_reads_it_and_is_reported_otherwise() -> None:
    assert request(reasoning_effort="high").presentation.ignored_params == ("reasoning_effort",)
    effort = ModelContext(template=ChatTemplate("{{ reasoning_effort }}"))
    assert request(effort, reasoning_effort="high").prompts == ("high",)
    thinking = ModelContext(template=ChatTemplate("{{ enable_thinking }}"))
    assert request(thinking, reasoning_effort="none").prompts == ("False",)
    assert request(thinking, reasoning_effort="low").prompts == ("True",)


@pytest.mark.parametrize(
    ("fields", "thoughts", "text"),
    [
        ({"content": "a", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, "hm", "a"),
        ({"content": "a", "reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]}, "hm", "a"),
        ({"content": "a", "thinking_blocks": [{"type": "thinking", "thinking": "hm"}]}, "hm", "a"),
        ({"content": "a", "reasoning_content": "hm", "reasoning_details": [{"text": "hm"}]}, "hm", "a"),
        ({"content": "a", "reasoning_details": [], "thinking_blocks": None, "refusal": None}, "", "a"),
        ({"content": None, "refusal": "no"}, "", "no"),
        ({"content": "a", "refusal": "no"}, "", "a"),
    ],
)
def test_thoughts_and_refusals_of_other_servers_answers_reach_the_template(
    fields: dict[str, Any], thoughts: str, text: str
) -> None:
    """An answer of OpenRouter, MiniMax, LiteLLM or OpenAI, sent back as it came."""
    model = ModelContext(
        template=ChatTemplate("{{ messages[0].reasoning_content }}|{{ messages[0].content }}")
    )
    answer = request(model, messages=[{"role": "assistant"} | fields])
    assert (answer.prompts, answer.presentation.ignored_params) == ((f"{thoughts}|{text}",), ())


def test_thoughts_that_only_another_server_can_read_are_reported() -> None:
    encrypted, redacted = ([{"type": each, "data": "eA=="}] for each in ("reasoning.encrypted", "redacted"))
    message = {
        "role": "assistant",
        "content": "a",
        "reasoning_details": encrypted,
        "thinking_blocks": redacted,
    }
    answer = request(messages=[message])
    fields = ("messages[0].reasoning_details", "messages[0].thinking_blocks")
    assert answer.presentation.ignored_params == fields


def test_tool_calls_and_results_in_history_reach_the_template() -> None:
    messages = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    source = "{% for m in messages %}{{ m.tool_calls[0].function.name if m.tool_calls }}{{ m.tool_call_id }}{{ m.content }};{% endfor %}"
    model = ModelContext(template=ChatTemplate(source))
    assert request(model, messages=messages).prompts == ("f;c142;",)


BASE64 = "QUJD" * 20_000


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"url": "data:image/png;base64,%s", "a": 1, "a": 2}', "a"),
        ('{"a": 1, "url": "data:image/png;base64,%s", "x": {"url": "data:;base64,%s", "a": 2}, "a": 3}', "a"),
        ('{"source": {"data": "%s", "data": "%s"}}', "data"),
        ('{"source": {"data" : "%s"}, "b": 1, "b": 2}', "b"),
        ('{"text": "say \\"data:image/png;base64,%s", "a": 1, "a": 2}', "a"),
        ('{"text": "x\\\\", "url": "data:;base64,%s\\/", "a": 1, "a": 2}', "a"),
        ('{"one": "data:;base64,%s", "two": "data:;base64,%s"}', None),
        ('{"text": "say \\"data:image/png;base64,%s and \\" on"}', None),
        ('{"text": "\\\\\\"data\\": \\"%s"}', None),
        ('{"url": "data:;base64,%s\\/%s"}', None),
    ],
)
def test_keys_beside_images_are_counted_too(text: str, twice: str | None) -> None:
    """The walk that looks for them leaves out what is inside of images."""
    body = text.replace("%s", BASE64).encode()
    assert len(json.loads(body)) >= 1
    if twice is None:
        unique_members(body)
    else:
        with pytest.raises(InvalidArgument, match=f"'{twice}' occurs twice"):
            unique_members(body)
