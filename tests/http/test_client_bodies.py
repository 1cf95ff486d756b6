"""Bodies that real clients send, with the real engine: each is answered, and what had no effect is reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.conftest import ROOT, Server, start_process

ADAPTED, IGNORED = "x-ovserve-adapted", "x-ovserve-ignored-params"
# Takes one system message, first, as the templates of Qwen3.5 do.
STRICT = """\
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('A system message may only come first.') }}{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}
"""
LATE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "y"},
    {"role": "developer", "content": "note"},
    {"role": "user", "content": "z"},
]
ORDERED = [
    {"role": "system", "content": "Be brief.\n\nnote"},
    *(turn for turn in LATE if turn["role"] in ("user", "assistant")),
]


def strict_graph(directory: Path) -> Path:
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    options = (
        f'models_path: "{ROOT}/models/smollm2" chat_template_path: "strict.jinja" tool_parser: "hermes3"'
    )
    directory.mkdir()
    (directory / "graph.pbtxt").write_text(re.sub(r'models_path: "[^"]*"', options, text))
    (directory / "strict.jinja").write_text(STRICT)
    return directory


def tools_graph(directory: Path) -> Path:
    """With the engine of the other graph, which is loaded once for both."""
    text = (ROOT / "graphs/tools/graph.pbtxt").read_text()
    options = f'generic_tool_prompt: true max_num_batched_tokens: 1024 models_path: "{ROOT}/models/smollm2"'
    directory.mkdir()
    (directory / "graph.pbtxt").write_text(re.sub(r'models_path: "[^"]*"', options, text))
    return directory


@pytest.fixture(scope="module")
def clients(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The graphs strict, a template as above, and tools, with a parser of calls and one of reasoning."""
    directory = tmp_path_factory.mktemp("clients")
    graphs = {"strict": strict_graph(directory / "strict"), "tools": tools_graph(directory / "tools")}
    listed = [{"name": name, "base_path": str(path)} for name, path in graphs.items()]
    config = directory / "config.json"
    config.write_text(json.dumps({"model_config_list": [], "mediapipe_config_list": listed}))
    running = start_process("--config_path", str(config), timeout=230)
    yield running
    running.stop()


@pytest.fixture
def http(clients: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=clients.url) as client:
        yield client


