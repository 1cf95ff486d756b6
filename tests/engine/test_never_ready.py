"""Loading does not succeed: the reason must reach the operator, and no process may stay behind."""

import asyncio
from pathlib import Path

import pytest
from conftest import Script, is_running, text_spec

from ovserve.engine.client import process
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.text import TextClient
from ovserve.errors import LoadError


@pytest.fixture(autouse=True)
async def no_process_stays(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    pids: list[int] = []

    class Recorded(process.Child):
        def __init__(self, *arguments: str) -> None:
            super().__init__(*arguments)
            pids.append(self.process.pid)

    monkeypatch.setattr(process, "Child", Recorded)
    tasks = asyncio.all_tasks()
    yield
    assert pids
    assert not [pid for pid in pids if is_running(pid)]
    assert asyncio.all_tasks() <= tasks | {asyncio.current_task()}


async def fails(path: str, ready_timeout: float = 100.0, **spec: object) -> str:
    with pytest.raises(LoadError) as caught:
        await TextClient.start(text_spec(path, **spec), EngineSettings(ready_timeout=ready_timeout))  # type: ignore[arg-type]
    return str(caught.value)


async def test_hangs_while_loading(script: Script) -> None:
    message = await fails(script(load="hang"), ready_timeout=0.5)
    assert "not ready after 0.5 s" in message


async def test_dies_while_loading_and_its_last_words_are_told(script: Script) -> None:
    message = await fails(script(load="exit"))
    assert "ended while loading (exit status 13)" in message
    assert "about to exit while loading" in message


async def test_says_why(script: Script) -> None:
    assert "the script says that loading fails" in await fails(script(load="fail"))


async def test_cancelled_while_loading(script: Script) -> None:
    task = asyncio.create_task(TextClient.start(text_spec(script(load="hang"))))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_script_with_a_typo(script: Script) -> None:
    assert "`stpes`" in await fails(script(stpes=3))


async def test_missing_path() -> None:
    assert await fails("/no/such/model.gguf") == "no such model: /no/such/model.gguf"


async def test_garbage_gguf_does_not_crash_the_library(tmp_path: Path) -> None:
    path = tmp_path / "garbage.gguf"
    path.write_bytes(b"<html>404</html>" * 100)
    assert await fails(str(path)) == f"{path}: not a GGUF file (it does not begin with 'GGUF')"


async def test_half_a_download(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "half.gguf"
    with model.open("rb") as whole:
        path.write_bytes(whole.read(20_000_000))
    assert "the file is truncated" in await fails(str(path))


async def test_directory_without_a_model(tmp_path: Path) -> None:
    assert "Could not find a model in the directory" in await fails(str(tmp_path))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ('{"NO_SUCH_THING": 1}', "plugin_config: Unsupported property NO_SUCH_THING by CPU plugin."),
        ("{", "plugin_config: not a JSON object"),
        ('{"NUM_STREAMS": "many"}', "Could not read number of streams from str: many"),
    ],
)
async def test_bad_plugin_config(tiny_path: str, properties: str, message: str) -> None:
    reason = await fails(tiny_path, properties=properties)
    assert reason.startswith(message)
    assert "\n" not in reason
    assert ".cpp" not in reason


async def test_unknown_device(tiny_path: str) -> None:
    assert "XPU" in await fails(tiny_path, device="XPU")
