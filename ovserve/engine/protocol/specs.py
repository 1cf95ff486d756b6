"""Engine specs: the start parameters of an engine process, one struct per kind of engine.

A new kind is a subclass of `Spec` anywhere on the import path. It names the function that opens its backend,
so nothing in the server has a table of kinds to extend. The server imports the module of the spec, and the
engine process imports the backend; the first must not import what the second needs.
"""

from __future__ import annotations

import importlib
import json
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from ovserve.llm.decoding import Mode
from ovserve.llm.images import ImageTokens

SCRIPT_SUFFIX = ".script.json"

# The conversation: text generation step by step, calls with any number of items, or what the backend returns.
Conversation = Literal["steps", "calls", "own"]

# Whether a model of a `shared` kind stands in the process of all such models, or in one of its own.
Isolation = Literal["shared", "process"]


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts that an engine of any kind reports when it is loaded."""

    engine: str = ""  # name and version of the library
    load_seconds: float = 0.0
    cache_bytes: int = 0  # upper bound of the KV cache; 0: none, grows as needed, or bounded in blocks
    max_length: int | None = None  # tokens of context; None: unknown, or the model has none
    max_calls: int = 1  # concurrent calls; for engines of the conversation "calls"


class TextFacts(Facts, frozen=True, omit_defaults=True):
    """Facts that a text generation engine reports when it is loaded."""

    chat_template: str | None = None
    tool_template: str | None = None  # the variant for requests with tools
    bos_token: str = ""
    eos_token: str = ""
    pad_token: str = ""
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    add_bos_token: bool = False
    vocab_size: int = 0
    longest_token: int = 0  # bytes of text per token at most; 0: unknown
    # Concurrently with its steps, where a grammar that fails to compile affects no other request.
    compiles_grammars: bool = False
    generation_config: dict[str, object] = {}  # generation_config.json as found
    architecture: str = ""
    vision: bool = False  # accepts images
    image_markers: tuple[str, ...] = ()  # placeholders of images in its prompts
    image_tokens: ImageTokens | None = None  # None: known for an image size once the model has processed one
    cache_tokens: int = 0  # for which the KV cache has room; 0: it grows as needed, or unknown
    added_tokens: int = 0  # special tokens that the library adds to prompts of a vision model


S = TypeVar("S", bound="Spec")


class Spec(msgspec.Struct, frozen=True):
    """The parameters that distinguish one engine from another; equal specs may share a process.

    `model_path` is absolute. `properties` are those of the device, as JSON text. `isolation` has no effect on
    kinds that are not `shared`.
    """

    kind: ClassVar[str] = ""  # shown in the status, in capabilities and as a metrics label
    pauses_batches: ClassVar[bool] = False  # lines of batches, while it has other requests
    backend: ClassVar[str] = ""  # "module:function", called with the spec in the engine process
    conversation: ClassVar[Conversation] = "calls"
    facts_type: ClassVar[type[Facts]] = Facts
    shared: ClassVar[bool] = False  # small: loaded by default into one process with others; only of "calls"
    one_servable: ClassVar[bool] = False  # never shared by two servables: the loader sets `servable`
    patient: ClassVar[bool] = False  # a call may be silent for as long as it likes; the process may not
    repeatable: ClassVar[bool] = True  # a call whose process has ended may be sent to the next one
    # May start in a process that has loaded the libraries of text generation.
    prewarmed: ClassVar[bool] = True

    model_path: str
    device: str = "CPU"
    properties: str = "{}"
    isolation: Isolation = "shared"
    servable: str = ""

    @property
    def scripted(self) -> bool:
        return self.model_path.endswith(SCRIPT_SUFFIX)

    @property
    def hosted(self) -> bool:
        """Return whether it is to be loaded into the process that it shares with others."""
        return self.shared and self.isolation == "shared" and self.conversation == "calls"

    @property
    def model_paths(self) -> tuple[str, ...]:
        """Return every model this engine loads; other files at these paths make another engine."""
        return (self.model_path,)

    @property
    def python(self) -> str:
        """Return the path of the interpreter of its process; empty: the server's own."""
        return ""

    @property
    def converts(self) -> bool:
        """Return whether its file is to be converted first, because the backend does not read it."""
        return False

    @property
    def whole_prompts(self) -> bool:
        """Return whether an input is read in one step, however long it is."""
        return True


class CacheEviction(msgspec.Struct, frozen=True):
    """The eviction of tokens from the KV cache while an answer grows; sizes in tokens, budget in blocks."""

    start_size: int
    recent_size: int
    max_cache_size: int
    aggregation_mode: str = "NORM_SUM"
    apply_rotation: bool = False
    snapkv_window_size: int = 0  # last prompt tokens whose attention ranks the others; 0: all
    crush_budget: int = 0
    crush_anchor: str = "RANDOM"
    crush_seed: int = 0


class SparseAttention(msgspec.Struct, frozen=True):
    """Attention to a part of the prompt only. `settings` use the library's names; others keep its
    defaults."""

    mode: str = "TRISHAPE"
    settings: dict[str, float] = {}

    def __hash__(self) -> int:
        return hash((self.mode, tuple(sorted(self.settings.items()))))


def block_tokens(device: str) -> int:
    """Return the tokens per block of the KV cache, which is allocated in whole blocks."""
    return 32 if device.startswith("CPU") else 16


class DraftSpec(msgspec.Struct, frozen=True):
    """A small model that proposes tokens for the main one to verify. None: the main model's value."""

    model_path: str  # absolute; a directory in OpenVINO IR form
    device: str = ""  # "": the main model's
    cache_size: int | None = None  # GB; None for both: the library splits the main model's
    max_num_seqs: int | None = None
    eagle3: bool = False


