"""Tokens that are parts of characters or special ones, as clients see them, in both engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import openvino_genai as ov_genai
import pytest

from ovserve.engine.protocol.specs import TextFacts
from ovserve.kinds.text.worker.genai.text import Text
from ovserve.llm.model import ModelContext
from ovserve.llm.parsing.registry import ParserChoice
from ovserve.llm.request import Parsing, Sampling, ToolPolicy
from tests.conftest import Server, start_process

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "日本語で挨拶: こんにちは 🎉🎉🎉"
END = "<|im_end|>"
SPECIAL = "<repo_name>"  # its id is 3
ENGINES = ("paged", "library")
NAME = "smollm2"


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    if request.param == "paged":
        yield request.param, request.getfixturevalue("server")
        return
    model = request.getfixturevalue("model").parent
    flags = ("--engine", "genai", "--enable_prefix_caching", "false")  # which excludes logprobs with echo
    running = start_process(str(model), "--model_name", NAME, *flags, timeout=230)
    yield request.param, running
    running.stop()


@pytest.fixture(scope="module")
def client(engine: tuple[str, Server]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engine[1].v3, api_key="none", max_retries=0) as made:
        yield made


def completion(client: openai.OpenAI, **more: Any) -> Any:
    fields = {"model": NAME, "prompt": PROMPT, "temperature": 0, "max_tokens": 16} | more
    return client.completions.create(**fields)  # type: ignore[call-overload]


def bytes_of(piece: str) -> bytes:
    """What a token of a completion's list stands for."""
    if not piece.startswith("bytes:"):
        return piece.encode()
    return piece.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")


def test_parts_of_characters_in_completions(client: openai.OpenAI) -> None:
    choice = completion(client, logprobs=1, echo=True, seed=1).choices[0]
    found = choice.logprobs
    assert any(piece.startswith("bytes:\\x") for piece in found.tokens), "the prompt has some"
    pieces = [bytes_of(piece) for piece in found.tokens]
    assert b"".join(pieces).decode("utf-8", "replace") == choice.text
    before = [b"".join(pieces[:at]).decode("utf-8", "ignore") for at in range(len(pieces))]
    assert found.text_offset == [len(text) for text in before]
    for piece, top in zip(found.tokens, found.top_logprobs, strict=True):
        assert top is None or piece in top


def test_a_stream_has_the_offsets_of_the_whole(client: openai.OpenAI) -> None:
    whole = completion(client, logprobs=1, max_tokens=32).choices[0].logprobs
    chunks = [
        c.choices[0].logprobs for c in completion(client, logprobs=1, max_tokens=32, stream=True) if c.choices
    ]
    assert [piece for found in chunks if found for piece in found.tokens] == whole.tokens
    assert [offset for found in chunks if found for offset in found.text_offset] == whole.text_offset


def test_as_many_places_as_were_requested(engine: tuple[str, Server], client: openai.OpenAI) -> None:
    if engine[0] != "paged":
        pytest.skip("this engine names the chosen token only")
    found = completion(client, logprobs=20, max_tokens=48).choices[0].logprobs
    assert any(key.startswith("bytes:") for top in found.top_logprobs for key in top)
    assert {len(top) for top in found.top_logprobs} <= {20, 21}
    chat = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=16,
        logprobs=True,
        top_logprobs=20,
        temperature=0,
    )
    for token in chat.choices[0].logprobs.content:  # type: ignore[union-attr]
        assert (
            len({one.token for one in token.top_logprobs})
            == len({tuple(one.bytes or ()) for one in token.top_logprobs})
            == 20
        )


