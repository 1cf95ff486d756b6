"""`make recording`: run commands in a real terminal, and draw what it showed as docs/images/run.svg.

The picture moves by CSS alone, so it does so on GitHub too. A reader who wants no motion, or whose program
draws none, sees the last screen.
"""

from __future__ import annotations

import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fcntl import ioctl
from html import escape
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/run.svg"
COLUMNS, ROWS = 92, 17
CAPTION = "two CPU cores; loading is shortened"
SHELL, CHAT = "$ ", ">>> "
SESSION = (  # what is typed, and the prompt that ends what it shows
    ("ovserve run qwen2.5-coder-0.5b --temperature 0", CHAT),
    ("What does git stash do? One sentence.", CHAT),
    ("And git stash pop? One sentence.", CHAT),
    ("/stats", CHAT),
    ("/bye", SHELL),
    (
        "ovserve run qwen2.5-coder-0.5b --temperature 0 -p 'Where is Oslo?' --json-schema examples/place.json",
        SHELL,
    ),
)

KEY_SECONDS = 0.03
FRAME_SECONDS = 0.04  # changes within it are one frame
LOAD_SECONDS = 4.0  # loading a model is shown in this time, whatever it took; the picture says so
PAUSE_SECONDS = 0.5  # before and after a line is typed; eight times that at the end
STEP_SECONDS = 180  # a model may have to be read from a slow disk

CELL, LINE, SIZE, EDGE, BAR = 8.4, 18, 14, 14, 28  # pixels
BACKGROUND, FOREGROUND = "#0d1117", "#e6edf3"
COLOURS = {
    "default": FOREGROUND, "black": "#484f58", "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922",
    "blue": "#58a6ff", "magenta": "#bc8cff", "cyan": "#39c5cf", "white": "#b1bac4",
    "brightblack": "#8b949e", "brightred": "#ffa198", "brightgreen": "#56d364", "brightbrown": "#e3b341",
    "brightblue": "#79c0ff", "brightmagenta": "#d2a8ff", "brightcyan": "#56d4dd", "brightwhite": "#f0f6fc",
}  # fmt: skip

Style = tuple[str, bool]  # colour, bold
Cell = tuple[str, Style]
BLANK: Cell = (" ", ("default", False))


class Terminal(pyte.Screen):
    """An emulated terminal that answers a program's question for the cursor, and shows faint text as grey."""

    def __init__(self, columns: int, rows: int, reply: int | None = None) -> None:
        self._reply = reply
        super().__init__(columns, rows)

    def write_process_input(self, data: str) -> None:
        if self._reply is not None:
            os.write(self._reply, data.encode())

    def select_graphic_rendition(self, *attrs: int, **kwargs: Any) -> None:
        super().select_graphic_rendition(*((90,) if attrs == (2,) else attrs), **kwargs)


@dataclass
class Recording:
    """Screens with the second at which each appeared."""

    columns: int
    rows: int
    frames: list[tuple[float, list[list[Cell]]]] = field(default_factory=list)
    cursors: list[tuple[float, tuple[int, int] | None]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, second: float, screen: Terminal) -> None:
        """Append what the screen shows, or replace a frame that is hardly older."""
        cells = [[_cell(screen.buffer[y][x]) for x in range(self.columns)] for y in range(self.rows)]
        cursor = None if screen.cursor.hidden else (screen.cursor.y, min(screen.cursor.x, self.columns - 1))
        self.seconds = second
        if self.frames and second - self.frames[-1][0] < FRAME_SECONDS:
            second = self.frames.pop()[0]
            self.cursors.pop()
        self.frames.append((second, cells))
        self.cursors.append((second, cursor))

    def shorten(self, waits: list[tuple[float, float]]) -> None:
        """Show each of `waits`, from a second to another, in LOAD_SECONDS if it took longer."""

        def at(second: float) -> float:
            cut = 0.0
            for start, end in waits:
                inside = min(max(second - start, 0), end - start)
                cut += inside * max(1 - LOAD_SECONDS / (end - start), 0)
            return second - cut

        self.frames = [(at(second), cells) for second, cells in self.frames]
        self.cursors = [(at(second), cursor) for second, cursor in self.cursors]
        self.seconds = at(self.seconds)


