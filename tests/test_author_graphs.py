"""The graphs of authors that ship, on the real engine: over every API, whole and streamed, and reloaded under load."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.conftest import MODEL, ROOT, Server, start_process, until
from tests.short_model import EXACT

pytestmark = pytest.mark.long

GRAPHS = ("guardrail", "pii_mask", "router", "cascade", "retrieval")
ECHO = "Repeat exactly: write to john.doe@example.com or call 555-123-4567"
MASKED = "Repeat exactly: write to [email] or call [phone]"
TOOL = {
    "type": "function",
    "function": {
        "name": "mail",
        "parameters": {
            "type": "object",
            "properties": {"to": {"const": "john.doe@example.com"}, "card": {"const": 4111111111111111}},
            "required": ["to", "card"],
            "additionalProperties": False,
        },
    },
}


JUDGE = """
from ovserve.calculators.library import PromptInsertion
from ovserve.graph import calculator
from ovserve.llm.request import Sampling

@calculator("AskingCalculator")
class Asking(PromptInsertion):
    async def insert(self, cc, question):
        llm = cc[self.llm]
        ids = await llm.tokenize(question)
        assert await llm.detokenize(ids) == question
        prompt = await llm.render([{"role": "user", "content": question}])
        assert prompt.endswith("assistant\\n"), prompt
        raw = await llm.generate(prompt, max_tokens=3)
        chat = await llm.generate([{"role": "user", "content": question}], sampling=Sampling(temperature=0.0, max_tokens=3, logprobs=True))
        assert raw.text == chat.text and raw.tokens == chat.tokens == 3 and chat.finish_reason == "length"
        assert raw.mean_logprob is None and -9 < chat.mean_logprob < 0
        async for packet in llm.stream(question):
            break  # leaving it ends the generation
        cc.count("asked", raw.prompt_tokens + chat.prompt_tokens)
        return ""
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, short_model: Path) -> Path:
    """The graphs, one of them with parsers for tools and reasoning: the default model's template has none.

    The default model takes the place of the larger one, which is not there by default.
    """
    root = tmp_path_factory.mktemp("graphs")
    for name in GRAPHS:
        shutil.copytree(ROOT / "graphs" / name, root / name)
    for name in ("09_chat_log", "10_two_models"):
        shutil.copytree(ROOT / "examples" / name, root / name[3:])
    shutil.copytree(root / "pii_mask", root / "pii_tools")
    shutil.copytree(root / "retrieval", root / "asking", ignore=shutil.ignore_patterns("*.py", "*.txt"))
    (root / "asking/calculators.py").write_text(JUDGE)
    graph = (root / "asking/graph.pbtxt").read_text().replace('"RetrievalCalculator"', '"AskingCalculator"')
    graph = re.sub(
        r"  node_options \{\n    \[type.googleapis.com/google.protobuf.Struct.*?\n  \}\n",
        "",
        graph,
        flags=re.S,
    )
    graph = graph.replace('  output_stream: "TEXT:sources"\n', "").replace(
        '  input_stream: "TEXT:sources"\n', ""
    )
    graph = re.sub(r'node \{\n  name: "Citations".*?\n\}\n\n', "", graph, flags=re.S)
    graph = graph.replace("PARSED:cited", "PARSED:parsed")
    (root / "asking/graph.pbtxt").write_text(graph)
    for file in root.glob("*/graph.pbtxt"):
        # OpenVINO's form, and no sizes of an engine, so that all but one graph share one: it loads in 5 s of CPU time.
        models = r'models_path: "../../models/(?:smollm2|qwen2.5-coder-0.5b)\b[^"]*"'
        path, options = f'models_path: "{MODEL.parent}"', ""
        if file.parent.name == "pii_tools":
            options = ' generic_tool_prompt: true reasoning_parser: "qwen3"'
        if file.parent.name == "two_models":  # its answers are compared, also those from the prefix cache
            path, options = f'models_path: "{short_model}"', f" plugin_config: '{EXACT}'"
        text, count = re.subn(models, path + options, file.read_text())
        assert count
        text = text.replace("max_tokens: 100", "max_tokens: 40")  # of each answer that is merged
        text = re.sub(
            r"^ *(max_num_seqs|max_num_batched_tokens|enable_prefix_caching): \w+\n", "", text, flags=re.M
        )
        file.write_text(text)
    return root


