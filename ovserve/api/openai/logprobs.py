r"""Log-probabilities in the two shapes OpenAI has: chat's list of tokens, and completions' parallel lists.

A token that is a part of a character has no text. As OpenAI writes it, chat's `token` is its bytes as escapes
(`\xe4`), and in completions `bytes:` precedes them, so that the keys of a place differ.

Most engines give the chosen token's log-probability only; a "top" list then has that one token at most.
"""

from __future__ import annotations

import codecs
import secrets
from typing import Annotated

import msgspec

from ovserve.api.openai.operation import doc
from ovserve.errors import InvalidArgument
from ovserve.llm.images import DETAILS, Detail, ImageSource, tag
from ovserve.llm.model import ModelContext
from ovserve.llm.request import FileSource, TokenLogprob, TopToken, shown_token

# Image and file parts of a request: where they stand in its text, and what is to be fetched for them. Shared
# by the API styles, each of which has its own way to write them.


TEXT_ONLY = "this model takes text only"
TEXT_ONLY_HERE = "only text can stand here"
NO_IDS = "an image has no token ids; messages/count_tokens counts it"
NOT_COUNTED = "only the engine can count the image tokens of this model, when it looks at the image"
URL = "data URL with base64; where the operator allows it also an http or https URL, or a file"
FILE = "a PDF or a text in UTF-8: base64, or a data URL with base64"
AUDIO = "audio in base64, which a speech-to-text node of the graph transcribes"
# What OpenAI names, and what else the decoder reads; it looks at the content.
AUDIO_FORMATS = ("wav", "mp3", "flac", "m4a", "mp4", "mpeg", "mpga", "ogg", "opus", "webm", "aac")
DETAIL = "bounds the size the model sees: low 512 x 512, the others 2048 x 768"


class ImageUrl(msgspec.Struct, omit_defaults=True):
    url: Annotated[str, doc(URL)]
    detail: Annotated[Detail | None, doc(DETAIL)] = None


class Pictures:
    """Collects the images of one request in order. With a `refusal` it takes none, for that reason."""

    def __init__(self, refusal: str = "") -> None:
        self._refusal = refusal
        self._takes_files = refusal not in (NO_IDS, TEXT_ONLY_HERE)  # every model reads their text
        self.sources: list[ImageSource] = []
        self.files: list[FileSource] = []

    def place(
        self, image: str | ImageUrl | None, detail: str | None, where: str, param: str, kind: str
    ) -> str:
        """Return the tag for this image in the text. `where` is the part, `param` its field with the URL,
        `kind` the part's type. Raises InvalidArgument."""
        if self._refusal:
            raise InvalidArgument.at(f"{where}.type", f"{self._refusal}, got {kind!r}")
        if isinstance(image, ImageUrl):
            param, detail, image = f"{param}.url", image.detail or detail, image.url
        image = _present(image, "a URL", param)
        if detail not in (None, *DETAILS):
            raise InvalidArgument.expected(f"{where}.detail", f"one of {', '.join(DETAILS)}", detail)
        self.sources.append(ImageSource(image, param, detail or "auto"))
        return tag(len(self.sources) - 1)

    def place_file(self, data: str | None, name: str | None, where: str, param: str, kind: str) -> str:
        """Return the placeholder for this file in the text; a client cannot guess it."""
        data = self._accepted(data, where, param, kind)
        if data.startswith("data:") and ";base64," not in data[:256]:
            raise InvalidArgument.at(param, "expected base64 or a data URL with base64")
        return self._mark(data, param, name or "")

    def place_audio(self, data: str | None, format_: str | None, where: str, param: str, kind: str) -> str:
        """Return the placeholder for what is said in audio. `data` is base64, or a data URL where there is no
        `format_`, "" else."""
        data = self._accepted(data, where, param, kind)
        if format_ is None and not (data.startswith("data:") and ";base64," in data[:256]):
            raise InvalidArgument.expected(param, "a data URL with base64", data[:40])
        if format_ and format_ not in AUDIO_FORMATS:
            raise InvalidArgument.expected(
                f"{param.rpartition('.')[0]}.format", f"one of {', '.join(AUDIO_FORMATS)}", format_[:40]
            )
        return self._mark(data, param, audio=True)

    def _accepted(self, data: str | None, where: str, param: str, kind: str) -> str:
        if not self._takes_files:
            raise InvalidArgument.at(f"{where}.type", f"{self._refusal}, got {kind!r}")
        return _present(data, "base64", param)

    def _mark(self, data: str, param: str, name: str = "", *, audio: bool = False) -> str:
        mark = f"<ovserve_file_{secrets.token_hex(12)}>"
        self.files.append(FileSource(mark, data, param, name, audio))
        return mark