def _cell(char: pyte.screens.Char) -> Cell:
    return (char.data or " ", (char.fg if char.fg in COLOURS else "default", bool(char.bold)))


def record(session: Sequence[tuple[str, str]]) -> Recording:
    """Type the session into a shell of its own. Raises TimeoutError when a prompt does not come."""
    recording = Recording(COLUMNS, ROWS)
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = Terminal(COLUMNS, ROWS, ours)
    stream = pyte.ByteStream(screen)
    with tempfile.TemporaryDirectory() as home:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        plain = {"HOME": home, "PATH": path, "PS1": SHELL, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        kept = {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "OVSERVE_URL")}
        with subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=plain | kept, start_new_session=True,
        ) as shell:  # fmt: skip
            os.close(theirs)
            start, loads = time.monotonic(), []

            def show(seconds: float) -> None:
                """Take in what the terminal is sent for so long."""
                end = time.monotonic() + seconds
                while (left := end - time.monotonic()) > 0:
                    if not select.select([ours], [], [], left)[0]:
                        return
                    stream.feed(os.read(ours, 65536))
                    recording.add(time.monotonic() - start, screen)

            def wait(prompt: str) -> None:
                end = time.monotonic() + STEP_SECONDS
                while True:
                    show(PAUSE_SECONDS)
                    line = "".join(screen.buffer[screen.cursor.y][x].data for x in range(COLUMNS))
                    if line.startswith(prompt) and screen.cursor.x == len(prompt):
                        return
                    if time.monotonic() > end:
                        raise TimeoutError(f"no {prompt!r} after {STEP_SECONDS} s; the last line is {line!r}")

            try:
                wait(SHELL)
                for text, prompt in session:
                    for key in text:
                        os.write(ours, key.encode())
                        show(KEY_SECONDS)
                    show(PAUSE_SECONDS)
                    os.write(ours, b"\r")
                    entered = time.monotonic() - start
                    wait(prompt)
                    if text.startswith("ovserve run"):
                        loads.append((entered, recording.seconds))
                recording.seconds = time.monotonic() - start + 8 * PAUSE_SECONDS
            finally:
                shell.kill()
                os.close(ours)
    recording.shorten(loads)
    return recording


@dataclass(frozen=True)
class Span:
    """The frames in which something is shown: from `start` up to `end`; None is the end of the recording."""

    start: int
    end: int | None


@dataclass
class Run:
    """Cells in a row that appear and disappear at once."""

    x: int
    text: str
    style: Style
    span: Span


def runs(recording: Recording, y: int) -> Iterator[Run]:
    """Yield what row `y` shows, over all frames."""
    rows = [cells[y] for _, cells in recording.frames]
    changes = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    shown: dict[Span, list[tuple[int, Cell]]] = {}
    for x in range(recording.columns):
        mine = [i for n, i in enumerate(changes) if n == 0 or rows[i][x] != rows[changes[n - 1]][x]]
        for i, end in zip(mine, [*mine[1:], None], strict=True):
            if rows[i][x][0] != " ":
                shown.setdefault(Span(i, end), []).append((x, rows[i][x]))
    for span, cells in shown.items():
        current: Run | None = None
        for x, (char, style) in cells:
            gap = x - current.x - len(current.text) if current else 0
            if current and style == current.style and gap <= 1:  # a blank between two words
                current.text += " " * gap + char
                continue
            if current:
                yield current
            current = Run(x, char, style, span)
        if current:
            yield current


