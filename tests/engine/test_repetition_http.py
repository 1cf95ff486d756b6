"""An answer that only repeats itself, through the server: both engines, the official client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ovserve.kinds.text.worker.decoding import CHECK_INTERVAL, WINDOW_TOKENS
from tests.conftest import ROOT, Server, start_process
from tests.engine import tiny

ROUND = "helo!"  # goes round for ever in the tiny model
END = ("length", "repetition_detected")
NAME = "smollm2"


@pytest.fixture(scope="module", params=["paged", "genai"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model, whose answers no rounding changes, in either engine."""
    model = tiny.write_openvino(tmp_path_factory.mktemp("tiny") / "model", tiny.table(ROUND))
    started = start_process(model, "--model_name", NAME, "--engine", request.param, timeout=230)
    yield started
    started.stop()


def reason(choice: Any) -> tuple[str, str | None]:
    return choice.finish_reason, getattr(choice, "stop_reason", None)


@pytest.mark.timeout(900)
async def test_a_loop_ends_in_all_forms_of_an_answer(site: Server) -> None:
    """At once, so the requests also share the steps of the engine."""
    asked: dict[str, Any] = {"model": NAME, "prompt": ROUND * 41, "temperature": 0}
    async with openai.AsyncOpenAI(base_url=site.v3, api_key="none", max_retries=0, timeout=800) as client:
        create: Any = client.completions.with_raw_response.create

        async def streamed() -> list[Any]:
            completions: Any = client.completions
            stream = await completions.create(**asked, stream=True, stream_options={"include_usage": True})
            return [chunk async for chunk in stream]

        whole, chunks, wanted = await asyncio.gather(
            create(**asked, n=2, logprobs=1),
            streamed(),
            create(**asked, max_tokens=WINDOW_TOKENS + 3 * CHECK_INTERVAL, extra_body={"ignore_eos": True}),
        )
    answer = whole.parse()
    assert [reason(choice) for choice in answer.choices] == [END, END]
    assert whole.headers["x-ovserve-repetition"] == "0,1"
    tokens, odd = divmod(answer.usage.completion_tokens, 2)
    assert not odd
    assert WINDOW_TOKENS <= tokens <= WINDOW_TOKENS + 2 * CHECK_INTERVAL
    for choice in answer.choices:
        assert len(choice.logprobs.tokens) == tokens
        assert choice.text.count(ROUND) > 50

    ends = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert [reason(end) for end in ends] == [END]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == answer.choices[0].text
    assert chunks[-1].usage.completion_tokens == tokens

    assert wanted.parse().usage.completion_tokens == WINDOW_TOKENS + 3 * CHECK_INTERVAL
    assert reason(wanted.parse().choices[0]) == ("length", None)
    assert "x-ovserve-repetition" not in wanted.headers


@pytest.mark.timeout(400)
def test_the_first_example_of_the_documents_ends_and_the_chat_says_why(server: Server) -> None:
    flags = ("--temperature", "0", "--system", "You are a helpful assistant.", "-p", "hello")
    command = [sys.executable, "-m", "ovserve", "run", *flags, "--url", server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, cwd=ROOT, check=True)
    assert done.stderr == "ovserve run: the answer was ended, because it only repeated itself\n"
