"""Every frame that crosses between the server and an engine process, both directions on one page.

Server -> engine: Load (once, first), Add, Abort, Tokenize, Detokenize, Compile, ClearGrammars, Ping, Stop. Engine ->
server: Ready or LoadFailed (once), then Accepted or Failed for each Add, Steps after each engine step, and
exactly one terminal word per accepted request: the last item with a finish_reason (one per beam), a Failed,
or, for an Abort, silence. A Tokenize, Detokenize or Compile has one answer: Tokenized, Detokenized, Compiled
or Failed; a Ping has Pong. Encoded with msgpack (`frames.py`).
Request ids are numbers made by the client, never reused.
"""

from __future__ import annotations

import signal

import msgspec

from ovserve.engine.protocol.blobs import SharedBlob
from ovserve.engine.protocol.specs import Facts, Spec, name_of, resolve
from ovserve.llm.images import Image
from ovserve.llm.request import Sampling, TokenLogprob

DUMP_SIGNAL = signal.SIGUSR1  # no frame, as it is for an engine that reads none: write your stacks to stderr
PREPARE = "prepare"  # no frame either, but an argument: import the libraries before the first one


# ---- server -> engine


class Load(msgspec.Struct, tag="load", frozen=True):
    """What to load. The spec travels packed, because its type may be one that this package does not know."""

    spec_type: str  # "module:Class"
    spec: bytes
    segments: str = ""  # names this connection's shared memory (blobs.py)

    @classmethod
    def of(cls, spec: Spec, segments: str = "") -> Load:
        return cls(name_of(type(spec)), msgspec.msgpack.encode(spec), segments)

    def resolve(self) -> Spec:
        """Raises ImportError, AttributeError or msgspec.MsgspecError."""
        spec: Spec = msgspec.msgpack.decode(self.spec, type=resolve(self.spec_type))
        return spec


class Add(msgspec.Struct, tag="add", frozen=True):
    id: int
    prompt: str | tuple[int, ...]
    add_special_tokens: bool
    sampling: Sampling
    images: tuple[Image, ...] = ()  # what the tags in the prompt stand for (see llm/images.py)
    last: bool = False  # the server has no other request in hand that may follow at this moment
    ids: bytes = (
        b""  # of the prompt, 4 bytes each, if it is a text that was tokenised before (text_process.py)
    )


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Unknown and finished ids are fine: a client may leave at any moment."""

    id: int


class Tokenize(msgspec.Struct, tag="tokenize", frozen=True):
    """Texts to token ids; between steps, so requests that run wait for it as they do for an Add. Long texts
    go to a process that only does this. `packed`: the answer is to be sent on and not looked at."""

    id: int
    texts: tuple[str, ...]
    add_special_tokens: bool
    packed: bool = False


class Detokenize(msgspec.Struct, tag="detokenize", frozen=True):
    """Rows of token ids to texts."""

    id: int
    ids: tuple[tuple[int, ...], ...]
    skip_special_tokens: bool


class Compile(msgspec.Struct, tag="compile", frozen=True):
    """A grammar to compile beside the steps; an Add may have it only after its Compiled."""

    id: int
    format: str  # as in llm.constraint.Constraint
    tried: bool = False  # another process has compiled it, so only the compiling is left to do
    cpu_seconds: float = (
        0.0  # for a process that only compiles grammars: then the kernel ends it; 0: no bound
    )


class ClearGrammars(msgspec.Struct, tag="forget", frozen=True):
    """Drop all compiled grammars: they are only ever added to. Requests that run keep theirs."""


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Are you there? Sent to an engine without work only."""


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """End the process; what still runs is dropped."""


class Call(msgspec.Struct, tag="call", frozen=True):
    """One call of an engine that is not text generation: `method` with packed arguments."""

    id: int
    method: str
    arguments: bytes
    blobs: tuple[bytes | SharedBlob, ...] = ()


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """End a call; an id that is unknown or has ended is fine."""

    id: int


ToEngine = Load | Add | Abort | Tokenize | Detokenize | Compile | ClearGrammars | Call | Cancel | Ping | Stop

# ---- engine -> server


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine is loaded; `facts` is packed, of the spec's `facts_type`."""

    facts: bytes

    @classmethod
    def of(cls, facts: Facts) -> Ready:
        return cls(msgspec.msgpack.encode(facts))


class LoadFailed(msgspec.Struct, tag="load_failed", frozen=True):
    message: str
    field: str = ""  # of the graph's options, where it is known which


class Accepted(msgspec.Struct, tag="accepted", frozen=True):
    """The request is admitted; the engine will generate at most `max_tokens`."""

    id: int
    prompt_tokens: int
    max_tokens: int
    cached_tokens: int | None = None  # of the prompt, found in the prefix cache; None: not known


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """This request or question ended without an answer; `kind` is one of errors.FROM_KIND, or "internal"."""

    id: int
    kind: str
    message: str
    param: str | None = None  # of the request, that is at fault


class Tokenized(msgspec.Struct, tag="tokenized", frozen=True):
    id: int
    ids: list[list[int]]  # in the order of the texts
    packed: list[bytes] | None = None  # the same, 4 bytes each, if it was asked for so


class Detokenized(msgspec.Struct, tag="detokenized", frozen=True):
    id: int
    texts: list[str]  # in the order of the rows


class Compiled(msgspec.Struct, tag="compiled", frozen=True):
    id: int
    memory: int = 0  # bytes that the process has grown by; 0: not measured


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """It reads what it is sent."""


ENGINE_FAILED = "unavailable"  # the kind of every Failed when a step raised; the process ends right after


class StepItem(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one step added to one request (see llm.request.Delta)."""

    id: int
    text: str
    tokens: int
    finish_reason: str | None
    index: int = 0  # of the beam, when the request searched beams
    logprobs: list[TokenLogprob] | None = None
    last: bool = False  # nothing of this request follows
    drafted: int = 0  # tokens proposed by a draft model or prompt lookup
    accepted: int = 0  # those of them that are among `tokens`
    stop_string: str | None = None


class Usage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How full the engine is; for metrics, so a moment old is good enough."""

    requests: int = 0  # in the engine
    scheduled: int = 0  # of them, in the last step; the rest waits inside of the engine
    cache: float = 0.0  # part of the KV cache in use, 0 to 1
    cache_bytes: int = 0  # its size now


class Steps(msgspec.Struct, tag="steps", frozen=True, gc=False, omit_defaults=True):
    """One frame per engine step, holding every request that gained something in it; a few times a second
    with the engine's usage, and then even without items."""

    items: list[StepItem]
    usage: Usage | None = None


class Item(msgspec.Struct, tag="item", frozen=True, gc=False):
    """One result of a call; a call has any number of them."""

    id: int
    value: bytes
    blobs: tuple[bytes | SharedBlob, ...] = ()


class Done(msgspec.Struct, tag="done", frozen=True):
    """The call has ended well; nothing of it follows."""

    id: int


FromEngine = (
    Ready | LoadFailed | Accepted | Failed | Steps | Tokenized | Detokenized | Compiled | Item | Done | Pong
)