@pytest.fixture(scope="module")
def server(directory: Path, model: Path) -> Iterator[Server]:
    running = start_process("--graphs_dir", str(directory), "--metrics_enable", timeout=230)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.v3, api_key="x", max_retries=0)


def chat(server: Server, name: str, text: str, **more: object) -> dict:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 30,
    }
    answer = httpx.post(f"{server.v3}/chat/completions", json=body | more, timeout=230)
    assert answer.status_code == 200, answer.text
    found: dict = answer.json()
    return found


def said(answer: dict) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def every_api(
    client: openai.OpenAI, server: Server, name: str, text: str, stream: bool, most: int = 30
) -> dict[str, tuple[str, int]]:
    """What each API answers, with the tokens of the prompt."""
    found: dict[str, tuple[str, int]] = {}
    asked = {"model": name, "temperature": 0}
    messages = [{"role": "user", "content": text}]
    if stream:
        chunks = list(
            client.chat.completions.create(
                messages=messages,
                max_tokens=most,
                stream=True,
                stream_options={"include_usage": True},
                **asked,
            )
        )  # type: ignore[call-overload]
        found["chat"] = (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
            chunks[-1].usage.prompt_tokens,
        )
        events = list(client.responses.create(input=text, max_output_tokens=most, stream=True, **asked))  # type: ignore[call-overload]
        assert (
            "".join(e.delta for e in events if e.type == "response.output_text.delta")
            == events[-1].response.output_text
        )
        found["responses"] = events[-1].response.output_text, events[-1].response.usage.input_tokens
    else:
        answer = client.chat.completions.create(messages=messages, max_tokens=most, **asked)  # type: ignore[call-overload]
        found["chat"] = answer.choices[0].message.content, answer.usage.prompt_tokens
        response = client.responses.create(input=text, max_output_tokens=most, **asked)  # type: ignore[call-overload]
        found["responses"] = response.output_text, response.usage.input_tokens
    body = asked | {"messages": messages, "max_tokens": most, "stream": stream}
    reply = httpx.post(f"{server.url}/v1/messages", json=body, timeout=230)
    assert reply.status_code == 200, reply.text
    if stream:
        told = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
        words = [e["delta"]["text"] for e in told if e["type"] == "content_block_delta"]
        found["messages"] = (
            "".join(words),
            next(e for e in told if e["type"] == "message_delta")["usage"]["input_tokens"],
        )
    else:
        found["messages"] = reply.json()["content"][0]["text"], reply.json()["usage"]["input_tokens"]
    return found


# ---- guardrail


@pytest.mark.parametrize("stream", [False, True])
def test_a_guarded_prompt_is_a_400_over_every_api(
    client: openai.OpenAI, server: Server, stream: bool
) -> None:
    requests = {
        "v3/chat/completions": ({"messages": [{"role": "user", "content": "Where is a casino?"}]}, "messages"),
        "v3/completions": ({"prompt": "The best Casino is"}, "prompt"),
        "v3/responses": ({"input": "Where is a casino?"}, "input"),
        "v1/messages": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "casino"}]}], "max_tokens": 9}, ""),
    }  # fmt: skip
    for path, (body, param) in requests.items():
        answer = httpx.post(
            f"{server.url}/{path}", json={"model": "guardrail", "stream": stream} | body, timeout=230
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["message"]) == (400, "Gambling is not a subject of this model."), (
            path
        )
        if param:
            assert (error["code"], error["param"]) == ("content_filter", param)
    large = [{"role": "user", "content": "x " * 400_000 + "casino"}]
    answer = httpx.post(
        f"{server.v3}/chat/completions", json={"model": "guardrail", "messages": large}, timeout=230
    )
    assert answer.json()["error"]["code"] == "content_filter", "read in a body process"


