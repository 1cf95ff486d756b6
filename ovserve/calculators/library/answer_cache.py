"""A cache of whole answers: the same prompt with the same sampling is answered without the model.

| port of AnswerCacheCalculator | type | |
|---|---|---|
| input `GENERATE` | `GenerateRequest` | after RequestParser |
| output `GENERATE` | `GenerateRequest` | a request that is not in the cache, to LLMExecutor |
| output `ANSWER` | `CachedAnswer` | the answer of one that is |
| output side packet `CACHE` | `CacheSlot` | to AnswerCacheFillCalculator |

| port of AnswerCacheFillCalculator | type | |
|---|---|---|
| input `PARSED` | `Parsed` | from OutputParser, to be stored |
| input `ANSWER` | `CachedAnswer` | |
| output `PARSED` | `Parsed` | of the model or of the cache, to ResponseWriter |
| input side packet `CACHE` | `CacheSlot` | |

Options: `max_entries` (1000), `max_megabytes` (64), `ttl_seconds` (3600) and `greedy_only` (true): only
requests with temperature 0 are cached, because any other answer would be a different one each time. Requests
with images are not cached. The least recently used answer goes first. A cached answer shows the usage of the
first, with all of its prompt as cached. The node counts `hit`, `miss` and `uncacheable`.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import Annotated

import msgspec

from ovserve.graph import Calculator, Context, Input, LoadContext, Output, SideOutput, SidePacket, calculator
from ovserve.llm.output import Parsed
from ovserve.llm.request import GenerateRequest

PACKET_BYTES = 400  # of a Parsed with one part, measured with sys.getsizeof over its fields


class CachedAnswer(msgspec.Struct, frozen=True):
    packets: tuple[Parsed, ...]
    stored: float  # time.monotonic()
    size: int  # bytes, estimated


class AnswerCacheOptions(msgspec.Struct, frozen=True):
    max_entries: Annotated[int, msgspec.Meta(ge=1)] = 1000
    max_megabytes: Annotated[float, msgspec.Meta(gt=0)] = 64.0
    ttl_seconds: Annotated[float, msgspec.Meta(gt=0)] = 3600.0
    greedy_only: bool = True


class AnswerStore:
    """The answers of a loaded graph, least recently used first."""

    def __init__(self, options: AnswerCacheOptions) -> None:
        self._options = options
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self.size = 0

    def facts(self) -> dict[str, object]:
        return {"answers": len(self._answers), "bytes": self.size}

    def get(self, key: bytes) -> CachedAnswer | None:
        answer = self._answers.get(key)
        if answer is None:
            return None
        if time.monotonic() - answer.stored > self._options.ttl_seconds:
            self._drop(key)
            return None
        self._answers.move_to_end(key)
        return answer

    def put(self, key: bytes, packets: list[Parsed]) -> None:
        size = sum(
            PACKET_BYTES + len(p.content) + len(p.reasoning) + 200 * len(p.logprobs or ()) for p in packets
        )
        most = self._options.max_megabytes * 1_000_000
        if size > most:
            return
        if key in self._answers:
            self._drop(key)
        self._answers[key] = CachedAnswer(tuple(packets), time.monotonic(), size)
        self.size += size
        while len(self._answers) > self._options.max_entries or self.size > most:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: bytes) -> None:
        self.size -= self._answers.pop(key).size


class CacheSlot:
    """The place for the answer to one request; `key` is None if it is not to be stored."""

    def __init__(self, store: AnswerStore) -> None:
        self.store = store
        self.key: bytes | None = None


def key_of(request: GenerateRequest, options: AnswerCacheOptions) -> bytes | None:
    """Return a digest of all that decides the answer; None for a request that is not cached."""
    sampling = request.sampling
    if request.images or (options.greedy_only and (sampling.temperature > 0 and sampling.beams == 1)):
        return None
    asked = (request.prompts, request.add_special_tokens, sampling, request.tools, request.parsing)
    return hashlib.sha256(msgspec.msgpack.encode(asked)).digest()


@calculator("AnswerCacheCalculator")
class AnswerCache(Calculator):
    options_type = AnswerCacheOptions

    request = Input("GENERATE", GenerateRequest)
    missed = Output("GENERATE", GenerateRequest)
    answer = Output("ANSWER", CachedAnswer)
    cache = SideOutput("CACHE", CacheSlot)

    @classmethod
    def load(cls, lc: LoadContext) -> AnswerStore:
        return AnswerStore(lc.options(AnswerCacheOptions))

    def open(self, cc: Context) -> None:
        self._slot = CacheSlot(cc.state)
        cc.set_side(self.cache, self._slot)

    def process(self, cc: Context) -> None:
        request = cc[self.request]
        if request is None:
            return
        key = self._slot.key = key_of(request, cc.options(AnswerCacheOptions))
        known = self._slot.store.get(key) if key is not None else None
        cc.count("uncacheable" if key is None else "hit" if known else "miss")
        if known is None:
            cc.send(self.missed, request)
        else:
            cc.send(self.answer, known)


@calculator("AnswerCacheFillCalculator")
class AnswerCacheFill(Calculator):
    immediate = True

    parsed = Input("PARSED", Parsed)
    answer = Input("ANSWER", CachedAnswer)
    shown = Output("PARSED", Parsed)
    cache = SidePacket("CACHE", CacheSlot)

    def __init__(self) -> None:
        self._packets: list[Parsed] = []

    def process(self, cc: Context) -> None:
        parsed, answer = cc[self.parsed], cc[self.answer]
        if answer is not None:
            for i, packet in enumerate(answer.packets):
                cc.send(self.shown, _as_cached(packet), cc.timestamp + i)
        if parsed is None:
            return
        cc.send(self.shown, parsed)
        slot = cc[self.cache]
        if slot.key is not None:
            self._packets.append(parsed)
            if parsed.last:
                slot.store.put(slot.key, self._packets)


def _as_cached(packet: Parsed) -> Parsed:
    if not packet.prompt_tokens:
        return packet
    return msgspec.structs.replace(packet, cached_tokens=packet.prompt_tokens)
