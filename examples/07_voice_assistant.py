"""Ask graphs/voice_assistant a question in a WAV file, and store the spoken answer.

    ovserve serve graphs/voice_assistant
    python examples/07_voice_assistant.py question.wav answer.wav [URL [MODEL [CONVERSATION]]]

It prints when each part arrived, in seconds after the recording was sent. The first line names the
conversation; give its id with the next question, and the assistant remembers this one.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import wave
from pathlib import Path

import httpx


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    address = sys.argv[3] if len(sys.argv) > 3 else "http://localhost:8000"
    form = {"model": sys.argv[4] if len(sys.argv) > 4 else "voice_assistant"}
    if len(sys.argv) > 5:
        form["conversation"] = sys.argv[5]
    file = {"file": Path(sys.argv[1]).read_bytes()}
    audio, rate, began = b"", 24_000, time.monotonic()
    with httpx.stream("POST", f"{address}/v3/audio/assistant", data=form, files=file, timeout=300) as answer:
        if answer.is_error:
            print(answer.read().decode())
            return 1
        for line in answer.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if "audio" in event:
                rate = event["rate"]
                audio += base64.b64decode(event["audio"])
                event["text"] = f"{len(audio) / 2 / rate:.1f} s so far"
            if "output" in event:
                event["text"] = f"{event['name']}({event['arguments']}): {event['output']}"
            if "turns" in event:
                event["text"] = f"{event['conversation']}, {event['turns']} turns before"
            if event:
                seconds, kind = time.monotonic() - began, event.get("type", "error")
                print(f"{seconds:6.2f}  {kind}  {event.get('text', event)}")
    with wave.open(sys.argv[2], "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(audio)
    return 0


if __name__ == "__main__":
    sys.exit(main())