def test_the_end_of_turn_is_shown_on_request(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": CAPITAL, "temperature": 0, "max_tokens": 60}
    shown: Any = {"skip_special_tokens": False}
    plain = client.chat.completions.create(**asked).choices[0]
    assert plain.finish_reason == "stop"
    answer = client.chat.completions.create(**asked, logprobs=True, extra_body=shown)
    assert answer.choices[0].message.content == (plain.message.content or "") + END
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[-1].token == END
    stream = client.chat.completions.create(**asked, stream=True, extra_body=shown)
    assert (
        "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
        == answer.choices[0].message.content
    )
    prompt = f"<|im_start|>user\n{CAPITAL[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    done = completion(client, prompt=prompt, max_tokens=60, extra_body=shown).choices[0]
    assert (done.text[-len(END) :], done.finish_reason) == (END, "stop")
    streamed = completion(client, prompt=prompt, max_tokens=60, stream=True, extra_body=shown)
    assert "".join(c.choices[0].text for c in streamed if c.choices) == done.text
    cut = completion(client, prompt=prompt, max_tokens=60, stop=[END], extra_body=shown).choices[0]
    assert (cut.text, cut.finish_reason) == (done.text.removesuffix(END), "stop")


def test_special_tokens_are_hidden(engine: tuple[str, Server], client: openai.OpenAI) -> None:
    """Also one that neither begins nor ends an answer."""
    body = {"model": NAME, "tokens": [3, 28, 3], "skip_special_tokens": True}
    url = f"{engine[1].v3}/detokenize"
    plain = httpx.post(url, json=body | {"tokens": [28]}).json()
    assert httpx.post(url, json=body).json() == plain
    assert httpx.post(url, json=body | {"skip_special_tokens": False}).json() != plain
    if engine[0] != "paged":
        return  # it cannot be made to write one
    asked: Any = {"prompt": "x", "logit_bias": {"3": 100}, "max_tokens": 4, "logprobs": 0}
    done = completion(client, **asked)
    assert (done.choices[0].text, done.choices[0].logprobs.tokens) == ("", [])
    assert done.usage.completion_tokens == 4
    stream = completion(client, **asked, stream=True)
    assert "".join(c.choices[0].text for c in stream if c.choices) == ""
    shown: Any = {"skip_special_tokens": False}
    assert completion(client, **asked, extra_body=shown).choices[0].text == 4 * SPECIAL
    stream = completion(client, **asked, stream=True, extra_body=shown)
    assert "".join(c.choices[0].text for c in stream if c.choices) == 4 * SPECIAL


def test_special_tokens_within_markup_are_shown(model: Path) -> None:
    text = Text(ov_genai.Tokenizer(model.parent), TextFacts(vocab_size=49152, eos_token_ids=(0, 2)))
    assert text.hidden(True) == {*range(17)}  # as llama.cpp has them: <|endoftext|> to <empty_output>
    assert text.hidden(True, ("x<repo_name>\n", "<file")) == {*range(17)} - {3}
    assert text.hidden(False) == set()


def test_markup_is_that_of_the_parsers() -> None:
    model = ModelContext(parsers=ParserChoice("devstral", "magistral"))
    tools, parsing = ToolPolicy(({"name": "f"},), "auto", ("f",)), Parsing("devstral", "magistral")
    shown = {*model.with_markup(Sampling(), parsing, tools).markup}
    assert {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"} <= shown
    assert {*model.with_markup(Sampling(), parsing, None).markup} == {"[THINK]", "[/THINK]"}
    assert model.with_markup(Sampling(), None, tools).markup == ()


def test_a_hidden_token_is_no_text_of_a_grammar(client: openai.OpenAI, engine: tuple[str, Server]) -> None:
    if engine[0] != "paged":
        pytest.skip("the library makes its own masks")
    schema: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": [SPECIAL]}}}
    for shown in (False, True):
        answer = client.chat.completions.create(
            model=NAME,
            messages=CAPITAL,
            max_tokens=40,
            response_format=schema,
            logit_bias={"3": 50},
            logprobs=True,
            extra_body={"skip_special_tokens": not shown},
        ).choices[0]
        assert (answer.message.content or "").removesuffix(END) == f'"{SPECIAL}"'
        assert (SPECIAL in [piece.token for piece in answer.logprobs.content or ()]) is shown  # type: ignore[union-attr]


def test_a_stop_token_of_the_request_is_not_shown(engine: tuple[str, Server], client: openai.OpenAI) -> None:
    ids = httpx.post(
        f"{engine[1].v3}/tokenize", json={"model": NAME, "text": " Paris", "add_special_tokens": False}
    ).json()["tokens"]
    asked: Any = {"skip_special_tokens": False, "stop_token_ids": ids}
    done = completion(client, prompt="The capital of France is", extra_body=asked).choices[0]
    assert "Paris" not in done.text
    assert done.finish_reason == "stop"


def test_a_penalty_between_groups_without_groups_is_reported(
    client: openai.OpenAI, engine: tuple[str, Server]
) -> None:
    if engine[0] == "paged":
        pytest.skip("this engine has no beams")
    body = {
        "model": NAME,
        "prompt": "The capital of France is",
        "best_of": 3,
        "max_tokens": 4,
        "temperature": 0,
    }
    plain = httpx.post(f"{engine[1].v3}/completions", json=body, timeout=230)
    answer = httpx.post(f"{engine[1].v3}/completions", json=body | {"diversity_penalty": 0.5}, timeout=230)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain.json()["choices"]
    assert answer.headers["x-ovserve-ignored-params"] == "diversity_penalty"


def test_token_strs_of_parts_of_characters(engine: tuple[str, Server]) -> None:
    body = {"model": NAME, "prompt": PROMPT, "add_special_tokens": False, "return_token_strs": True}
    answer = httpx.post(f"{engine[1].v3}/tokenize", json=body).json()
    pieces = answer["token_strs"]
    assert any(piece.startswith("bytes:\\x") for piece in pieces)
    assert b"".join(map(bytes_of, pieces)).decode() == PROMPT
    assert httpx.post(f"{engine[1].v3}/detokenize", json={"tokens": answer["tokens"]}).json() == {
        "prompt": PROMPT
    }
