"""Turns of a speaker: where speech begins and ends, by the probability of speech in each 32 ms.

The clock is that of the audio: samples at 16 kHz since the session began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ovserve.api.openai.realtime.config import SemanticVad, ServerVad
from ovserve.api.openai.realtime.packets import SAMPLES_PER_SECOND

FRAME_SAMPLES = 512  # samples with one probability
SPEECH_FRAMES = 3  # 96 ms of speech begin a turn: a click is shorter
PAUSE_FRAMES = 6  # after 192 ms of silence what was said so far is written down, in case the turn ends
END_THRESHOLD_DROP = 0.15  # speech goes on until the probability is this far below the threshold
PADDING_MS = 300  # of semantic_vad
ENDED_MS, OPEN_MS = 400, {"low": 8000, "medium": 4000, "high": 2000, "auto": 4000}
MAX_TURN_SECONDS = 120  # a turn without a pause ends then, and the next one begins
ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u2026")


@dataclass(frozen=True)
class Turn:
    """A change that was noticed: `begun` and `ended` with a sample, `paused` where a turn may have ended."""

    kind: Literal["begun", "paused", "resumed", "ended"]
    at: int


class TurnDetector:
    def __init__(self, config: ServerVad | SemanticVad) -> None:
        self.config = config
        self.speaking = False
        self.text: str | None = None  # what has been said so far, if it is known
        self._frames = 0  # of speech in a row
        self._silence = 0  # frames in a row
        self._begun = 0
        self._floor = 0  # the end of the last turn, before which the next one cannot begin

    def feed(self, probabilities: Sequence[float], end: int) -> Iterator[Turn]:
        """Yield what is noticed in frames of which the last one ends at `end`."""
        at = end - len(probabilities) * FRAME_SAMPLES
        for probability in probabilities:
            at += FRAME_SAMPLES
            yield from self._frame(probability, at)

    def _frame(self, probability: float, end: int) -> Iterator[Turn]:
        threshold = self.config.threshold if isinstance(self.config, ServerVad) else 0.5
        if not self.speaking:
            self._frames = self._frames + 1 if probability >= threshold else 0
            if self._frames == SPEECH_FRAMES:
                padding = self._padding * SAMPLES_PER_SECOND // 1000
                self._begun = max(self._floor, end - SPEECH_FRAMES * FRAME_SAMPLES - padding, 0)
                self.speaking, self._silence, self.text = True, 0, None
                yield Turn("begun", self._begun)
            return
        if probability >= max(threshold - END_THRESHOLD_DROP, 0.01):
            if self._silence >= PAUSE_FRAMES:
                self.text = None
                yield Turn("resumed", end)
            self._silence = 0
        else:
            self._silence += 1
            if self._silence == PAUSE_FRAMES:
                yield Turn("paused", end)
        quiet = self._silence * FRAME_SAMPLES * 1000 >= self._patience_ms * SAMPLES_PER_SECOND
        if quiet or end - self._begun > MAX_TURN_SECONDS * SAMPLES_PER_SECOND:
            yield self.end(end)

    def end(self, at: int) -> Turn:
        self.speaking, self._frames, self._floor = False, 0, at
        return Turn("ended", at)

    @property
    def _padding(self) -> int:
        return self.config.prefix_padding_ms if isinstance(self.config, ServerVad) else PADDING_MS

    @property
    def _patience_ms(self) -> int:
        """Return the milliseconds of silence that end the turn."""
        if isinstance(self.config, ServerVad):
            return max(self.config.silence_duration_ms, 1)
        if self.text is not None and self.text.rstrip().endswith(ENDS):
            return ENDED_MS
        return OPEN_MS[self.config.eagerness]
