"""A budget of reasoning, on real engines, with the clients that ask for one: the answer goes on after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.conftest import ROOT, Server, start_process
from tests.short_model import EXACT

IGNORED = "x-ovserve-ignored-params"
OPENED = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}{{- '<|im_start|>assistant\\n<think>\\n' }}{# </think> #}"
STORY: list[Any] = [{"role": "user", "content": "Tell me a long story about a dragon."}]
BUDGET = 8
ASKED: dict[str, Any] = {"model": "paged", "messages": STORY, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(short_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two layers of the default model, made to reason by a template that opens it, on both engines."""
    directory = tmp_path_factory.mktemp("budget")
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    listed = []
    for name in ("paged", "genai"):
        made = directory / name
        made.mkdir()
        options = f"plugin_config: '{EXACT}' "
        options += f'models_path: "{short_model}" engine: "{name}" chat_template_path: "t.jinja" reasoning_parser: "qwen3"'
        (made / "graph.pbtxt").write_text(text.replace('models_path: "../../models/smollm2"', options))
        (made / "t.jinja").write_text(OPENED)
        listed.append({"name": name, "base_path": str(made)})
    config = directory / "config.json"
    config.write_text(json.dumps({"model_config_list": [], "mediapipe_config_list": listed}))
    running = start_process("--config_path", str(config), timeout=230)
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        yield client


def tokens(server: Server, text: str) -> int:
    body = {"model": "paged", "text": text, "add_special_tokens": False}
    return len(httpx.post(f"{server.v3}/tokenize", json=body).json()["tokens"])


def chat(client: openai.OpenAI, body: dict[str, Any], **more: Any) -> Any:
    return client.chat.completions.create(**ASKED | more, extra_body=body)


def thought(choice: Any) -> tuple[str, str]:
    return choice.message.reasoning_content, choice.message.content


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning_budget": BUDGET},
        {"thinking_budget_tokens": BUDGET},
        {"thinking_token_budget": BUDGET},
        {"reasoning": {"max_tokens": BUDGET}},
    ],
)
def test_reasoning_ends_at_its_budget_and_the_answer_follows(
    server: Server, client: openai.OpenAI, body: dict[str, Any]
) -> None:
    free = chat(client, {}, max_tokens=BUDGET)
    answer = chat(client, body)
    reasoning, content = thought(answer.choices[0])
    assert reasoning.strip() == free.choices[0].message.reasoning_content.strip()
    assert content
    usage = answer.usage
    assert usage.completion_tokens_details.reasoning_tokens == BUDGET + tokens(server, "</think>")
    assert (usage.completion_tokens, answer.choices[0].finish_reason) == (24, "length")


def test_a_stream_says_the_same_and_a_message_stands_before_the_end(
    server: Server, client: openai.OpenAI
) -> None:
    body = {"reasoning_budget": BUDGET, "reasoning_budget_message": " Enough; I answer now."}
    whole = thought(chat(client, body).choices[0])
    assert whole[0].endswith(" Enough; I answer now.")
    deltas = [chunk.choices[0].delta.to_dict() for chunk in chat(client, body, stream=True)]
    streamed = ("".join(str(d.get(name) or "") for d in deltas) for name in ("reasoning_content", "content"))
    assert (*streamed,) == whole


def test_zero_ends_the_reasoning_at_once_and_minus_one_never(client: openai.OpenAI) -> None:
    reasoning, content = (
        getattr(chat(client, {"reasoning_budget": 0}).choices[0].message, name, "")
        for name in ("reasoning_content", "content")
    )
    assert not reasoning
    assert content
    endless = chat(client, {"reasoning_budget": -1}).choices[0].message
    assert endless.reasoning_content == chat(client, {}).choices[0].message.reasoning_content