def draw(recording: Recording, title: str, caption: str) -> str:
    """Return the recording as SVG, which begins anew at its end."""
    width, height = recording.columns * CELL + 2 * EDGE, recording.rows * LINE + BAR + 2 * EDGE
    times = [second for second, _ in recording.frames]
    spans: dict[Span, str] = {}

    def timed(span: Span) -> str:
        """Return the attributes of an element that is shown in `span`."""
        if span == Span(0, None):
            return ""
        name = spans.setdefault(span, f"k{len(spans)}")
        return f' class="{name}{"" if span.end is None else " t"}"'

    body = []
    for y in range(recording.rows):
        base = BAR + EDGE + y * LINE + SIZE
        for run in runs(recording, y):
            colour, bold = run.style
            look = "" if colour == "default" else f' style="fill:{COLOURS[colour]}"'
            look += ' font-weight="700"' if bold else ""
            length = f' textLength="{len(run.text) * CELL:.1f}"' if len(run.text) > 1 else ""
            at = f'x="{EDGE + run.x * CELL:.1f}" y="{base}"'
            body.append(f"<text {at}{length}{look}{timed(run.span)}>{escape(run.text, quote=False)}</text>")
    keyframes = "".join(_keyframes(name, span, times, recording.seconds) for span, name in spans.items())
    body.append(f'<rect width="{CELL}" height="{LINE}" class="c"/>')
    style = (
        f"text{{font:{SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:{FOREGROUND}}}"
        ".t{opacity:0}"
        f"text,rect{{animation:{recording.seconds:.2f}s step-end infinite}}{keyframes}{_cursor(recording)}"
        "@media(prefers-reduced-motion:reduce){text,rect{animation:none!important}}"
    )
    dots = "".join(
        f'<circle cx="{EDGE + 6 + 20 * i}" cy="17" r="6" fill="{c}"/>'
        for i, c in enumerate(("#ff7b72", "#d29922", "#3fb950"))
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<style>{style}</style>"
        f'<path d="M8 0h{width - 16:.0f}a8 8 0 0 1 8 8v{height - 16:.0f}a8 8 0 0 1-8 8H8a8 8 0 0 1-8-8V8a8 8 0 0 1 8-8z" fill="{BACKGROUND}"/>{dots}'
        f'<text x="{width / 2:.0f}" y="22" text-anchor="middle" style="fill:#8b949e;font-size:12px">{escape(caption)}</text>'
    )
    return "\n".join((head, *body, "</svg>\n"))


def _keyframes(name: str, span: Span, times: Sequence[float], seconds: float) -> str:
    start = f"{100 * times[span.start] / seconds:.2f}%"
    before = "" if span.start == 0 else "0%{opacity:0}"
    if span.end is None:
        steps = f"{before}{start},to{{opacity:1}}"
    else:
        steps = f"{before}{start}{{opacity:1}}{100 * times[span.end] / seconds:.2f}%,to{{opacity:0}}"
    return f"@keyframes {name}{{{steps}}}.{name}{{animation-name:{name}}}"


def _cursor(recording: Recording) -> str:
    """Return the rules of the cursor, which moves from place to place, and stays at the last one."""
    steps, place, last = [], "", None
    for second, cursor in recording.cursors:
        if cursor != last:
            last = cursor
            if cursor is not None:
                y, x = cursor
                place = f"transform:translate({EDGE + x * CELL:.1f}px,{BAR + EDGE + y * LINE}px)"
            shown = f"opacity:{int(cursor is not None)}"
            steps.append(f"{100 * second / recording.seconds:.2f}%{{{place};{shown}}}")
    return f".c{{fill:#8b949e;animation-name:c;{place}}}@keyframes c{{{''.join(steps)}}}"


def main() -> None:
    recording = record(SESSION)
    picture = draw(recording, "A terminal: ovserve run loads a model, chats, and answers in JSON", CAPTION)
    PICTURE.write_text(picture)
    print(
        f"{PICTURE}: {recording.seconds:.0f} s, {len(recording.frames)} frames, {len(picture) / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main()