class LoraAdapter(msgspec.Struct, frozen=True):
    """A LoRA adapter that is fused into the weights; `alpha` is its weight, the scaling of its file
    included."""

    path: str  # absolute, a .safetensors file
    alpha: float = 1.0


class TextSpec(Spec, frozen=True):
    """Text generation by continuous batching. Defaults are those of OVMS's LLMCalculatorOptions."""

    kind: ClassVar[str] = "text"
    backend: ClassVar[str] = "ovserve.kinds.text.worker.genai:GenAIEngine"
    conversation: ClassVar[Conversation] = "steps"
    facts_type: ClassVar[type[Facts]] = TextFacts

    max_model_len: int | None = None  # tokens of context; None: the model's own
    cache_size: int = 0  # GB; 0 grows as needed
    num_kv_blocks: int = 0  # a limit in blocks instead of GB (32 tokens each on CPU); 0: cache_size decides
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 256
    dynamic_split_fuse: bool = True
    enable_prefix_caching: bool = False
    prefix_cache_path: str = ""  # absolute, a directory that keeps prefixes; of the paged engine
    prefix_cache_size: int = 4  # GB of it
    cache_eviction: CacheEviction | None = None
    sparse_attention: SparseAttention | None = None
    cache_interval_multiplier: int | None = None  # for models with linear attention
    prompt_lookup: bool = False
    deterministic: bool = False  # of the paged engine: what ran before changes no answer
    draft: DraftSpec | None = None
    adapter: LoraAdapter | None = None

    @property
    def model_paths(self) -> tuple[str, ...]:
        draft = () if self.draft is None else (self.draft.model_path,)
        return (self.model_path, *draft, *(() if self.adapter is None else (self.adapter.path,)))

    @property
    def whole_prompts(self) -> bool:
        return not self.dynamic_split_fuse

    @property
    def decoding(self) -> Mode:
        if self.draft is not None:
            return "eagle3" if self.draft.eagle3 else "draft"
        return "prompt_lookup" if self.prompt_lookup else "plain"


class PagedTextSpec(TextSpec, frozen=True):
    """Text generation by a step loop of our own over the runtime's paged attention.

    A .gguf file is converted before an engine gets the specification (`serving/engines.py`).
    Without `draft` it drafts from the text, so `prompt_lookup` is off. Options of the scheduler that it does
    not have are rejected where the graph is read (`kinds/text/engine_choice.py`).
    """

    kind: ClassVar[str] = "paged_text"
    backend: ClassVar[str] = "ovserve.kinds.text.worker.paged:PagedEngine"
    pauses_batches: ClassVar[bool] = True

    @property
    def decoding(self) -> Mode:
        return "paged"

    @property
    def converts(self) -> bool:
        return self.model_path.endswith(".gguf")


class ScriptSpec(TextSpec, frozen=True):
    """Text from a script file instead of a model; it accepts the options of `TextSpec`."""

    kind: ClassVar[str] = "script"
    backend: ClassVar[str] = "ovserve.kinds.text.worker.scripted:ScriptedEngine"

    one_at_a_time: bool = False  # reject what `StatefulTextSpec` rejects
    paged: bool = False  # accept what `PagedTextSpec` accepts

    @property
    def decoding(self) -> Mode:
        if self.paged:
            return "paged"
        return "stateful" if self.one_at_a_time else super().decoding


class StatefulTextSpec(Spec, frozen=True):
    """Text generation without batching, one request at a time: some devices offer nothing else."""

    kind: ClassVar[str] = "stateful_text"
    backend: ClassVar[str] = "ovserve.kinds.text.worker.genai:StatefulEngine"
    conversation: ClassVar[Conversation] = "steps"
    facts_type: ClassVar[type[Facts]] = TextFacts

    max_model_len: int | None = None  # as TextSpec's

    @property
    def decoding(self) -> Mode:
        return "stateful"

    @property
    def max_num_seqs(self) -> int:
        return 1

    @property
    def max_num_batched_tokens(self) -> int:
        """Return `TextSpec`'s default, an estimate of what one step reads, for admission."""
        return 256


GenerationSpec = TextSpec | StatefulTextSpec


class GrammarSpec(Spec, frozen=True):
    """A process without a model that compiles grammars with the tokenizer of the model at `model_path`."""

    kind: ClassVar[str] = "grammars"
    backend: ClassVar[str] = "ovserve.engine.worker.helper:load_grammars"
    conversation: ClassVar[Conversation] = "own"

    paged: bool = False  # for a `PagedTextSpec`, whose masks another library makes
    niceness: int = 0


class HostSpec(Spec, frozen=True):
    """A process that starts without a model, for many small ones; `model_path` is empty."""

    kind: ClassVar[str] = "host"
    backend: ClassVar[str] = "ovserve.engine.worker.host:load"


class TokenizerSpec(Spec, frozen=True):
    """A process without a model that tokenizes long texts as the engine of `facts` does."""

    kind: ClassVar[str] = "tokenizer"
    backend: ClassVar[str] = "ovserve.engine.worker.helper:load_tokenizer"
    conversation: ClassVar[Conversation] = "own"

    facts: TextFacts = TextFacts()


def name_of(spec_type: type[Spec]) -> str:
    """Return `module:Class`, the name under which the engine process finds the spec type."""
    return f"{spec_type.__module__}:{spec_type.__qualname__}"


def resolve(name: str) -> Any:
    """Import and return the object of `module:attribute`. Raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def with_cache(spec: S, directory: str) -> S:
    """Apply OVMS's --cache_dir: a cache directory for every model whose plugin_config names none."""
    if not directory:
        return spec
    properties = {"CACHE_DIR": directory} | json.loads(spec.properties)
    return msgspec.structs.replace(spec, properties=json.dumps(properties, sort_keys=True))
