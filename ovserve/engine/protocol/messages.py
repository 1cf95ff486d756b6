"""Every frame that crosses between the server and an engine process, both directions on one page.

Server -> engine: Load (once, first), Add, Abort, Tokenize, Detokenize, Compile, ClearGrammars, Ping, Stop.
Engine -> server: Ready or LoadFailed (once), then Accepted or Failed for each Add, Steps after each engine
step, and exactly one terminal message per accepted request: the last item with a finish_reason (one per
beam), a Failed, or, for an Abort, silence. A Tokenize, Detokenize or Compile has one answer: Tokenized,
Detokenized, Compiled or Failed; a Ping has Pong. Encoded with msgpack (`frames.py`). Request ids are numbers
made by the client, never reused.
"""

from __future__ import annotations

import msgspec

from ovserve.engine.protocol.blobs import SharedBlob
from ovserve.engine.protocol.specs import Facts, Spec, name_of, resolve
from ovserve.errors import FROM_KIND, OvserveError
from ovserve.llm.images import Image
from ovserve.llm.request import Sampling, TokenLogprob

# ---- server -> engine


class Load(msgspec.Struct, tag="load", frozen=True):
    """The spec of the engine to load. It travels packed, because this package may not know its type."""

    spec_type: str  # "module:Class"
    spec: bytes
    segments: str = ""  # names this connection's shared memory (blobs.py)

    @classmethod
    def of(cls, spec: Spec, segments: str = "") -> Load:
        return cls(name_of(type(spec)), msgspec.msgpack.encode(spec), segments)

    def resolve(self) -> Spec:
        """Return the spec. Raises ImportError, AttributeError or msgspec.MsgspecError."""
        spec: Spec = msgspec.msgpack.decode(self.spec, type=resolve(self.spec_type))
        return spec


class Add(msgspec.Struct, tag="add", frozen=True):
    """One request: prompt and sampling. Accepted or Failed answers it."""

    id: int
    prompt: str | tuple[int, ...]
    add_special_tokens: bool
    sampling: Sampling
    images: tuple[Image, ...] = ()  # the images of the tags in the prompt (see llm/images.py)
    last: bool = False  # no other request of the server is about to follow
    ids: bytes = b""  # ids of the prompt, 4 bytes each, if it is a text already tokenized (client/text.py)
    batch: bool = False  # a line of a batch: it waits while others are there


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Abort a request. Unknown and finished ids are valid: a client may leave at any moment."""

    id: int


class Tokenize(msgspec.Struct, tag="tokenize", frozen=True):
    """Convert texts to token ids, between steps, so running requests wait for it as they do for an Add.

    Long texts go to a process that only tokenizes. `packed`: the answer is forwarded without being read.
    """

    id: int
    texts: tuple[str, ...]
    add_special_tokens: bool
    packed: bool = False


class Detokenize(msgspec.Struct, tag="detokenize", frozen=True):
    """Convert rows of token ids to texts.

    `escaped`: of tokens that are parts of characters their bytes, as in log-probabilities.
    """

    id: int
    ids: tuple[tuple[int, ...], ...]
    skip_special_tokens: bool
    escaped: bool = False


class Compile(msgspec.Struct, tag="compile", frozen=True):
    """Compile a grammar concurrently with the steps; an Add may use it only after its Compiled."""

    id: int
    format: str  # as in llm.constraint.Constraint
    validated: bool = False  # another process has compiled it on trial, so it needs no validation
    cpu_seconds: float = 0.0  # CPU limit of a trial process, enforced by the kernel; 0: none


class ClearGrammars(msgspec.Struct, tag="clear_grammars", frozen=True):
    """Drop all compiled grammars, because the compiler only ever adds. Running requests keep theirs."""


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """A liveness check, sent only to an engine without work."""


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """End the process; running requests are dropped."""


class Call(msgspec.Struct, tag="call", frozen=True):
    """One call of an engine that is not text generation: `method` with packed arguments."""

    id: int
    method: str
    arguments: bytes
    blobs: tuple[bytes | SharedBlob, ...] = ()
    window: int = 0  # items that may be on their way; each Demand allows one more. 0: any number


class Demand(msgspec.Struct, tag="demand", frozen=True):
    """An item of a call with a window was read; an id that is unknown or has ended is valid."""

    id: int


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """End a call; an id that is unknown or has ended is valid."""

    id: int


# ---- engine -> server


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine is loaded. `facts` is packed; its type is the spec's `facts_type`."""

    facts: bytes

    @classmethod
    def of(cls, facts: Facts) -> Ready:
        return cls(msgspec.msgpack.encode(facts))


