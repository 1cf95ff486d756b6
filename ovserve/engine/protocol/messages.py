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

from ovserve.llm.decoding import Mode
from ovserve.llm.images import Image, ImageTokens
from ovserve.llm.request import Sampling, TokenLogprob

SCRIPT_SUFFIX = ".script.json"
DUMP_SIGNAL = signal.SIGUSR1  # no frame, as it is for an engine that reads none: write your stacks to stderr
PREPARE = "prepare"  # no frame either, but an argument: import the libraries before the first one


class CacheEviction(msgspec.Struct, frozen=True):
    """Which tokens leave the KV cache when an answer grows; sizes in tokens, budget in blocks."""

    start_size: int
    recent_size: int
    max_cache_size: int
    aggregation_mode: str = "NORM_SUM"
    apply_rotation: bool = False
    snapkv_window_size: int = 0  # last tokens of the prompt by whose attention the others are ranked; 0: all
    crush_budget: int = 0
    crush_anchor: str = "RANDOM"
    crush_seed: int = 0


class SparseAttention(msgspec.Struct, frozen=True):
    """Attention to a part of the prompt only; `settings` by the library's names, its defaults for others."""

    mode: str = "TRISHAPE"
    settings: dict[str, float] = {}

    def __hash__(self) -> int:
        return hash((self.mode, tuple(sorted(self.settings.items()))))


def block_tokens(device: str) -> int:
    """Tokens in a block of the KV cache, which is given out in whole blocks."""
    return 32 if device.startswith("CPU") else 16


class DraftSpec(msgspec.Struct, frozen=True):
    """A small model that proposes tokens for the main one to check; None: as the main model has it."""

    model_path: str  # absolute; a directory in OpenVINO IR form
    device: str = ""  # "": the main model's
    cache_size: int | None = None  # GB; None for both: the library divides the main model's
    max_num_seqs: int | None = None
    eagle3: bool = False


class EngineSpec(msgspec.Struct, frozen=True):
    """Everything that makes one engine differ from another; equal specs may share a process.

    Defaults are those of OVMS's LLMCalculatorOptions. `properties` is plugin_config as JSON text.
    `model_path` is absolute: a model directory, a .gguf file, or a scripted reply (`*.script.json`).
    """

    model_path: str
    device: str = "CPU"
    properties: str = "{}"
    cache_size: int = 0  # GB; 0 grows as needed
    num_kv_blocks: int = 0  # a bound in blocks instead of GB (32 tokens each on CPU); 0: cache_size decides
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 256
    dynamic_split_fuse: bool = True
    enable_prefix_caching: bool = False
    cache_eviction: CacheEviction | None = None
    sparse_attention: SparseAttention | None = None
    cache_interval_multiplier: int | None = None  # of models with linear attention
    prompt_lookup: bool = False
    draft: DraftSpec | None = None
    stateful: bool = False  # LLMPipeline, one request at a time; takes of the above model and device only
    only_grammars: bool = False  # no model: a process that compiles grammars (see grammars.py)
    only_tokens: bool = False  # no model: a process that tokenises (see text_process.py)

    @property
    def model_paths(self) -> tuple[str, ...]:
        """Of all models this engine loads; other files at these paths make another engine."""
        return (self.model_path,) if self.draft is None else (self.model_path, self.draft.model_path)

    @property
    def whole_prompts(self) -> bool:
        """A prompt is read in one step, however long it is."""
        return self.stateful or not self.dynamic_split_fuse

    @property
    def decoding(self) -> Mode:
        if self.stateful:
            return "stateful"
        if self.draft is not None:
            return "eagle3" if self.draft.eagle3 else "draft"
        return "prompt_lookup" if self.prompt_lookup else "plain"


class EngineFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the engine learned while loading; sent with Ready."""

    max_length: int | None = None  # tokens of context; None: the model does not say
    chat_template: str | None = None
    tool_template: str | None = None  # the variant for requests with tools
    bos_token: str = ""
    eos_token: str = ""
    pad_token: str = ""
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    add_bos_token: bool = False
    vocab_size: int = 0
    longest_token: int = 0  # bytes of text that one stands for at most; 0: not known
    generation_config: dict[str, object] = {}  # generation_config.json as found
    architecture: str = ""
    vision: bool = False  # it takes images
    image_markers: tuple[str, ...] = ()  # texts that stand for images in its prompts
    image_tokens: ImageTokens | None = None  # None: known of an image once the model has seen one of its size
    compiles_grammars: bool = (
        False  # beside its steps, where one that does not compile hurts no other request
    )
    added_tokens: int = 0  # special ones that a vision model's prompts get from the library
    engine: str = ""  # name and version of the library
    cache_bytes: int = 0  # upper bound of the KV cache; 0: grows as needed, or is bounded in blocks
    load_seconds: float = 0.0


# ---- server -> engine


class Load(msgspec.Struct, tag="load", frozen=True):
    spec: EngineSpec
    facts: EngineFacts | None = None  # of the engine, for a process that only tokenises


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


ToEngine = Load | Add | Abort | Tokenize | Detokenize | Compile | ClearGrammars | Ping | Stop

# ---- engine -> server


class Ready(msgspec.Struct, tag="ready", frozen=True):
    facts: EngineFacts


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


FromEngine = Ready | LoadFailed | Accepted | Failed | Steps | Tokenized | Detokenized | Compiled | Pong