def test_with_a_grammar_choices_drafts_and_logprobs(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"name": {"enum": ["Smaug", "Fafnir"]}}, "required": ["name"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "dragon", "schema": schema}}
    body = {"reasoning_budget": BUDGET, "num_assistant_tokens": 4}
    more = {"n": 3, "temperature": 1, "seed": 7, "logprobs": True, "max_tokens": 60}
    answer = chat(client, body, response_format=form, **more)
    for choice in answer.choices:
        assert json.loads(choice.message.content)["name"] in ("Smaug", "Fafnir")
        written = "".join(token.token for token in choice.logprobs.content)
        assert "</think>" in written
        assert all(token.logprob <= 0 for token in choice.logprobs.content)
    assert len({choice.message.reasoning_content for choice in answer.choices}) > 1


def test_a_stop_string_ends_the_answer_after_forced_tokens(client: openai.OpenAI) -> None:
    body = {"reasoning_budget": BUDGET, "num_assistant_tokens": 0}
    more = {"temperature": 1, "seed": 5, "max_tokens": 60}
    reasoning, content = thought(chat(client, body, **more).choices[0])
    stop = next(word for word in content.split()[1:] if content.find(word) and word not in reasoning)
    choice = chat(client, body, **more, stop=[stop]).choices[0]
    assert thought(choice) == (reasoning, content[: content.index(stop)])
    assert choice.finish_reason == "stop"


def test_a_beginning_that_the_client_wrote_is_not_counted(client: openai.OpenAI) -> None:
    turns = [*STORY, {"role": "assistant", "content": "<think>\nA knight or a dragon?"}]
    body = {"reasoning_budget": 3, "continue_final_message": True}
    answer = chat(client, body, messages=turns)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.reasoning_content


def test_anthropic_and_responses_clients(server: Server, client: openai.OpenAI) -> None:
    reasoning, content = thought(chat(client, {"reasoning_budget": BUDGET}).choices[0])
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        message = claude.messages.create(
            model="paged",
            messages=STORY,
            max_tokens=24,
            thinking={"type": "enabled", "budget_tokens": BUDGET},
            extra_body={"temperature": 0},
        )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == reasoning  # type: ignore[union-attr]
    assert message.content[1].text == content  # type: ignore[union-attr]
    response = client.responses.create(
        model="paged",
        input=STORY,
        temperature=0,
        max_output_tokens=24,
        store=False,
        extra_body={"reasoning": {"max_tokens": BUDGET}},
    )
    assert response.output_text == content


def test_where_it_has_no_effect_a_header_says_so(server: Server, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        **ASKED | {"model": "genai"}, extra_body={"reasoning_budget": 3, "reasoning_budget_message": "Well."}
    )
    assert {"reasoning_budget", "reasoning_budget_message"} <= {*raw.headers[IGNORED].split(",")}
    assert (
        IGNORED
        not in client.chat.completions.with_raw_response.create(
            **ASKED, extra_body={"reasoning_budget": 3}
        ).headers
    )
    rows = httpx.get(f"{server.v3}/capabilities", params={"model": "genai"}).json()
    assert "only the paged engine ends the reasoning" in json.dumps(rows)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"reasoning_budget": -2}, "reasoning_budget", "-2"),
        ({"reasoning": {"max_tokens": 1.5}}, "reasoning.max_tokens", "1.5"),
        ({"reasoning_budget": 3, "thinking_token_budget": 3}, "reasoning_budget", "exclude each other"),
        (
            {"reasoning_budget": 3, "reasoning_budget_message": "a</think>"},
            "reasoning_budget_message",
            "</think>",
        ),
        (
            {"reasoning_budget": 3, "reasoning_budget_message": "a<|im_end|>"},
            "reasoning_budget_message",
            "ends the answer",
        ),
        ({"reasoning_budget": 3, "best_of": 2}, "best_of", "beam search"),
        (
            {"reasoning_effort": "low", "reasoning": {"effort": "high"}},
            "reasoning_effort",
            "exclude each other",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    client: openai.OpenAI, body: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, body)
    assert caught.value.param == param
    assert words in str(caught.value)