class LoadFailed(msgspec.Struct, tag="load_failed", frozen=True):
    """The engine did not load; its process ends."""

    message: str
    field: str = ""  # the field of the graph's options at fault, if known
    node: str = ""  # of the graph, where an engine serves several
    transient: bool = False  # as in LoadError


class Accepted(msgspec.Struct, tag="accepted", frozen=True):
    """The request is admitted; the engine will generate at most `max_tokens`."""

    id: int
    prompt_tokens: int
    max_tokens: int
    cached_tokens: int | None = None  # prompt tokens found in the prefix cache; None: unknown


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """This request or call failed; `kind` is one of errors.FROM_KIND, or "internal"."""

    id: int
    kind: str
    message: str
    param: str | None = None  # the request field at fault

    @classmethod
    def of(cls, id_: int, error: OvserveError) -> Failed:
        kind = error.code if error.code in FROM_KIND else error.kind
        return cls(id_, kind or error.kind, error.message, error.param)


class Tokenized(msgspec.Struct, tag="tokenized", frozen=True):
    """The answer to Tokenize."""

    id: int
    ids: list[list[int]]  # in the order of the texts
    packed: list[bytes] | None = None  # the same, 4 bytes each, if requested packed


class Detokenized(msgspec.Struct, tag="detokenized", frozen=True):
    """The answer to Detokenize."""

    id: int
    texts: list[str]  # in the order of the rows


class Compiled(msgspec.Struct, tag="compiled", frozen=True):
    """The answer to Compile: an Add may use the grammar."""

    id: int
    memory: int = 0  # bytes that it takes; 0: not measured


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """The answer to a Ping: the engine reads its messages."""


ENGINE_FAILED = "unavailable"  # the kind of every Failed when a step raised; the process ends right after


class StepItem(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The result of one step for one request (see llm.request.Delta)."""

    id: int
    text: str
    tokens: int
    finish_reason: str | None
    index: int = 0  # index of the beam in a beam search
    logprobs: list[TokenLogprob] | None = None
    last: bool = False  # nothing of this request follows
    drafted: int = 0  # tokens proposed by a draft model or prompt lookup
    accepted: int = 0  # how many of them are among `tokens`
    stop_string: str | None = None
    repetitive: bool = False


class Usage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The load of the engine, for metrics, so a slightly old value is good enough."""

    requests: int = 0  # requests in the engine
    scheduled: int = 0  # how many of them were in the last step; the others wait in the engine
    cache: float = 0.0  # part of the KV cache in use, 0 to 1
    cache_bytes: int = 0  # its current size
    to_prefill: tuple[tuple[int, int], ...] = ()  # requests and the prompt tokens still to compute, at most


class Steps(msgspec.Struct, tag="steps", frozen=True, gc=False, omit_defaults=True):
    """One frame per engine step, with every request that gained something in it.

    A few times a second it carries the engine's usage, and is then sent even without items.
    """

    items: list[StepItem]
    usage: Usage | None = None


class Item(msgspec.Struct, tag="item", frozen=True, gc=False, omit_defaults=True):
    """One result of a call; a call has any number of them. After a `last` one no Done follows."""

    id: int
    value: bytes
    blobs: tuple[bytes | SharedBlob, ...] = ()
    last: bool = False


class Done(msgspec.Struct, tag="done", frozen=True):
    """The call ended successfully, or was cancelled; nothing of it follows."""

    id: int


# ---- both ways, in a process that holds several models (worker/host.py)


class Unloaded(msgspec.Struct, tag="unloaded", frozen=True):
    """The model is gone: its memory is free, and nothing of it follows. The answer to Stop."""


class ToModel(msgspec.Struct, tag="to", frozen=True):
    """A message for one model. Load loads it, under a number never used before; Stop unloads it."""

    model: int
    message: Load | Call | Demand | Cancel | Ping | Stop


class FromModel(msgspec.Struct, tag="from", frozen=True, gc=False):
    """A message of one model."""

    model: int
    message: Ready | LoadFailed | Item | Done | Failed | Pong | Unloaded


ToEngine = (
    Load
    | Add
    | Abort
    | Tokenize
    | Detokenize
    | Compile
    | ClearGrammars
    | Call
    | Demand
    | Cancel
    | Ping
    | Stop
    | ToModel
)
FromEngine = (
    Ready
    | LoadFailed
    | Accepted
    | Failed
    | Steps
    | Tokenized
    | Detokenized
    | Compiled
    | Item
    | Done
    | Pong
    | FromModel
)
