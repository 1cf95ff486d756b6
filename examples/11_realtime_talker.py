"""Talk to graphs/realtime from a terminal. Needs `arecord` and `aplay` (alsa-utils).

    ovserve serve graphs/realtime
    python examples/11_realtime_talker.py [URL [MODEL]]

Use headphones: the model hears what the microphone hears. With `-` as MODEL the server's only realtime graph
answers. Lines that you type are questions too.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys

import aiohttp

FORMAT = ("-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "24000")
CHUNK = 4800  # bytes: 100 ms


async def record(talk: aiohttp.ClientWebSocketResponse) -> None:
    """Send what the microphone hears."""
    process = await asyncio.create_subprocess_exec("arecord", *FORMAT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    while chunk := await process.stdout.read(CHUNK):
        audio = base64.b64encode(chunk).decode()
        await talk.send_json({"type": "input_audio_buffer.append", "audio": audio})


async def ask(talk: aiohttp.ClientWebSocketResponse) -> None:
    """Send each line that is typed."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": line}]}
        await talk.send_json({"type": "conversation.item.create", "item": item})
        await talk.send_json({"type": "response.create"})


class Player:
    """Plays audio. `stop` drops what has not been heard."""

    process: asyncio.subprocess.Process | None = None

    async def play(self, audio: bytes) -> None:
        if self.process is None:
            self.process = await asyncio.create_subprocess_exec(
                "aplay", *FORMAT, stdin=asyncio.subprocess.PIPE
            )
        assert self.process.stdin is not None
        self.process.stdin.write(audio)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None


async def listen(talk: aiohttp.ClientWebSocketResponse) -> None:
    player = Player()
    async for message in talk:
        event = json.loads(message.data)
        match event["type"]:
            case "response.output_audio.delta":
                await player.play(base64.b64decode(event["delta"]))
            case "input_audio_buffer.speech_started":
                player.stop()
            case "conversation.item.input_audio_transcription.completed":
                print(f"you: {event['transcript']}")
            case "response.output_audio_transcript.done":
                print(f"model: {event['transcript']}")
            case "error":
                print(f"error: {event['error']['message']}")


async def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
    model = sys.argv[2] if len(sys.argv) > 2 else "realtime"
    query = {} if model == "-" else {"model": model}
    session = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper"}}}}
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{url}/v1/realtime", params=query) as talk,
    ):
        await talk.send_json({"type": "session.update", "session": session})
        async with asyncio.TaskGroup() as tasks:
            for work in (record(talk), ask(talk), listen(talk)):
                tasks.create_task(work)


if __name__ == "__main__":
    asyncio.run(main())