def test_a_guarded_answer_is_replaced(server: Server) -> None:
    """The prompt does not have the word that the answer must have by its grammar."""
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"const": "A game of pok" + "er"}},
    }
    answer = chat(server, "guardrail", "Say hello.", response_format=schema)
    assert said(answer) == "I would rather talk about something else."
    assert answer["choices"][0]["finish_reason"] == "content_filter"
    assert answer["usage"]["completion_tokens"] > 3
    body = {
        "model": "guardrail",
        "messages": [{"role": "user", "content": "Say hello."}],
        "response_format": schema,
    }
    streamed = httpx.post(f"{server.v3}/chat/completions", json=body | {"stream": True}, timeout=230).text
    assert "game" not in streamed
    assert "I would rather talk" in streamed
    assert streamed.rstrip().endswith("data: [DONE]")
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema["json_schema"]["schema"]}}  # type: ignore[index]
    response = httpx.post(
        f"{server.v3}/responses", json={"model": "guardrail", "input": "Hi", "text": text}, timeout=230
    ).json()
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "content_filter"},
    )
    assert said(chat(server, "guardrail", "Say hello.")).startswith("Hello")


# ---- mask


@pytest.mark.parametrize("stream", [False, True])
def test_personal_data_is_masked_over_every_api(client: openai.OpenAI, server: Server, stream: bool) -> None:
    assert {text for text, _ in every_api(client, server, "pii_mask", ECHO, stream).values()} == {MASKED}


def test_logprobs_show_no_personal_data(server: Server) -> None:
    answer = chat(server, "pii_mask", ECHO, logprobs=True)
    tokens = [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens) == MASKED
    assert "[phone]" in "".join(t for t in tokens if "[" in t)


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_of_a_call_are_masked_and_stay_json(
    client: openai.OpenAI, server: Server, stream: bool
) -> None:
    asked = {
        "model": "pii_tools", "messages": [{"role": "user", "content": "Mail John."}], "tools": [TOOL], "temperature": 0,
        "tool_choice": {"type": "function", "function": {"name": "mail"}}, "max_tokens": 100,
    }  # fmt: skip
    if stream:
        calls = [
            call
            for chunk in client.chat.completions.create(stream=True, **asked)  # type: ignore[call-overload]
            if chunk.choices
            for call in chunk.choices[0].delta.tool_calls or []
        ]
        arguments = "".join(call.function.arguments or "" for call in calls)
    else:
        answer = client.chat.completions.create(**asked)  # type: ignore[call-overload]
        arguments = answer.choices[0].message.tool_calls[0].function.arguments
    assert json.loads(arguments) == {"to": "[email]", "card": "[card]"}


def test_reasoning_is_masked(server: Server) -> None:
    begun = {"role": "assistant", "content": "<think>\n"}
    messages = [{"role": "user", "content": ECHO}, begun]
    answer = chat(
        server, "pii_tools", "", messages=messages, add_generation_prompt=False, continue_final_message=True
    )
    reasoning = answer["choices"][0]["message"]["reasoning_content"]
    assert "[email]" in reasoning
    assert "john" not in json.dumps(answer)


# ---- two models


