"""What is asked of an engine and what comes back, for every dialect: the narrow waist of the server.

`openai/` makes a GenerateRequest, `engine/` answers it with a stream of Delta, `openai/` turns those into
bytes. The sampling part crosses the process border as msgpack, which is why all of this is msgspec.
"""

from __future__ import annotations

import msgspec

GREEDY_TEMPERATURE = 0.0


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are chosen and when to stop; ranges are checked where the request is decoded."""

    max_tokens: int | None = None  # None: as many as the context has room for
    min_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int | None = None  # None: all tokens
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()  # matched on text, exactly at the character (see llm/stops.py)
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = True


class GenerateRequest(msgspec.Struct, frozen=True):
    """One request, ready for the engine. `prompt` is rendered text, or token ids taken as they are."""

    id: str  # public, e.g. "chatcmpl-3f..."; the engine numbers requests itself
    model: str
    created: int  # unix seconds
    endpoint: str  # which dialect writes the answer, e.g. "chat.completion"
    prompt: str | tuple[int, ...]
    add_special_tokens: bool
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    requested_max_tokens: int | None = None  # what the client asked for, to report a clamp
    ignored_params: tuple[str, ...] = ()  # body fields nobody knows, reported in a header


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What one engine step added to one request. Text never ends inside a UTF-8 character.

    The first delta of a request is its admission: no text, `prompt_tokens` set. Deltas may be merged
    (text joined, counts added) when the reader is slower than the engine.
    """

    text: str = ""
    tokens: int = 0  # generated tokens in this delta, those hidden from the text included
    finish_reason: str | None = None  # "stop" or "length" in the last delta, else None
    prompt_tokens: int = 0  # > 0 only in the admission delta
    max_tokens: int = 0  # what the engine will generate at most; set with prompt_tokens
