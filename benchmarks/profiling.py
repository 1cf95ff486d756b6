"""Shows where the server's time goes: py-spy on the server process while streams run. Writes no files.

    python -m benchmarks.profiling [--concurrency 32] [--seconds 20] [--top 25] [--native]

Prints the parts of the server in percent of the samples outside of waiting, and two lists in percent of all:
functions by their own time, and by the time with everything they call. py-spy needs the right to trace (root,
or ptrace_scope 0).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import client, processes
from benchmarks.measure import PROMPT_TOKENS

RATE = 500  # samples a second
WAITING = "waiting, and the event loop itself"
OTHER = "other"
# A sample is of the part whose file comes first from the innermost call outwards.
PARTS = {
    "writing to sockets": (
        "aiohttp/http_writer",
        "aiohttp/web_response",
        "ovserve/http/sse/events",
        "ovserve/http/sse/stream",
    ),
    "reading requests, routes, middleware": ("aiohttp/", "ovserve/http/", "ovserve/access"),
    "request to prompt": (
        *(
            "ovserve/api/openai/body",
            "ovserve/api/openai/sampling",
            "ovserve/api/openai/operation",
            "ovserve/calculators/http_",
        ),
        *("ovserve/calculators/request_parser", "ovserve/sandbox/", "ovserve/llm/prompt"),
    ),
    "SSE events": ("ovserve/api/openai/", "ovserve/calculators/response_writer"),
    "output parser": ("ovserve/llm/", "ovserve/calculators/output_parser"),
    "graph": ("ovserve/graph/", "ovserve/calculators/"),
    "engine: frames and mailboxes": ("ovserve/engine/",),
    "admission, metrics, access log": ("ovserve/serving/", "ovserve/"),
    WAITING: ("concurrent/futures/thread.py", "asyncio/runners.py"),
}


def sample(pid: int, seconds: int, output: Path, native: bool) -> subprocess.Popen[bytes]:
    spy = Path(sys.executable).with_name("py-spy")
    command = [str(spy), "record", "-f", "raw", "-o", str(output), "-p", str(pid)]
    command += ["-d", str(seconds), "-r", str(RATE), *(["--native"] if native else [])]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def load(port: int, prompts: list[str], concurrency: int, seconds: float) -> int:
    """Streams until the time is over; the number of tokens."""
    requests = [client.request(port, prompt, 128) for prompt in prompts]
    tokens = 0
    end = time.monotonic() + seconds
    with asyncio.Runner(loop_factory=client.new_event_loop) as runner:
        while time.monotonic() < end:
            answers = runner.run(client.run(port, requests, concurrency))
            for answer in answers:
                answer.read()
                tokens += answer.completion_tokens
    return tokens


def report(raw: str, top: int) -> list[str]:
    own: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    parts = Counter({WAITING: 0})
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_short(frame) for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        for frame in set(frames):
            inclusive[frame] += int(count)
        parts[_part(stack)] += int(count)
    total = sum(own.values())
    working = total - parts.pop(WAITING)
    lines = [f"{total} samples at {RATE}/s, {working / total * 100:.1f} % outside of: {WAITING}"]
    lines += ["", "   % of those, by part"]
    lines += [f"{n / working * 100:4.1f} {part}" for part, n in parts.most_common()]
    for title, counter in (("own time", own), ("with callees", inclusive)):
        lines += ["", f"   % {title}"]
        lines += [f"{n / total * 100:4.1f} {frame}" for frame, n in counter.most_common(top)]
    return lines


def _part(stack: str) -> str:
    for frame in reversed(stack.split(";")):
        file = frame.rpartition(" (")[2]
        for part, files in PARTS.items():
            if file.startswith(files):
                return part
    return OTHER


def _short(frame: str) -> str:
    """`function (file.py:12)` without the line, so that one function is one row."""
    return frame.rpartition(":")[0] + ")" if frame.endswith(")") and ":" in frame else frame


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--native", action="store_true", help="C frames too (slower)")
    chosen = parser.parse_args()
    processes.exit_on_sigterm()
    prompts = processes.exact_prompts(chosen.concurrency, PROMPT_TOKENS, seed=7)
    with contextlib.ExitStack() as stack:
        server, _ = processes.timed_server()
        stack.callback(processes.stop_server, server)
        pid = server.process.pid
        output = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "raw"
        spy = sample(pid, chosen.seconds, output, chosen.native)
        before = processes.cost(pid)
        tokens = load(server.port, prompts, chosen.concurrency, chosen.seconds)
        used = processes.cost(pid) - before
        _, error = spy.communicate(timeout=60)
        if spy.returncode:
            sys.exit(f"py-spy failed: {error.decode()}")
        lines = report(output.read_text(), chosen.top)
    lines.append(f"\nserver CPU {used.cpu / tokens * 1e6:.0f} us per token while sampled, {tokens} tokens")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