def test_a_router_chooses_by_the_question(server: Server) -> None:
    before = events(server)
    answers = [chat(server, "router", text) for text in ("Say hello", "A Python function", "word " * 100)]
    # The model may answer the last one with nothing: with unpacked weights it does.
    assert [answer["choices"][0]["finish_reason"] in ("stop", "length") for answer in answers] == [True] * 3
    after = events(server)
    assert after["Router", "out_0"] - before.get(("Router", "out_0"), 0) == 1
    assert after["Router", "out_1"] - before.get(("Router", "out_1"), 0) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_cascade_hands_on_what_is_unsure_and_counts_both(
    client: openai.OpenAI, server: Server, stream: bool
) -> None:
    """The two models are the same here, so what both wrote costs twice the prompt."""
    sure = every_api(client, server, "cascade", ECHO, stream)
    unsure = every_api(client, server, "cascade", "Tell a surprising story about a whale", stream, 12)
    plain = chat(server, "router", ECHO)["usage"]["prompt_tokens"]
    told = chat(server, "router", "Tell a surprising story about a whale", max_tokens=12)
    assert {n for _, n in sure.values()} == {plain}
    assert {n for _, n in unsure.values()} == {2 * told["usage"]["prompt_tokens"]}
    assert {text for text, _ in unsure.values()} == {said(told)}


def test_a_cascade_shows_logprobs_only_if_asked(server: Server) -> None:
    assert chat(server, "cascade", ECHO)["choices"][0]["logprobs"] is None
    assert chat(server, "cascade", ECHO, logprobs=True)["choices"][0]["logprobs"]["content"]


@pytest.mark.slow
def test_two_models_answer_what_each_is_good_at(tmp_path: Path, model: Path) -> None:
    """The router and the cascade as they ship."""
    large = ROOT / "models/qwen2.5-coder-0.5b"
    if not (large / "openvino_model.xml").exists():
        pytest.skip("models/qwen2.5-coder-0.5b is missing; `ovserve pull qwen2.5-coder-0.5b` fetches it")
    for name in ("router", "cascade"):
        shutil.copytree(ROOT / "graphs" / name, tmp_path / name)
        file = tmp_path / name / "graph.pbtxt"
        file.write_text(file.read_text().replace("../../models", str(ROOT / "models")))
    running = start_process("--graphs_dir", str(tmp_path), "--metrics_enable", timeout=230)
    try:
        easy, hard = "What is the capital of France?", "What does git stash do? One sentence."
        code = "Write a Python function that adds two numbers."
        small, large_ = chat(running, "router", easy), chat(running, "router", code, max_tokens=100)
        assert "Paris" in said(small)
        assert "def add" in said(large_)
        assert events(running)["Router", "out_1"] == 1
        assert said(chat(running, "cascade", easy)) == said(small)
        assert ("Cascade", "rejected") not in events(running)
        told = chat(running, "cascade", hard, max_tokens=100)
        assert "changes" in said(told)
        assert events(running)["Cascade", "rejected"] == 1
        assert told["usage"]["prompt_tokens"] > 60, "of both models"
    finally:
        running.stop()


def test_capabilities_say_what_two_models_mean(server: Server) -> None:
    models = {m["model"]: m for m in httpx.get(f"{server.v3}/capabilities").json()["data"]}
    assert [e["side_packet"] for e in models["router"]["engines"]] == ["llm", "llm_large"]
    assert "each request" in models["router"]["several_models"]
    assert "several_models" not in models["guardrail"]


# ---- a node that asks the model itself


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_node_generates_is_in_the_usage(client: openai.OpenAI, server: Server, stream: bool) -> None:
    before = events(server).get(("Retrieval", "asked"), 0)
    (told,) = {n for _, n in every_api(client, server, "asking", "Say hello", stream, 4).values()}
    spent = (events(server)["Retrieval", "asked"] - before) // 3
    plain = chat(server, "router", "Say hello")["usage"]["prompt_tokens"]
    raw = len(["Say", "hello"])  # of the stream that was left
    assert told == plain + spent + raw
    answer = chat(server, "asking", "Say hello", max_tokens=4)
    assert answer["usage"]["completion_tokens"] >= 4 + 3 + 3


# ---- retrieval


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_names_its_sources(client: openai.OpenAI, server: Server, stream: bool) -> None:
    for text, _ in every_api(
        client, server, "retrieval", "Who was the keeper of the lighthouse?", stream
    ).values():
        assert "Marta Lindqvist" in text
        assert text.endswith("\n\nSources: [1] facts.txt:7, [2] facts.txt:1")
    assert "Sources" not in said(chat(server, "retrieval", "zzz"))