def _present(value: str | None, what: str, param: str) -> str:
    if not value:
        missing = "required, but missing" if value is None else f"expected {what}, got an empty string"
        raise InvalidArgument.at(param, missing)
    return value


def pictures_of(model: ModelContext) -> Pictures:
    return Pictures("" if model.vision is not None else TEXT_ONLY)


def pictures_to_count(model: ModelContext) -> Pictures:
    """Like `pictures_of`, but without images whose number of tokens is unknown beforehand."""
    untold = model.vision is not None and model.vision.tokens is None
    return Pictures(NOT_COUNTED) if untold else pictures_of(model)


def joined(pieces: list[tuple[str, bool]]) -> str:
    """Texts and tags (true) as one string: a newline between two texts, none around an image, whose own
    markers the model's vision part adds."""
    out, after_text = list[str](), False
    for piece, is_tag in pieces:
        out.append(f"\n{piece}" if after_text and not is_tag else piece)
        after_text = not is_tag
    return "".join(out)


MISSING_LOGPROB = -9999.0  # OpenAI's number for "unknown" where the shape has no null


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


def top_of(token: TokenLogprob, top: int) -> tuple[TopToken, ...]:
    """Return the `top` most likely tokens, or the chosen one if the engine has named none."""
    if not top:
        return ()
    if token.top:
        return token.top[:top]
    return (TopToken(token.text, token.utf8, MISSING_LOGPROB if token.logprob is None else token.logprob),)


def chat_logprobs(tokens: list[TokenLogprob], top: int) -> ChatLogprobs:
    """`top`: how many of the most likely tokens to show at each place."""
    content = []
    for token in tokens:
        logprob = MISSING_LOGPROB if token.logprob is None else token.logprob
        tops = [
            TopLogprob(shown_token(one.text, one.utf8, ""), one.logprob, list(one.utf8))
            for one in top_of(token, top)
        ]
        content.append(
            ChatTokenLogprob(shown_token(token.text, token.utf8, ""), logprob, list(token.utf8), tops)
        )
    return ChatLogprobs(content)


class CompletionLogprobsWriter:
    """Completions' shape for one choice; `top` as above. Chunks continue each other's offsets."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._start = 0  # characters of this choice so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: list[TokenLogprob]) -> CompletionLogprobs:
        offsets = []
        for token in tokens:
            offsets.append(self._start)
            self._start += len(self._decoder.decode(token.utf8))
        tops: list[dict[str, float] | None] | None = None
        if self._top:
            tops = [_top_map(token, self._top) for token in tokens]
        texts = [shown_token(token.text, token.utf8) for token in tokens]
        return CompletionLogprobs(offsets, [t.logprob for t in tokens], texts, tops)


def _top_map(token: TokenLogprob, top: int) -> dict[str, float] | None:
    """Return the most likely tokens and the chosen one. Of tokens with one text, the chosen one counts, else
    the likeliest."""
    if token.logprob is None:
        return None
    logprobs: dict[str, float] = {}
    for one in top_of(token, top):
        logprobs.setdefault(shown_token(one.text, one.utf8), one.logprob)
    return logprobs | {shown_token(token.text, token.utf8): token.logprob}
