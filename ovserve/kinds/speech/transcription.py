"""One recording on its way to text: pieces of audio to the engine, text and times from it, in order.

The engine says after each piece how far it got, so only the audio of one call is in memory. Between two
pieces the calls of other requests take their turn, weighted by seconds of audio.
"""

from __future__ import annotations

import time

import msgspec

from ovserve.api.openai.realtime.packets import Samples
from ovserve.errors import Internal
from ovserve.kinds.resource import CallerSession, ItemStream
from ovserve.kinds.speech.api import Transcribe
from ovserve.kinds.speech.metrics import SpeechMetrics
from ovserve.kinds.speech.spec import (
    SAMPLES_PER_SECOND,
    TRANSCRIBE,
    WINDOW,
    Piece,
    Span,
    TextDelta,
    TranscribeArguments,
    TranscribeItem,
)
from ovserve.kinds.speech.writer import Timed, Transcript

PROMPT_CHARACTERS = 1000  # characters of the text before that are sent as a prompt
PIECE_SECONDS = 30  # a call counts for at most so many seconds in the queue: it reads no more

_item: msgspec.msgpack.Decoder[TranscribeItem] = msgspec.msgpack.Decoder(TranscribeItem)


class Transcription:
    """`next` until it returns None; then `transcript` is complete. `close` it in any case."""

    def __init__(
        self,
        request: Transcribe,
        language: str,
        recording: Samples,
        session: CallerSession,
        metrics: SpeechMetrics,
    ) -> None:
        self.transcript = Transcript(duration=recording.seconds, language=language)
        self.streamed = ""  # what `next` has returned
        self._asked, self._recording, self._session, self._metrics = request, recording, session, metrics
        self._at = 0  # samples that have been read
        self._stream: ItemStream | None = None
        self._said = ""  # of the piece at hand
        self._begun = time.monotonic()
        metrics.open += 1

    async def next(self) -> str | None:
        """Return the next text, None at the end of the recording. Without `stream`, of a whole piece."""
        while self._stream is not None or self._at < self._recording.samples:
            if self._stream is None:
                self._stream = await self._send()
            item = await self._stream.next()
            if item is None:
                raise Internal(f"the engine ended {TRANSCRIBE} without a piece")
            value = _item.decode(item.value)
            if isinstance(value, TextDelta):
                self._said += value.text
                text = value.text
            else:
                text = value.text.removeprefix(self._said) if value.text.startswith(self._said) else ""
                await self._stream.next()  # the end, so that the call counts as finished
                self._stream = None
                self._take(value)
            if text := self._joined(text):
                return text
        self._metrics.real_time.observe((time.monotonic() - self._begun) / self._recording.seconds)
        self._session.close(finished=True)
        return None

    def _joined(self, text: str) -> str:
        """Text begins without a space."""
        text = text if self.streamed else text.lstrip()
        self.streamed += text
        return text

    async def _send(self) -> ItemStream:
        audio = self._recording.read(self._at, WINDOW)
        samples_left = self._recording.samples - self._at
        request, transcript = self._asked, self.transcript
        before = "".join(transcript.texts)[-PROMPT_CHARACTERS:] or request.prompt
        arguments = TranscribeArguments(
            last=samples_left <= WINDOW,
            language=transcript.language,
            translate=request.translate,
            prompt=before,
            hotwords=request.hotwords,
            temperature=request.temperature,
            timestamps=request.timestamps,
            words=request.words,
            stream=request.stream,
        )
        seconds = min(samples_left // SAMPLES_PER_SECOND + 1, PIECE_SECONDS)
        return await self._session.call(TRANSCRIBE, arguments, (audio,), cost=seconds)

    def _take(self, piece: Piece) -> None:
        if piece.consumed <= 0:
            raise Internal("the engine read nothing of the audio")
        transcript, seconds = self.transcript, self._at / SAMPLES_PER_SECOND
        transcript.texts.append(piece.text)
        transcript.segments += [_timed(span, seconds) for span in piece.segments]
        transcript.words += [_timed(span, seconds) for span in piece.words]
        transcript.language = transcript.language or piece.language
        self._at += piece.consumed
        self._said = ""
        self._metrics.heard(piece.consumed / SAMPLES_PER_SECOND, piece.speech)

    def close(self) -> None:
        """Cancel what runs, and release the audio; any number of times."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._session.close()
        if not self._recording.closed:
            self._recording.close()
            self._metrics.open -= 1


def _timed(span: Span, seconds: float) -> Timed:
    return Timed(span.start + seconds, span.end + seconds, span.text)