def test_the_state_of_a_node_is_shown(server: Server) -> None:
    (model,) = httpx.get(f"{server.v3}/capabilities?model=retrieval").json()["data"]
    (node,) = model["nodes"]
    assert (node["name"], node["facts"]["passages"]) == ("Retrieval", 4)


def test_a_tokenised_prompt_has_no_place_for_text(server: Server) -> None:
    ids = httpx.post(
        f"{server.url}/tokenize", json={"model": "retrieval", "prompt": "The lighthouse"}
    ).json()["tokens"]
    answer = httpx.post(f"{server.v3}/completions", json={"model": "retrieval", "prompt": ids}, timeout=230)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


# ---- the examples: an observer, and a node that answers itself


def test_each_exchange_is_written_down(client: openai.OpenAI, server: Server, directory: Path) -> None:
    told = [
        text
        for stream in (False, True)
        for text, _ in every_api(client, server, "chat_log", "Say hello", stream, 8).values()
    ]
    body = {"model": "chat_log", "prompt": "One, two,", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.v3}/completions", json=body, timeout=230) as answer:
        next(answer.iter_lines())  # and the client leaves
    database = sqlite3.connect(directory / "chat_log" / "chats.sqlite")
    until(lambda: len(database.execute("SELECT * FROM chats").fetchall()) >= 7)
    rows = database.execute("SELECT * FROM chats").fetchall()
    database.close()
    assert [row[1] for row in rows[:6]] == told
    assert all("Say hello" in row[0] and row[2] > 0 and row[5] == 1 for row in rows[:6])
    assert all(0 < row[3] <= row[4] for row in rows[:6])
    assert (rows[6][0], rows[6][5]) == ("One, two,", 0)


