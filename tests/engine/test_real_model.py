"""The default model in its own process, through the client: what the rest of the server sees."""

import asyncio
import sys

import pytest
from conftest import Start, kill_engine, read_all, request

pytestmark = pytest.mark.long

FRANCE = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


async def test_from_ready_to_restart(start: Start, model_path: str) -> None:
    client = await start(model_path)
    assert client.facts.max_length == 8192

    stream = await client.generate(request(FRANCE, max_tokens=40))
    admission = await stream.next()
    assert (admission.text, admission.prompt_tokens, admission.max_tokens) == ("", 16, 40)
    text, last = await read_all(stream)
    assert "Paris" in text
    assert last.finish_reason == "stop"
    assert client.stats().generated_tokens == last.tokens

    many = [await client.generate(request(FRANCE, max_tokens=40)) for _ in range(16)]
    answers = await asyncio.gather(*map(read_all, many))
    assert {text for text, _ in answers} == {text}

    await kill_engine(client)
    assert (await read_all(await client.generate(request(FRANCE, max_tokens=40))))[0] == text


async def test_the_server_process_never_imports_openvino() -> None:
    code = (
        "import sys, ovserve.engine.client.client, ovserve.engine.worker.main, ovserve.kinds.text.worker.scripted\n"
        "print([name for name in sys.modules if 'openvino' in name or 'numpy' in name])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.strip() == b"[]"
