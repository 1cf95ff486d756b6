"""The five calculators of docs/calculators.md as they stand there: over every API, and reloaded under load."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.conftest import ROOT, Server, start_process
from tests.short_model import EXACT

pytestmark = pytest.mark.long

STANDS_IN = {  # the graph whose wiring each one needs, and the calculator whose place it takes
    "NoCasino": ("guardrail", "PromptGuard"),
    "MaskEmail": ("pii_mask", "MaskPii"),
    "CodeSwitch": ("router", "Router"),
    "Hedging": ("cascade", "Cascade"),
    "Today": ("guardrail", "PromptGuard"),
}
SAID = "write to john.doe@example.com or call 555-123-4567"
Answer = tuple[str, int]  # text, generated tokens


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, short_model: Path) -> Path:
    root = tmp_path_factory.mktemp("documented")
    page = (ROOT / "docs/calculators.md").read_text()
    source = next(
        block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "class NoCasino" in block
    )
    for name, (graph, calculator) in STANDS_IN.items():
        text = (ROOT / "graphs" / graph / "graph.pbtxt").read_text()
        before, _, after = text.partition(f'calculator: "{calculator}Calculator"\n')
        node, rest = after.split("\n}\n", 1)
        text = f'{before}calculator: "{name}Calculator"\n{node.partition("  node_options {")[0]}\n}}\n{rest}'
        says = f"models_path: \"{short_model}\" plugin_config: '{EXACT}'"
        (root / name).mkdir()
        if name == "MaskEmail":  # two layers repeat nothing
            says = 'models_path: "model.script.json"'
            (root / name / "model.script.json").write_text(json.dumps({"replies": [{"text": SAID}]}))
        text, count = re.subn(r'models_path: "[^"]*"', says, text)
        assert count
        (root / name / "graph.pbtxt").write_text(text)
        (root / name / "calculators.py").write_text(source)
    return root


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    running = start_process("--graphs_dir", str(directory), timeout=230)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def apis(server: Server) -> dict[str, Callable[[str, str, bool], Answer]]:
    client = openai.OpenAI(base_url=server.v3, api_key="x", max_retries=0)
    claude = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)

    def chat(name: str, text: str, stream: bool) -> Answer:
        asked = {
            "model": name,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 20,
            "temperature": 0,
        }
        if not stream:
            answer = client.chat.completions.create(**asked)  # type: ignore[call-overload]
            return answer.choices[0].message.content, answer.usage.completion_tokens
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**asked))  # type: ignore[call-overload]
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        return "".join(texts), chunks[-1].usage.completion_tokens

    def completions(name: str, text: str, stream: bool) -> Answer:
        asked = {"model": name, "prompt": f"{text}. {text}.", "max_tokens": 20, "temperature": 0}
        if not stream:
            answer = client.completions.create(**asked)  # type: ignore[call-overload]
            return answer.choices[0].text, answer.usage.completion_tokens
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.completions.create(**asked))  # type: ignore[call-overload]
        texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
        return "".join(texts), chunks[-1].usage.completion_tokens

    def responses(name: str, text: str, stream: bool) -> Answer:
        asked = {"model": name, "input": text, "max_output_tokens": 20, "temperature": 0}
        if not stream:
            answer = client.responses.create(**asked)  # type: ignore[call-overload]
            return answer.output_text, answer.usage.output_tokens
        events = list(client.responses.create(stream=True, **asked))  # type: ignore[call-overload]
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
        return "".join(texts), events[-1].response.usage.output_tokens

    def messages(name: str, text: str, stream: bool) -> Answer:
        asked = {"model": name, "messages": [{"role": "user", "content": text}], "max_tokens": 20}
        asked["extra_body"] = {"temperature": 0}
        if not stream:
            answer = claude.messages.create(**asked)  # type: ignore[call-overload]
            return answer.content[0].text, answer.usage.output_tokens
        with claude.messages.stream(**asked) as events:  # type: ignore[arg-type]
            return "".join(events.text_stream), events.get_final_message().usage.output_tokens

    return {call.__name__: call for call in (chat, completions, responses, messages)}


@pytest.mark.parametrize("name", STANDS_IN)
@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_each_works_whole_and_streamed(
    apis: dict[str, Callable[[str, str, bool], Answer]], name: str, api: str
) -> None:
    text, tokens = whole = apis[api](name, "Hello", False)
    assert apis[api](name, "Hello", True) == whole
    assert text
    assert tokens > 0
    if name == "MaskEmail":
        assert text == SAID.replace("john.doe@example.com", "[email]")
    if name == "NoCasino":
        for stream in (False, True):
            with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="Not a subject"):
                apis[api](name, "Where is the casino?", stream)


def test_all_are_reloaded_under_load(
    apis: dict[str, Callable[[str, str, bool], Answer]], server: Server, directory: Path
) -> None:
    answers: list[Answer] = []
    faults: list[Exception] = []
    stop = threading.Event()

    def ask(stream: bool) -> None:
        for name in itertools.cycle(STANDS_IN):
            try:
                answers.extend(call(name, "Hello", stream) for call in apis.values())
            except (openai.OpenAIError, anthropic.AnthropicError) as error:
                faults.append(error)
            if stop.is_set():
                return

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
    for thread in threads:
        thread.start()
    try:
        for edit in range(3):
            for file in directory.glob("*/calculators.py"):
                file.write_text(f"{file.read_text()}# {edit}\n")
            reply = httpx.post(f"{server.url}/v1/config/reload", timeout=230)
            assert reply.status_code == 201, reply.text
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults
    assert len(answers) >= 8
    assert all(tokens for _, tokens in answers)