def test_two_models_are_asked_and_merged(client: openai.OpenAI, server: Server) -> None:
    whole = every_api(client, server, "two_models", "Say hello", False, 8)
    streamed = every_api(client, server, "two_models", "Say hello", True, 8)
    assert whole == streamed
    ((text, prompt_tokens),) = set(whole.values())
    assert text
    plain = chat(server, "router", "Say hello", max_tokens=1)["usage"]["prompt_tokens"]
    # All three prompts have the question; one answer of 40 tokens and the instruction would be 65.
    assert prompt_tokens > 3 * plain + 75, "both answers are in the last prompt"
    chunks = list(
        client.chat.completions.create(
            model="two_models", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, stream=True
        )
    )
    assert [c.choices[0].delta.role for c in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    with pytest.raises(openai.BadRequestError, match="this model answers once, got 2"):
        client.chat.completions.create(model="two_models", messages=[{"role": "user", "content": "Hi"}], n=2)
    shown = httpx.get(f"{server.v3}/capabilities?model=two_models").json()["data"][0]["engines"]
    assert {engine["side_packet"] for engine in shown} == {"llm", "second"}


# ---- reload


def test_an_edited_helper_is_reloaded_under_load(server: Server, directory: Path) -> None:
    """Requests go on while the index changes; a helper that does not compile changes nothing."""
    texts: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            texts.append(said(chat(server, "retrieval", "How high is the lighthouse?", max_tokens=8)))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        helper = directory / "retrieval/passages.py"
        good = helper.read_text()
        helper.write_text(good.replace("{path.name}:{line}", "{path.name}, line {line}"))
        assert httpx.post(f"{server.url}/v1/config/reload", timeout=230).status_code == 201
        assert "facts.txt, line 1" in said(chat(server, "retrieval", "How high is the lighthouse?"))
        helper.write_text("def Index(path: = 1")
        failed = httpx.post(f"{server.url}/v1/config/reload", timeout=230)
        assert failed.status_code >= 400
        assert "passages.py:1: SyntaxError" in failed.text
        (directory / "retrieval/facts.txt").write_text("The lighthouse is 99 metres high.")
        helper.write_text(good)
        assert httpx.post(f"{server.url}/v1/config/reload", timeout=230).status_code == 201
        assert said(chat(server, "retrieval", "How high is the lighthouse?")).endswith(
            "Sources: [1] facts.txt:1"
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert texts
    assert all("Sources: " in text for text in texts)


@pytest.mark.parametrize(
    ("graph", "old", "new", "says"),
    [
        ("guardrail", "words:", "word:", "node 'PromptGuard': word: GuardOptions has no such field; did you mean words?"),
        ("pii_mask", '"phone"', '"fone"', "node 'MaskPii': kinds[2]: expected one of email, card, phone, got 'fone'; did you mean phone?"),
        ("router", "max_characters: 400", 'max_characters: "many"', "node 'Router': max_characters: expected int, got 'many'"),
        ("cascade", "min_mean_logprob: -0.75", "min_mean_logprob: 1.0", "min_mean_logprob: a logarithm of a probability is at most 0, got 1.0"),
        ("retrieval", '"facts.txt"', '"fact.txt"', "node 'Retrieval': calculator: RetrievalCalculator: load() raised FileNotFoundError"),
    ],
)  # fmt: skip
def test_a_misconfigured_graph_fails_at_load_and_the_old_one_stays(
    server: Server, directory: Path, graph: str, old: str, new: str, says: str
) -> None:
    file = directory / graph / "graph.pbtxt"
    text = file.read_text()
    file.write_text(text.replace(old, new))
    try:
        failed = httpx.post(f"{server.url}/v1/config/reload", timeout=230)
        assert says in failed.json()["error"], failed.text
        assert chat(server, graph, "Hello", max_tokens=3)["choices"]
    finally:
        file.write_text(text)
        assert httpx.post(f"{server.url}/v1/config/reload", timeout=230).status_code in (200, 201)


@pytest.mark.parametrize("name", ["guardrail", "pii_mask", "router", "retrieval"])
def test_an_authors_code_is_short(name: str) -> None:
    """Lines of code of the calculator and its options, without imports, docstrings and blank lines."""
    text = (ROOT / "graphs" / name / "calculators.py").read_text()
    body = text.split('"""', 2)[2].splitlines()
    lines = [line for line in body if line.strip() and not line.startswith(("import ", "from "))]
    assert len(lines) < 25


def events(server: Server) -> dict[tuple[str, str], int]:
    found = {}
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith("ovserve_node_events_total{"):
            labels = line.split('"')
            found[labels[3], labels[5]] = int(float(line.rpartition(" ")[2]))
    return found


def test_anthropics_client_sees_the_guard(server: Server) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)
    with pytest.raises(anthropic.BadRequestError, match="Gambling"):
        client.messages.create(
            model="guardrail", max_tokens=5, messages=[{"role": "user", "content": "casino"}]
        )


@pytest.mark.parametrize("name", GRAPHS)
def test_completions_say_the_same_whole_and_streamed(
    client: openai.OpenAI, server: Server, name: str
) -> None:
    asked = {
        "model": name,
        "prompt": "My phone is 555-123-4567. Call me at",
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = client.completions.create(**asked)  # type: ignore[call-overload]
    streamed = "".join(c.choices[0].text for c in client.completions.create(stream=True, **asked))  # type: ignore[call-overload]
    assert streamed == whole.choices[0].text
    assert whole.usage.completion_tokens >= 12
    if name == "pii_mask":
        assert "123-4567" not in streamed


@pytest.mark.parametrize("name", GRAPHS)
def test_several_choices_and_bad_bodies(server: Server, name: str) -> None:
    answer = chat(server, name, "Say hello", n=2, max_tokens=6)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert all(choice["message"]["content"] for choice in answer["choices"])
    for body in (b"\xff", b'{"model": "%s", "messages": 3}' % name.encode(), b"{}", b"[" * 10_000):
        reply = httpx.post(
            f"{server.v3}/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert 400 <= reply.status_code < 500, reply.text
