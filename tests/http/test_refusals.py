"""Every refusal of the reference server's catalogue (rest.md, appendix C) that applies here: status, code,
param, and a message that names the value. Over HTTP, on a scripted model, in the order of the catalogue.

What does not apply: sampled `n`, logprobs and hidden stop strings in streams are honoured; unknown keys of
stream_options and unknown modalities of null are no errors; media are issue D's. The refusals of responses,
messages and tokenize are beside their own tests. What depends on the real engine is in test_parameters.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import Server, script_graph, start_server

CHAT, COMPLETIONS = "/v3/chat/completions", "/v3/completions"
USER = {"role": "user", "content": "hi"}
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [USER]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
}
PROMPT = {CHAT: "messages", COMPLETIONS: "prompt"}  # where the length comes from
UNSUPPORTED, LENGTH = "unsupported_parameter", "context_length_exceeded"
SCRIPT = {
    "max_length": 50,
    "chat_template": "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('bad is not allowed') }}"
    "{% endif %}{{ m.content if m.content != 'void' }}{% endfor %}",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    graph = script_graph(tmp_path_factory.mktemp("graph"), json.dumps(SCRIPT))
    text = (graph / "graph.pbtxt").read_text()
    (graph / "graph.pbtxt").write_text(
        text.replace("models_path:", "max_tokens_limit: 40 best_of_limit: 4 engine: 'genai' models_path:")
    )
    running = start_server(graph, name="m")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def still_answers(server: Server) -> Iterator[None]:
    yield
    assert httpx.post(server.url + COMPLETIONS, json=BASE[COMPLETIONS]).status_code == 200


def refused(answer: httpx.Response, status: int, code: str | None, param: str | None, *says: str) -> None:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error"), error
    for text in says:
        assert text in error["message"], error


def number(name: str, *values: tuple[Any, str]) -> list[Any]:
    """Values out of range or of another type, each with what the message must say beside them."""
    return [
        (path, {name: value}, None, name, (says, json.dumps(value)))
        for path in BASE
        for value, says in values
    ]


BOTH = [
    # stream_options
    *[(p, {"stream_options": {"include_usage": True}}, None, "stream_options", ("stream: true",)) for p in BASE],
    *[(p, {"stream": True, "stream_options": 1}, None, "stream_options", ("got 1",)) for p in BASE],
    *[(p, {"stream": True, "stream_options": {"include_usage": "y"}}, None, "stream_options.include_usage", ('"y"',)) for p in BASE],
    # numbers: wrong type, outside the interval, not a count, above the graph's limit
    *number("temperature", ("hot", "expected"), (-0.5, ">= 0.0"), (2.5, "<= 2.0"), (True, "expected"), ([], "expected")),
    *number("top_p", ("1", "expected"), (-0.1, ">= 0.0"), (1.5, "<= 1.0")),
    *number("min_p", ({}, "expected"), (-0.1, ">= 0.0"), (1.5, "<= 1.0")),
    *number("top_k", (1.5, "expected"), (-2, ">= -1")),
    *number("frequency_penalty", ("x", "expected"), (-2.5, ">= -2.0"), (3, "<= 2.0")),
    *number("presence_penalty", ("x", "expected"), (-2.5, ">= -2.0"), (3, "<= 2.0")),
    *number("repetition_penalty", ("x", "expected"), (0, "> 0.0"), (1001, "<= 1000.0")),
    *number("length_penalty", ("x", "expected"), (1001, "<= 1000.0")),
    *number("diversity_penalty", ("x", "expected"), (-1001, ">= -1000.0")),
    *number("seed", ("x", "expected"), (1.5, "expected"), (2**64, str(2**64 - 1)), (-(2**63) - 1, str(-(2**63)))),
    *number("min_tokens", (-1, ">= 0"), ("x", "expected")),
    *number("n", (0, ">= 1"), (129, "<= 128"), (1.5, "expected")),
    *number("best_of", (0, ">= 1"), ("2", "expected")),
    *number("num_beam_groups", (0, ">= 1"), ("2", "expected")),
    *number("num_assistant_tokens", (-1, ">= 0"), ("2", "expected")),
    *number("assistant_confidence_threshold", (1.5, "<= 1.0"), ("2", "expected")),
    *number("max_ngram_size", (-1, ">= 0"), ("2", "expected")),
    *number("max_tokens", (-2, ">= -1"), ("12", "expected"), (1.5, "expected"), (2**31, "<= 2147483647"), (41, "max_tokens_limit 40")),
    # stop
    *[(p, {"stop": ["a"] * 65}, None, "stop", ("<= 64", '["a","a"')) for p in BASE],
    *[(p, {"stop": ["a", 5]}, None, "stop[1]", ("got 5",)) for p in BASE],
    *[(p, {"stop": 5}, None, "stop", ("got 5",)) for p in BASE],
    *[(p, {"stop": ""}, None, "stop", ('got ""',)) for p in BASE],
    *[(p, {"stop": ["a", ""]}, None, "stop", ('stop[1]', '""')) for p in BASE],
    *[(p, {"stop_token_ids": [-1]}, None, "stop_token_ids[0]", ("got -1",)) for p in BASE],
    *[(p, {"stop_token_ids": [1] * 257}, None, "stop_token_ids", ("<= 256",)) for p in BASE],
    # switches
    *[(p, {name: 1}, None, name, ("got 1",)) for p in BASE
      for name in ("stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")],
    # choices and beams
    *[(p, {"best_of": 2, "stream": True}, None, "best_of", ("best_of: 2", "stream: true")) for p in BASE],
    *[(p, {"best_of": 2, "n": 3}, None, "n", ("n: 3", "best_of 2")) for p in BASE],
    *[(p, {"best_of": 5}, None, "best_of", ("best_of: 5", "best_of_limit 4")) for p in BASE],
    *[(p, {"best_of": 4, "num_beam_groups": 3}, None, "num_beam_groups", ("num_beam_groups: 3", "best_of 4")) for p in BASE],
    *[(p, {"diversity_penalty": 0.5}, None, "diversity_penalty", ("0.5",)) for p in BASE],
    *[(p, {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.5}, None, "num_assistant_tokens", ("5", "0.5")) for p in BASE],
    *[(p, {"min_tokens": 9, "max_tokens": 5}, None, "min_tokens", ("9", "5")) for p in BASE],
    # known, but nothing this engine can do
    *[(p, {"logit_bias": {"50256": -100}}, UNSUPPORTED, "logit_bias", ('{"50256":-100}', "bias")) for p in BASE],
    *[(p, {"use_beam_search": True}, UNSUPPORTED, "use_beam_search", ("true", "best_of")) for p in BASE],
]  # fmt: skip

ONLY_COMPLETIONS = [
    ({"prompt": None}, None, "prompt", ("got null",)),
    ({"prompt": 5}, None, "prompt", ("got 5",)),
    ({"prompt": ""}, None, "prompt", ("at least one",)),
    ({"prompt": []}, None, "prompt", ("got []",)),
    ({"prompt": ["a", ""]}, None, "prompt[1]", ("at least one",)),
    ({"prompt": ["a", 1]}, None, "prompt", ("mixture",)),
    ({"prompt": [1.5]}, None, "prompt[0]", ("1.5",)),
    ({"prompt": [-1]}, None, "prompt[0]", ("-1",)),
    ({"prompt": [["a"]]}, None, "prompt[0][0]", ('"a"',)),
    ({"prompt": [[1], []]}, None, "prompt[1]", ("at least one",)),
    ({"prompt": [[1], "a"]}, None, "prompt", ("mixture",)),
    ({"suffix": "x", "echo": True}, None, "suffix", ("echo",)),
    ({"prompt": ["a"] * 257}, None, "prompt", ("257", "256")),
    ({"max_tokens": 0}, None, "max_tokens", ("max_tokens: 0", "echo: true")),
    ({"logprobs": True}, None, "logprobs", ("got true",)),
    ({"logprobs": 2}, UNSUPPORTED, "logprobs", ("got 2",)),
    ({"logprobs": 21}, None, "logprobs", ("<= 20", "got 21")),
    ({"echo": 1}, None, "echo", ("got 1",)),
    ({"prompt": "a " * 51}, LENGTH, "prompt", ("51", "50")),
]  # fmt: skip

ONLY_CHAT = [
    ({"messages": None}, None, "messages", ("got null",)),
    ({"messages": "hi"}, None, "messages", ('"hi"',)),
    ({"messages": []}, None, "messages", ("got []",)),
    ({"messages": [USER, "hi"]}, None, "messages[1]", ('"hi"',)),
    ({"messages": [USER, {"content": "x"}]}, None, "messages[1].role", ("missing",)),
    ({"messages": [{"role": None, "content": "x"}]}, None, "messages[0].role", ("got null",)),
    ({"messages": [{"role": "robot", "content": "x"}]}, None, "messages[0].role", ("'robot'", "assistant")),
    ({"messages": [{"role": "user", "content": 7}]}, None, "messages[0].content", ("got 7",)),
    ({"messages": [{"role": "user", "content": ["x"]}]}, None, "messages[0].content[0]", ('"x"',)),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, None, "messages[0].content[0].type", ("missing",)),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, None, "messages[0].content[0].text", ("missing",)),
    ({"messages": [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     None, "messages[1].content[0].type", ("'image_url'", "text only")),
    ({"messages": [{"role": "user", "content": [{"type": "input_video", "input_video": {"data": ""}}]}]},
     None, "messages[0].content[0].type", ("'input_video'",)),
    ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, None, "messages[0].tool_calls[0]", ("got 1",)),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, None, "messages[0].tool_calls[0].function", ("missing",)),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, None, "messages[0].tool_calls[0].function.name", ("missing",)),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}, None, "messages[0].tool_call_id", ("got 5",)),
    ({"logprobs": 1}, None, "logprobs", ("got 1",)),
    ({"top_logprobs": 1}, None, "top_logprobs", ("logprobs: true",)),
    ({"top_logprobs": 2, "logprobs": True}, UNSUPPORTED, "top_logprobs", ("got 2",)),
    ({"top_logprobs": 21, "logprobs": True}, None, "top_logprobs", ("<= 20", "got 21")),
    ({"max_completion_tokens": 0}, None, "max_completion_tokens", ("1 or more", "got 0")),
    ({"max_completion_tokens": "9"}, None, "max_completion_tokens", ('"9"',)),
    ({"max_completion_tokens": 2**31}, None, "max_completion_tokens", (str(2**31),)),
    ({"max_completion_tokens": 41}, None, "max_completion_tokens", ("41", "max_tokens_limit 40")),
    ({"chat_template_kwargs": []}, None, "chat_template_kwargs", ("got []",)),
    ({"chat_template_kwargs": {"messages": []}}, None, "chat_template_kwargs", ("'messages'",)),
    ({"add_generation_prompt": "no"}, None, "add_generation_prompt", ('"no"',)),
    ({"continue_final_message": True, "add_generation_prompt": True}, None, "continue_final_message", ("add_generation_prompt",)),
    ({"reasoning_effort": "lots"}, None, "reasoning_effort", ("lots",)),
    ({"modalities": ["text", "audio"]}, UNSUPPORTED, "modalities", ('["text","audio"]',)),
    ({"audio": {"voice": "x"}}, UNSUPPORTED, "audio", ('{"voice":"x"}',)),
    ({"messages": [{"role": "user", "content": "bad"}]}, None, "messages", ("bad is not allowed",)),
    ({"messages": [{"role": "user", "content": "void"}]}, None, "messages", ("empty prompt",)),
    ({"messages": [{"role": "system", "content": "s " * 20}, {"role": "user", "content": "u " * 31}]}, LENGTH, "messages", ("50",)),
]  # fmt: skip


@pytest.mark.parametrize("path", BASE)
def test_refusal(server: Server, path: str, subtests: pytest.Subtests) -> None:
    own = {COMPLETIONS: ONLY_COMPLETIONS, CHAT: ONLY_CHAT}[path]
    cases = [case for on, *case in BOTH if on == path] + [[*case] for case in own]
    assert len(cases) > 80
    for body, code, param, says in cases:
        with subtests.test(json.dumps(body)[:80]):
            refused(httpx.post(server.url + path, json=BASE[path] | body), 400, code, param, *says)
            answer = httpx.post(server.url + COMPLETIONS, json=BASE[COMPLETIONS])
            assert answer.status_code == 200, "it answers the next request"


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("path", BASE)
@pytest.mark.parametrize(
    ("body", "status", "code", "param", "says"),
    [
        (b"", 400, None, None, "not valid JSON"),
        (b'{"model": "m",}', 400, None, None, "not valid JSON"),
        (b'["m"]', 400, None, None, "not a JSON object"),
        (b"\xff\xfe", 400, None, None, "byte order mark of UTF-16"),
        (b'{"model": "smo\xffllm2"}', 400, None, None, "not valid JSON"),
        (b'{"model": "m", "x": ' + DEEP + b"}", 400, None, None, "nests too deeply"),
        (b'{"model": "m", "prompt": ' + DEEP + b', "messages": ' + DEEP + b"}", 400, None, None, "nests too deeply"),
        (b'{"prompt": "a", "messages": [{"role": "user"}]}', 400, None, "model", "missing"),
        (b'{"model": null}', 400, None, "model", "got null"),
        (b'{"model": ["m"]}', 400, None, "model", '["m"]'),
        (b'{"model": ""}', 404, "model_not_found", "model", "''"),
        (b'{"model": "other"}', 404, "model_not_found", "model", "'other'"),
        (b'{"model": "m", "x": "' + b"y" * (33 << 20) + b'"}', 413, None, None, "33554432"),
    ],
    ids=lambda v: repr(v)[:50] if isinstance(v, bytes) else None,
)  # fmt: skip
def test_envelope(
    server: Server, path: str, body: bytes, status: int, code: str | None, param: str | None, says: str
) -> None:
    answer = httpx.post(
        server.url + path, content=body, headers={"content-type": "application/json"}, timeout=30
    )
    refused(answer, status, code, param, says)


@pytest.mark.parametrize("path", BASE)
@pytest.mark.parametrize(
    ("twice", "key"),
    [
        (b'"model": "m"', "model"),
        (b'"temperature": 0, "temperature": 0', "temperature"),
        (b'"zebra": 1, "zebra": 1', "zebra"),
        (b'"n": 1, "\\u006e": 2', "n"),
        (b'"x": {"y": [{"key": 1, "key": 2}]}', "key"),
    ],
)
def test_duplicate_keys(server: Server, path: str, twice: bytes, key: str) -> None:
    body = json.dumps(BASE[path]).encode()[:-1] + b", " + twice + b"}"
    refused(httpx.post(server.url + path, content=body), 400, None, key, f"'{key}' occurs twice")


@pytest.mark.parametrize("path", BASE)
def test_method_and_path(server: Server, path: str) -> None:
    answer = httpx.get(server.url + path)
    refused(answer, 405, None, None, path, "POST", "GET")
    assert answer.headers["allow"] == "POST"
    refused(httpx.post(server.url + path + "/", json=BASE[path]), 404, None, None, path + "/")
    refused(httpx.post(server.url + path, files={"file": b"x"}), 415, None, None, "multipart/form-data")


@pytest.mark.parametrize("path", BASE)
def test_what_is_refused_whole_is_refused_streamed(server: Server, path: str) -> None:
    refused(
        httpx.post(server.url + path, json=BASE[path] | {"stream": True, "n": 0}), 400, None, "n", "got 0"
    )
    long = {"messages": [{"role": "user", "content": "a " * 51}], "prompt": "a " * 51}
    refused(
        httpx.post(server.url + path, json=BASE[path] | long | {"stream": True}),
        400,
        LENGTH,
        PROMPT[path],
        "51",
    )


def test_a_limit_is_inclusive(server: Server) -> None:
    for fields in (
        {"max_tokens": 40},
        {"max_tokens": -1},
        {"best_of": 4, "n": 4},
        {"temperature": 2},
        {"prompt": "a " * 49},
        {"stop": ["x"] * 64},
    ):
        assert httpx.post(server.url + COMPLETIONS, json=BASE[COMPLETIONS] | fields).status_code == 200


OTHERS: dict[str, dict[str, Any]] = {
    "/v3/responses": {"model": "m", "input": "hi"},
    "/v3/messages": {"model": "m", "max_tokens": 5, "messages": [USER]},
    "/v3/messages/count_tokens": {"model": "m", "messages": [USER]},
    "/v3/tokenize": {"model": "m", "prompt": "hi"},
    "/v3/detokenize": {"model": "m", "tokens": []},
    "/chat/completions?api-version=2024-05-01-preview": {"messages": [USER]},
}


@pytest.mark.parametrize("path", OTHERS)
def test_the_other_bodies_are_as_strict(server: Server, path: str) -> None:
    """Whole, unique keys, not too deep, not too large, an object: wherever a body is decoded."""
    whole = json.dumps(OTHERS[path]).encode()
    assert httpx.post(server.url + path, content=whole).status_code == 200
    for body, status, says in (
        (whole[:-1] + b', "zebra": 1, "zebra": 1}', 400, "'zebra' occurs twice"),
        (whole[:-1] + b', "x": {"y": [{"key": 1, "key": 2}]}}', 400, "'key' occurs twice"),
        (whole[:-1] + b', "x": ' + DEEP + b"}", 400, "nests too deeply"),
        (whole[:-1] + b', "x": "' + b"y" * (33 << 20) + b'"}', 413, "33554432"),
        (whole[:-1], 400, "not valid JSON"),
        (b"[" + whole + b"]", 400, "not a JSON object"),
        (b"", 400, "not valid JSON"),
        (whole.replace(b'"', b'"\xff', 1), 400, "not valid JSON"),
    ):
        answer = httpx.post(server.url + path, content=body, timeout=230)
        if "api-version" in path and "detail" in answer.json():
            status = 422  # Azure's word for a fault that has a place
        assert answer.status_code == status, (body[:80], answer.text)
        assert says in answer.text, body[:80]
