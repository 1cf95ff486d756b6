"""Cut audio at silence into what the recognizer reads at once: speech, at most 28 s of it.

Whisper reads 30 s at a time, and invents text where there is none. So it gets speech alone: long pauses are
left out, and times in the joined speech are mapped back. Where speech goes on for longer than 28 s, the cut
is at the longest pause of the second half, or else where speech is least likely.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ovserve.kinds.speech.spec import RATE
from ovserve.kinds.speech.worker.vad import FRAME, Samples

MOST = 28 * RATE  # samples of speech in a piece
BEGINS, ENDS = 0.5, 0.35  # probabilities at which speech begins and ends
MIN_SPEECH_FRAMES = 8  # frames of speech, 0.26 s: less is a click
PAUSE_FRAMES = 10  # frames of silence that end speech, 0.32 s
PADDING = RATE // 5  # samples around speech that are read too
KEPT_PAUSE = RATE  # a pause up to this length stays as it is
SMOOTHED_FRAMES = 5  # frames whose mean decides where speech is cut
ENOUGH = 10 * RATE  # a piece of this length does not need a part of speech that does not fit whole
UNSURE = RATE // 2  # samples at the end of a window, where speech may just begin


class Range(NamedTuple):
    """Samples from `begin` to `end`."""

    begin: int
    end: int


@dataclass(frozen=True)
class Cut:
    """The ranges of a window that are read together, none if there is no speech, and where the next window
    begins."""

    ranges: tuple[Range, ...]
    consumed: int

    def joined(self, audio: Samples) -> Samples:
        return np.concatenate([audio[begin:end] for begin, end in self.ranges])

    def seconds(self, joined: float) -> float:
        """Return the time in the window of a time in the joined speech; both in seconds."""
        starts = [0]
        for begin, end in self.ranges:
            starts.append(starts[-1] + end - begin)
        sample = joined * RATE
        at = min(max(bisect_right(starts, sample) - 1, 0), len(self.ranges) - 1)
        begin, end = self.ranges[at]
        return min(begin + sample - starts[at], end) / RATE


def cut(probabilities: Samples, samples: int, *, last: bool) -> Cut:
    """Return the first piece of a window of `samples`. `last`: no audio follows it."""
    ranges = _padded(_speech(probabilities), samples)
    if not ranges:
        return Cut((), samples if last else max(samples - UNSURE, FRAME))
    complete: list[Range] = []
    room = MOST
    for speech in ranges:
        unfinished = not last and speech.end >= samples - FRAME and speech.begin > 0
        if unfinished and room == MOST:
            return Cut((), speech.begin)  # alone, and the next window has more of it
        whole = speech.end - speech.begin
        if unfinished and whole <= room:
            return Cut(tuple(complete), speech.begin)
        if whole > room:
            if room <= MOST - ENOUGH:
                return Cut(tuple(complete), speech.begin)
            end = _quietest(probabilities, speech.begin, speech.begin + room)
            return Cut((*complete, Range(speech.begin, end)), end)
        room -= whole
        complete.append(speech)
    quiet = samples if last else max(samples - UNSURE, complete[-1].end)
    return Cut(tuple(complete), quiet)


def _speech(probabilities: Samples) -> list[Range]:
    """Return ranges of frames with speech, at least SHORTEST long, with pauses of at least PAUSE between."""
    ranges: list[Range] = []
    begin: int | None = None
    quiet = 0
    for i, probability in enumerate(probabilities.tolist()):
        if probability >= BEGINS:
            begin, quiet = i if begin is None else begin, 0
        elif begin is not None and probability < ENDS:
            quiet += 1
            if quiet >= PAUSE_FRAMES:
                ranges.append(Range(begin, i + 1 - quiet))
                begin, quiet = None, 0
    if begin is not None:
        ranges.append(Range(begin, len(probabilities) - quiet))
    return [speech for speech in ranges if speech.end - speech.begin >= MIN_SPEECH_FRAMES]


def _padded(frames: list[Range], samples: int) -> list[Range]:
    """Return ranges of samples, with PADDING, joined where the pause between them is short."""
    ranges: list[Range] = []
    for begin, end in frames:
        padded = Range(max(begin * FRAME - PADDING, 0), min(end * FRAME + PADDING, samples))
        near = ranges and padded.begin - ranges[-1].end <= KEPT_PAUSE
        if near and padded.end - ranges[-1].begin <= MOST:
            ranges[-1] = Range(ranges[-1].begin, padded.end)
        else:
            ranges.append(Range(max(padded.begin, ranges[-1].end) if ranges else padded.begin, padded.end))
    return ranges


def _quietest(probabilities: Samples, begin: int, end: int) -> int:
    """Return the sample at which to cut speech that has no pause: in the second half of what fits."""
    first, after = (begin + (end - begin) // 2) // FRAME, end // FRAME
    near = np.pad(probabilities[first:after], SMOOTHED_FRAMES // 2, "edge")
    likely = np.convolve(near, np.ones(SMOOTHED_FRAMES) / SMOOTHED_FRAMES, "valid")
    # Of equally quiet frames the last one, so that the piece is long.
    return (first + after - first - 1 - int(np.argmin(likely[::-1]))) * FRAME