@pytest.fixture
def oai(clients: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=clients.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(clients: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=clients.url, api_key="none", max_retries=0) as client:
        yield client


def post(http: httpx.Client, path: str, **body: Any) -> httpx.Response:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def plain(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns with the one role for instructions that every API has."""
    return [turn | {"role": turn["role"].replace("developer", "system")} for turn in turns]


# ---- system messages anywhere, for a template that takes one, first

STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": LATE, "max_tokens": 3}),
    "chat stream": ("/v1/chat/completions", {"messages": LATE, "max_tokens": 3, "stream": True}),
    "azure": ("/openai/deployments/strict/chat/completions", {"messages": LATE, "max_tokens": 3}),
    "responses": (
        "/v1/responses",
        {"instructions": "Be brief.", "input": LATE[1:], "max_output_tokens": 3, "store": False},
    ),
    "responses stream": (
        "/v1/responses",
        {"input": LATE, "max_output_tokens": 3, "store": False, "stream": True},
    ),
    "messages": (
        "/v1/messages",
        {"system": "Be brief.", "messages": plain(LATE[1:]), "max_tokens": 3},
    ),
    "ollama": ("/api/chat", {"messages": plain(LATE), "stream": False, "options": {"num_predict": 3}}),
    "tokenize": ("/v1/tokenize", {"messages": LATE}),
    "count_tokens": ("/v1/messages/count_tokens", {"system": "Be brief.", "messages": plain(LATE[1:])}),
    "input_tokens": ("/v1/responses/input_tokens", {"input": LATE}),
}


@pytest.mark.parametrize(("path", "body"), STYLES.values(), ids=STYLES)
def test_system_messages_are_merged_in_every_api_style(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    answer = post(http, path, model="strict", **body)
    assert answer.headers[ADAPTED] == "system-merged"


def test_the_console_and_kserve_report_it_too(http: httpx.Client) -> None:
    body = {"messages": LATE, "max_tokens": 2}
    asked = {"model": "strict", "endpoint": "chat/completions", "body": body | {"model": "strict"}}
    assert post(http, "/console/api/render", **asked).json()["adapted"] == ["system-merged"]
    name = http.get("/v2/models/strict").json()["inputs"][0]["name"]
    tensor = {"name": name, "datatype": "BYTES", "shape": [1], "data": [json.dumps(body)]}
    assert (
        post(http, "/v2/models/strict/infer", inputs=[tensor]).json()["parameters"][ADAPTED]
        == "system-merged"
    )


def test_the_merged_prompt_is_that_of_the_ordered_messages(http: httpx.Client) -> None:
    ordered = post(http, "/v1/tokenize", model="strict", messages=ORDERED)
    assert ADAPTED not in ordered.headers
    for path, field in (("/v1/tokenize", "count"), ("/v1/messages/count_tokens", "input_tokens")):
        counted = post(http, path, model="strict", messages=plain(LATE)).json()[field]
        assert counted == ordered.json()["count"]
    late = post(http, "/v1/tokenize", model="strict", messages=LATE).json()
    assert late["tokens"] == ordered.json()["tokens"]
    free = post(http, "/v1/tokenize", model="tools", messages=LATE)
    assert ADAPTED not in free.headers  # this model's template takes them where they are


def test_a_beginning_of_the_answer_is_continued_after_merging(http: httpx.Client) -> None:
    turns = [*plain(LATE), {"role": "assistant", "content": "The capital of France is"}]
    body = {"model": "strict", "messages": turns, "temperature": 0, "max_tokens": 4}
    chat = post(http, "/v1/chat/completions", **body, continue_final_message=True)
    claude = post(http, "/v1/messages", **body)
    assert chat.json()["choices"][0]["message"]["content"] == claude.json()["content"][0]["text"]
    assert "Paris" in claude.json()["content"][0]["text"]
    assert chat.headers[ADAPTED] == claude.headers[ADAPTED] == "system-merged"


# ---- the beginning of an answer, within the reasoning

THOUGHTS = {"open": "<think>\nI", "closed": "<think>\nI\n</think>\n\nThe", "none": "I"}


@pytest.mark.parametrize(("kind", "text"), THOUGHTS.items())
@pytest.mark.parametrize("style", ["chat", "stream", "messages", "ollama"])
def test_an_answer_goes_on_where_the_client_left_it(
    http: httpx.Client, oai: openai.OpenAI, style: str, kind: str, text: str
) -> None:
    turns: list[Any] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}]
    body: dict[str, Any] = {"model": "tools", "messages": turns}
    more: dict[str, Any] = {"continue_final_message": True}
    if style == "stream":
        chunks = oai.chat.completions.create(
            **body, max_tokens=6, temperature=0, stream=True, extra_body=more
        )
        deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks]
        content = "".join(str(delta.get("content") or "") for delta in deltas)
        thoughts = "".join(str(delta.get("reasoning_content") or "") for delta in deltas)
    elif style == "chat":
        more |= {"max_tokens": 6, "temperature": 0}
        message = post(http, "/v1/chat/completions", **body, **more).json()["choices"][0]["message"]
        content, thoughts = message["content"] or "", message.get("reasoning_content", "")
    elif style == "messages":
        (block,) = post(http, "/v1/messages", **body, max_tokens=6, temperature=0).json()["content"]
        content, thoughts = block.get("text", ""), block.get("thinking", "")
    else:
        options = {"num_predict": 6, "temperature": 0}
        message = post(http, "/api/chat", **body, stream=False, options=options).json()["message"]
        content, thoughts = message["content"], message.get("thinking", "")
    assert bool(thoughts) == (kind == "open"), (content, thoughts)
    assert bool(content) == (kind != "open"), (content, thoughts)


# ---- blocks that tools at Anthropic made

SOURCE = {"type": "text", "media_type": "text/plain", "data": "Oslo"}
FOUND = {
    "type": "web_search_result",
    "title": "Oslo",
    "url": "http://o",
    "encrypted_content": "eA",
    "page_age": None,
}
FETCHED = {"type": "web_fetch_result", "url": "http://o", "content": {"type": "document", "source": SOURCE}}
# A block, and the text of it that the model reads; "": it is dropped and reported.
BLOCKS: dict[str, tuple[dict[str, Any], str]] = {
    "tool_reference": ({"type": "tool_reference", "tool_name": "f"}, ""),
    "search_result": (
        {"type": "search_result", "source": "http://o", "title": "Oslo",
         "content": [{"type": "text", "text": "A city."}], "citations": {"enabled": True}},
        "Oslo\nhttp://o\nA city.",
    ),
    "server_tool_use": ({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}, ""),
    "web_search": ({"type": "web_search_tool_result", "tool_use_id": "s1", "content": [FOUND]}, "Oslo\nhttp://o"),
    "web_search error": (
        {"type": "web_search_tool_result", "tool_use_id": "s1",
         "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}}, "unavailable",
    ),
    "web_fetch": ({"type": "web_fetch_tool_result", "tool_use_id": "s1", "content": FETCHED}, "http://o\nOslo"),
    "bash": (
        {"type": "bash_code_execution_tool_result", "tool_use_id": "s1",
         "content": {"type": "bash_code_execution_result", "stdout": "1", "stderr": "", "return_code": 0,
                     "content": []}}, "1",
    ),
    "editor": (
        {"type": "text_editor_code_execution_tool_result", "tool_use_id": "s1",
         "content": {"type": "text_editor_code_execution_view_result", "file_type": "text", "content": "a = 1"}},
        "a = 1",
    ),
    "tool search": (
        {"type": "tool_search_tool_result", "tool_use_id": "s1", "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "f"}]}}, "",
    ),
    "mcp_tool_use": (
        {"type": "mcp_tool_use", "id": "m1", "name": "echo", "server_name": "s", "input": {"x": 1}}, "",
    ),
    "mcp_tool_result": (
        {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False,
         "content": [{"type": "text", "text": "hello"}]}, "hello",
    ),
    "mcp_tool_result text": ({"type": "mcp_tool_result", "tool_use_id": "m1", "content": "hello"}, "hello"),
    "container_upload": ({"type": "container_upload", "file_id": "file_1"}, ""),
    "compaction": ({"type": "compaction", "content": "So far: x"}, "So far: x"),
    "compaction null": ({"type": "compaction", "content": None}, ""),
    "unknown": ({"type": "odd", "id": 5, "name": {"a": 1}, "input": [1], "source": 3, "text": "t"}, "t"),
    "unknown without text": ({"type": "odd", "title": 7, "thinking": [], "is_error": "maybe"}, ""),
}  # fmt: skip


def placed(block: dict[str, Any] | None, place: str) -> list[dict[str, Any]]:
    """A conversation with the block, if any, between two texts."""
    blocks = [{"type": "text", "text": "a"}, *([block] if block else []), {"type": "text", "text": "b"}]
    turns: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    if place == "assistant":
        return [*turns, {"role": "assistant", "content": blocks}, {"role": "user", "content": "y"}]
    if place == "user":
        return [{"role": "user", "content": blocks}]
    call = {"type": "tool_use", "id": "toolu_1", "name": "g", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": blocks}
    return [*turns, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


@pytest.mark.parametrize("place", ["user", "assistant", "tool_result"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_a_tool_at_anthropic_does_not_end_the_session(
    http: httpx.Client, name: str, place: str
) -> None:
    block, text = BLOCKS[name]
    counted = post(http, "/v1/messages/count_tokens", model="tools", messages=placed(block, place))
    as_text = placed({"type": "text", "text": text} if text else None, place)
    plain_count = post(http, "/v1/messages/count_tokens", model="tools", messages=as_text)
    assert counted.json() == plain_count.json()
    reported = counted.headers.get(IGNORED, "").split(",")
    assert (f"messages.{block['type']}" in reported) == (not text)


def test_the_client_continues_a_session_with_such_blocks(claude: anthropic.Anthropic) -> None:
    search: Any = [BLOCKS[name][0] for name in ("server_tool_use", "web_search", "compaction")]
    turns: Any = [{"role": "user", "content": "x"}, {"role": "assistant", "content": search}]
    turns += placed(BLOCKS["tool_reference"][0], "tool_result")
    answer = claude.messages.create(model="tools", max_tokens=4, messages=turns)
    assert answer.usage.output_tokens > 0
    raw = claude.messages.with_raw_response.create(model="tools", max_tokens=4, messages=turns)
    assert {"messages.server_tool_use", "messages.tool_reference"} <= {*raw.headers[IGNORED].split(",")}
    streamed = claude.messages.create(model="tools", max_tokens=4, messages=turns, stream=True)
    assert [event.type for event in streamed][-1] == "message_stop"


def test_the_client_runs_a_tool_whose_schema_it_does_not_send(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"type": "bash_20250124", "name": "bash"}]
    body: Any = {"model": "tools", "max_tokens": 40, "messages": HI, "tool_choice": {"type": "any"}}
    raw = claude.messages.with_raw_response.create(**body, tools=tools)
    assert IGNORED not in raw.headers
    assert [(block.type, block.name) for block in raw.parse().content] == [("tool_use", "bash")]


def test_documents_of_content_and_url(http: httpx.Client) -> None:
    def counted(*blocks: Any) -> httpx.Response:
        turns = [{"role": "user", "content": [*blocks, {"type": "text", "text": "what?"}]}]
        return post(http, "/v1/messages/count_tokens", model="tools", messages=turns)

    text = counted({"type": "document", "title": "t", "source": SOURCE})
    for content in ("Oslo", [{"type": "text", "text": "Oslo"}]):
        made = counted({"type": "document", "title": "t", "source": {"type": "content", "content": content}})
        assert made.json() == text.json()
    for source in ({"type": "url", "url": "http://o/x.pdf"}, {"type": "file", "file_id": "f"}):
        gone = counted({"type": "document", "source": source})
        assert gone.json() == counted().json()
        assert f"messages.document.source.type={source['type']}" in gone.headers[IGNORED]


def test_known_blocks_are_still_checked(http: httpx.Client) -> None:
    for block, says in (
        ({"type": "text"}, "messages[0].content[0].text"),
        ({"type": "text", "text": 5}, "messages[0].content[0].text"),
        ({"type": "tool_result", "content": "x"}, "messages[0].content[0].tool_use_id"),
        ({"type": "tool_use", "id": "a", "name": "f", "input": {}}, "messages[0].content[0].type"),
        ({"type": "image", "source": "http://x"}, "messages[0].content[0].source"),
        ({"type": 5}, "messages[0].content[0].type"),
    ):
        body = {"model": "tools", "messages": [{"role": "user", "content": [block]}], "max_tokens": 4}
        refused = http.post("/v1/messages", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(says), refused.text


# ---- the assistant's parts in chat


def rendered(http: httpx.Client, message: dict[str, Any]) -> httpx.Response:
    turns = [{"role": "user", "content": "x"}, message, {"role": "user", "content": "y"}]
    return post(http, "/v1/tokenize", model="tools", messages=turns, add_generation_prompt=True)


TEXT = {"type": "text", "text": "a"}
DROPPED_PARTS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "closed": True},
    {"type": "reasoning", "text": "hm"},
    {"type": "reasoning", "reasoning": "hm", "id": 4},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "redacted_thinking", "data": "eA=="},
    {"type": "tool_use", "id": "t", "name": "f", "input": {"text": 1}, "text": {"a": 1}},
    {"type": "tool-call", "toolCallId": "t", "toolName": "f", "file": 5},
]


@pytest.mark.parametrize("part", DROPPED_PARTS, ids=lambda part: str(part["type"]))
def test_parts_of_the_assistant_s_thoughts_are_not_its_text(http: httpx.Client, part: dict[str, Any]) -> None:
    answer = rendered(http, {"role": "assistant", "content": [part, TEXT]})
    assert answer.json() == rendered(http, {"role": "assistant", "content": "a"}).json()
    known = part["type"] in ("thinking", "reasoning")
    assert (f"messages[1].content.type={part['type']}" in answer.headers.get(IGNORED, "")) == (not known)


def test_a_refusal_is_the_assistant_s_text(http: httpx.Client, oai: openai.OpenAI) -> None:
    refusal: Any = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert rendered(http, refusal).json() == rendered(http, {"role": "assistant", "content": "no"}).json()
    turns: Any = [{"role": "user", "content": "x"}, refusal, {"role": "user", "content": "y"}]
    answer = oai.chat.completions.create(model="tools", messages=turns, max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_the_user_s_parts_are_still_checked(http: httpx.Client) -> None:
    for kind in ("thinking", "refusal", "odd"):
        turns = [{"role": "user", "content": [{"type": kind, "thinking": "x", "refusal": "x"}]}]
        refused = http.post("/v1/chat/completions", json={"model": "tools", "messages": turns})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "messages[0].content[0].type"


# ---- efforts, and integers written as floats

EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("effort", EFFORTS)
def test_an_effort_is_accepted_by_every_api_style(http: httpx.Client, effort: str) -> None:
    body: dict[str, Any] = {"model": "tools", "messages": HI, "max_tokens": 1}
    reported = {
        "reasoning_effort": post(http, "/v1/chat/completions", **body, reasoning_effort=effort),
        "output_config.effort": post(http, "/v1/messages", **body, output_config={"effort": effort}),
        "think": post(http, "/api/chat", **body, stream=False, think=effort, options={"num_predict": 1}),
        "reasoning.effort": post(
            http,
            "/v1/responses",
            model="tools",
            input="hi",
            max_output_tokens=1,
            reasoning={"effort": effort},
        ),
    }
    for field, answer in reported.items():
        assert field in answer.headers[IGNORED]  # this model's template reads no effort


def test_no_other_effort_is_accepted(http: httpx.Client) -> None:
    for path, more in (
        ("/v1/chat/completions", {"reasoning_effort": "most"}),
        ("/v1/messages", {"max_tokens": 1, "output_config": {"effort": "most"}}),
        ("/api/chat", {"think": "most"}),
    ):
        refused = http.post(path, json={"model": "tools", "messages": HI, **more})
        assert refused.status_code == 400
        assert "most" in refused.text


INTEGERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ollama": (
        "/api/chat",
        {"messages": HI, "stream": False, "options": {"num_predict": 4.0, "top_k": 40.0, "seed": 7.0}},
    ),
    "ollama generate": (
        "/api/generate",
        {"prompt": "hi", "stream": False, "options": {"num_predict": 4.0, "top_k": 40.0}},
    ),
    "chat": (
        "/v1/chat/completions",
        {"messages": HI, "max_tokens": 4.0, "top_k": 40.0, "seed": 7.0, "n": 1.0, "min_tokens": 0.0},
    ),
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": 4.0, "n": 1.0, "seed": 7.0}),
    "messages": ("/v1/messages", {"messages": HI, "max_tokens": 4.0, "top_k": 40.0}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 4.0, "top_k": 40.0}),
    "tokenize": ("/v1/tokenize", {"text": "hi", "max_length": 4.0}),
    "detokenize": ("/v1/detokenize", {"tokens": [1.0, 2.0]}),
}


@pytest.mark.parametrize(("path", "body"), INTEGERS.values(), ids=INTEGERS)
def test_a_whole_number_may_be_written_as_a_float(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    post(http, path, model="tools", **body)


CALLED = {"name": "f", "arguments": '{"a": 1}'}
# What clients write in a history: null for a type, arguments as text, no input; and 0 for all tokens.
HISTORIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"top_k": 0, "max_tokens": 2, "messages": [
            *HI, {"role": "assistant", "tool_calls": [{"id": "c", "type": None, "function": CALLED}]},
            {"role": "tool", "tool_call_id": "c", "content": None}]},
    ),
    "messages": (
        "/v1/messages",
        {"top_k": 0, "max_tokens": 2, "messages": [
            *HI, {"role": "assistant", "content": [
                {"type": "tool_use", "id": "a", "name": "f", "input": '{"a": 1}'},
                {"type": "tool_use", "id": "b", "name": "f", "input": None}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": name, "content": "x"} for name in "ab"]}]},
    ),
    "ollama": (
        "/api/chat",
        {"options": {"top_k": 0, "num_predict": 2}, "stream": False, "messages": [
            *HI, {"role": "assistant", "content": "", "tool_calls": [{"function": CALLED}]},
            {"role": "tool", "content": "x"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body"), HISTORIES.values(), ids=HISTORIES)
def test_calls_in_a_history_are_read_in_every_form(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    post(http, path, model="tools", **body)


@pytest.mark.parametrize("value", [4.5, "4", True])
def test_other_values_are_no_integers(http: httpx.Client, value: object) -> None:
    body = {"model": "tools", "messages": HI, "stream": False}
    assert http.post("/api/chat", json=body | {"options": {"num_predict": value}}).status_code == 400
    assert http.post("/v1/chat/completions", json=body | {"max_tokens": value}).status_code == 400


# ---- paths and bodies that are nearly right


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v3/v1/v1/chat/completions", "/v3/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("//v1/messages", "/v1/messages"),
        ("/v1/responses/", "/v1/responses"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/api/chat/", "/api/chat"),
        ("/v1/api/chat", "/api/chat"),
        ("/v3/api/generate", "/api/generate"),
        ("/v1/openai/deployments/tools/chat/completions", "/openai/deployments/tools/chat/completions"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/ollama/api/chat", "/api/chat"),
        ("/v2/repository/index/", "/v2/repository/index"),
    ],
)
def test_a_path_that_is_nearly_right_is_a_404_with_the_right_one(
    http: httpx.Client, path: str, meant: str
) -> None:
    refused = http.post(httpx.URL(str(http.base_url).rstrip("/") + path), json={"model": "tools"})
    assert refused.status_code == 404
    assert refused.json()["error"] if "messages" not in path else refused.json()["error"]["message"]
    assert f"use {meant}" in refused.text
    assert http.post(meant, json={"model": "tools"}).status_code != 404


def test_paths_that_get_nothing_near(http: httpx.Client) -> None:
    assert "use /v1/models" in http.get("/v1/models/").text
    assert "use GET /api/tags" in http.post("/v1/api/tags", json={}).text
    assert http.post("/v1/azure/chat/completions/ignore", json={"model": "tools"}).status_code == 404
    for path in ("/nowhere/", "/v1/nowhere", "/" + "v1/" * 3000):
        refused = http.get(path)
        assert refused.status_code == 404
        assert "; use" not in refused.text


def test_half_a_character_is_replaced(http: httpx.Client) -> None:
    def counted(text: str) -> int:
        body = f'{{"model": "tools", "messages": [{{"role": "user", "content": "{text}"}}]}}'
        answer = http.post("/v1/tokenize", content=body.encode())
        assert answer.status_code == 200, answer.text
        return int(answer.json()["count"])

    replaced = counted("a \ufffd b")
    assert counted(r"a \ud83d b") == counted(r"a \uDE00 b") == counted(r"a \ufffd b") == replaced
    assert counted(r"a \ud83d\ude00 b") == counted("a \U0001f600 b")
    assert counted(r"a \ud83d\ud83d\ude00 b") == counted("a \ufffd\U0001f600 b")
    assert counted(r"a \\ud83d b") == counted(r"a \\ud83\u0064 b")
    assert counted(r"\ud83d " * 40_000 + "x") == counted("\ufffd " * 40_000 + "x")


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/tokenize"])
def test_a_byte_order_mark_before_a_body_is_skipped(http: httpx.Client, path: str) -> None:
    short = {"max_tokens": 1, "options": {"num_predict": 1}}
    body = json.dumps({"model": "tools", "messages": HI} | short).encode()
    assert http.post(path, content=MARK + body).status_code == 200
    refused = http.post(path, content=body.decode().encode("utf-16"))
    assert refused.status_code == 400
    assert "byte order mark of UTF-16" in refused.text


# ---- Codex: tools in a namespace, custom tools, and items of tools that the server does not run

# Without other keys the arguments are `{}`, which ends within `max_output_tokens` whatever the model would like to say.
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
JS = {"type": "function", "name": "js", "parameters": EMPTY, "strict": True}
NAMESPACE: Any = {"type": "namespace", "name": "mcp__x", "description": "d", "tools": [JS]}
CODE = {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3,5}-[0-9]{2}"}
PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": CODE}
CHAT_PATCH: Any = {
    "type": "custom",
    "custom": {"name": "apply_patch", "format": {"type": "grammar", "grammar": CODE | {"type": "x"}}},
}
FORCED: dict[str, Any] = {
    "model": "tools",
    "input": "call it",
    "tool_choice": "required",
    "max_output_tokens": 64,
}


def test_a_function_of_a_namespace_round_trips(http: httpx.Client, oai: openai.OpenAI) -> None:
    answer = oai.responses.create(**FORCED, tools=[NAMESPACE], parallel_tool_calls=False)
    (call,) = (item for item in answer.output if item.type == "function_call")
    assert (call.name, call.namespace) == ("js", "mcp__x")
    assert isinstance(json.loads(call.arguments), dict)
    assert answer.tools[0].type == "namespace"
    *_, last = oai.responses.create(**FORCED, tools=[NAMESPACE], parallel_tool_calls=False, stream=True)
    assert last.type == "response.completed"
    (streamed,) = (item for item in last.response.output if item.type == "function_call")
    assert (streamed.name, streamed.namespace) == ("js", "mcp__x")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}
    sent: Any = [{"role": "user", "content": "call it"}, call.to_dict(), output]
    again = oai.responses.create(model="tools", input=sent, tools=[NAMESPACE], max_output_tokens=4)
    chained: Any = [output]
    by_id = oai.responses.create(
        model="tools", input=chained, previous_response_id=answer.id, tools=[NAMESPACE], max_output_tokens=4
    )
    assert again.usage is not None
    assert by_id.usage is not None
    assert again.usage.input_tokens == by_id.usage.input_tokens


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "js", "namespace": "mcp__x"},
        {"type": "namespace", "name": "mcp__x"},
        {"type": "allowed_tools", "mode": "required",
         "tools": [{"type": "function", "name": "js", "namespace": "mcp__x"}]},
    ],
)  # fmt: skip
def test_a_choice_may_name_a_function_of_a_namespace(http: httpx.Client, choice: dict[str, Any]) -> None:
    other = {"type": "function", "name": "other", "parameters": {"type": "object", "properties": {}}}
    body = FORCED | {"tool_choice": choice, "tools": [other, NAMESPACE], "parallel_tool_calls": False}
    output = post(http, "/v1/responses", **body).json()["output"]
    assert [(i["name"], i["namespace"]) for i in output if i["type"] == "function_call"] == [("js", "mcp__x")]


def test_tools_of_an_input_item_are_kept_with_it(oai: openai.OpenAI) -> None:
    tools: Any = {"type": "additional_tools", "role": "developer", "tools": [NAMESPACE]}
    turns: Any = [tools, {"role": "user", "content": "call it"}]
    answer = oai.responses.create(**FORCED | {"input": turns}, parallel_tool_calls=False)
    (call,) = (item for item in answer.output if item.type == "function_call")
    assert (call.name, call.namespace) == ("js", "mcp__x")
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "1"}]
    more: dict[str, Any] = {"tool_choice": "required", "max_output_tokens": 64, "parallel_tool_calls": False}
    again = oai.responses.create(model="tools", input=output, previous_response_id=answer.id, **more)
    (second,) = (item for item in again.output if item.type == "function_call")
    assert (second.name, second.namespace) == ("js", "mcp__x")
    kept = oai.responses.input_items.list(answer.id, order="asc").data
    assert [item.type for item in kept] == ["additional_tools", "message"]
    resent = oai.responses.create(model="tools", input=[*turns, call.to_dict(), *output], **more)
    assert resent.usage is not None
    assert again.usage is not None
    assert resent.usage.input_tokens == again.usage.input_tokens


def test_a_custom_tool_of_responses_has_text_as_input(oai: openai.OpenAI) -> None:
    whole = oai.responses.create(**FORCED, tools=[PATCH], parallel_tool_calls=False)
    (call,) = (item for item in whole.output if item.type == "custom_tool_call")
    assert call.name == "apply_patch"
    assert re.fullmatch(CODE["definition"], call.input)
    choice: Any = {"type": "custom", "name": "apply_patch"}
    stream = oai.responses.create(**FORCED | {"tool_choice": choice}, tools=[PATCH], stream=True)
    events = list(stream)
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    (done,) = (e for e in events if e.type == "response.custom_tool_call_input.done")
    assert "".join(deltas) == done.input
    assert re.fullmatch(CODE["definition"], done.input)
    assert events[-1].type == "response.completed"
    (item,) = (i for i in events[-1].response.output if i.type == "custom_tool_call")
    assert (item.id, item.input) == (done.item_id, done.input)
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
    sent: Any = [{"role": "user", "content": "call it"}, call.to_dict(), output]
    again = oai.responses.create(model="tools", input=sent, tools=[PATCH], max_output_tokens=4)
    assert again.usage is not None


def test_a_custom_tool_of_chat_has_text_as_input(oai: openai.OpenAI) -> None:
    turns: Any = [{"role": "user", "content": "call it"}]
    choice: Any = {"type": "custom", "custom": {"name": "apply_patch"}}
    body: Any = {"model": "tools", "messages": turns, "max_tokens": 64, "tools": [CHAT_PATCH]}
    answer = oai.chat.completions.create(**body, tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert call.type == "custom"
    assert re.fullmatch(CODE["definition"], call.custom.input)
    pieces = [
        piece.to_dict()
        for chunk in oai.chat.completions.create(**body, tool_choice=choice, stream=True)
        for piece in chunk.choices[0].delta.tool_calls or ()
    ]
    assert [piece["type"] for piece in pieces if "type" in piece] == ["custom"]
    assert re.fullmatch(CODE["definition"], "".join(piece["custom"].get("input", "") for piece in pieces))
    turns += [answer.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
    oai.chat.completions.create(**body | {"max_tokens": 4})


def test_what_of_a_custom_tool_is_not_enforced_is_reported(http: httpx.Client) -> None:
    lark = PATCH | {"format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}}
    ahead = PATCH | {"name": "b", "format": CODE | {"definition": r"(a*)\1"}}
    body = FORCED | {"tools": [lark, ahead], "tool_choice": "auto", "max_output_tokens": 1}
    reported = post(http, "/v1/responses", **body).headers[IGNORED].split(",")
    assert {"tools[0].format:lark", "tools[1].format:regex"} <= {*reported}
    for wrong, param in (
        ({"type": "odd"}, "tools[0].format.type"),
        (CODE | {"syntax": "ebnf"}, "tools[0].format.syntax"),
        (CODE | {"definition": 5}, "tools[0].format.definition"),
    ):
        refused = http.post("/v1/responses", json=body | {"tools": [PATCH | {"format": wrong}]})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param


@pytest.mark.parametrize("arguments", [{"query": "q"}, "q", None, [1], 5])
def test_items_of_other_servers_are_dropped_whatever_they_hold(http: httpx.Client, arguments: Any) -> None:
    foreign = [
        {
            "type": "tool_search_call",
            "id": 5,
            "call_id": None,
            "arguments": arguments,
            "execution": "client",
        },
        {
            "type": "tool_search_output",
            "call_id": 5,
            "status": 1,
            "tools": [{"name": "f"}],
            "output": arguments,
        },
        {"type": "mcp_call", "name": arguments, "arguments": arguments, "content": arguments},
        {"type": "something_new", "summary": arguments, "input": arguments},
    ]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "resource", "uri": "x"}]}
    own = [{"role": "user", "content": "x"}, call, output]
    counted = post(http, "/v1/responses/input_tokens", model="tools", input=[*own, *foreign])
    assert counted.json() == post(http, "/v1/responses/input_tokens", model="tools", input=own).json()
    reported = counted.headers[IGNORED].split(",")
    assert {f"input[{3 + i}].type={item['type']}" for i, item in enumerate(foreign)} <= {*reported}


# ---- tools of OpenAI's agents, whose type is all that a client sends

AGENTS: dict[str, tuple[str, str]] = {
    "shell": ("action", "commands"),
    "local_shell": ("action", "command"),
    "apply_patch": ("operation", "path"),
}


@pytest.mark.parametrize("tool", AGENTS)
def test_an_agent_s_tool_is_called_in_its_own_item(oai: openai.OpenAI, tool: str) -> None:
    field, needed = AGENTS[tool]
    choice: Any = "required" if tool == "local_shell" else {"type": tool}  # which has no choice of its own
    body: Any = {"model": "tools", "input": "Go.", "tools": [{"type": tool}], "max_output_tokens": 300}
    sampling: Any = {"tool_choice": choice, "temperature": 0, "parallel_tool_calls": False}
    raw = oai.responses.with_raw_response.create(**body, **sampling)
    assert IGNORED not in raw.headers
    answer = raw.parse()
    (call,) = [item.to_dict() for item in answer.output]
    assert (call["type"], answer.tools[0].type) == (f"{tool}_call", tool)
    assert needed in call[field]
    assert "arguments" not in call
    events = list(oai.responses.create(**body, **sampling, stream=True))
    items = [event.item.type for event in events if event.type.startswith("response.output_item")]
    assert items == [f"{tool}_call"] * 2
    final: Any = events[-1]  # completed, or incomplete where the small model goes on and on
    assert needed in final.response.output[0].to_dict()[field]
    if final.response.status == answer.status == "completed":
        assert call[field][needed] == final.response.output[0].to_dict()[field][needed] is not None


def test_a_shell_in_openai_s_containers_is_reported(oai: openai.OpenAI) -> None:
    tool: Any = {"type": "shell", "environment": {"type": "container_auto"}}
    raw = oai.responses.with_raw_response.create(
        model="tools", input="Go.", tools=[tool], tool_choice={"type": "shell"}, max_output_tokens=16
    )
    assert raw.headers[IGNORED] == "tools[0].type=shell,tool_choice.type=shell"
    assert raw.parse().output[0].type == "message"
