"""The graph that is tuned: the engine in it, found with the server's own loader. And the winner's graph: the
operator's own text with other options, and the results above it as comments.

Everything else stays as its author wrote it, comments included: values are inserted where they stand or next
to their neighbours; nothing is reprinted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ovserve.calculators.shipped import shipped_registry
from ovserve.engine.host.cpu import Processor
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import Internal, InvalidArgument, LoadError, NotFound
from ovserve.graph import Node
from ovserve.graph.pbtxt.scanner import Document, Edit, Entry
from ovserve.kinds.plugin_config import with_properties
from ovserve.kinds.text.options import LlmOptions
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.serving.config.file import replace_file
from ovserve.serving.loader import check
from ovserve.serving.settings import GRAPH_FILE, ServableSpec


@dataclass(frozen=True)
class Target:
    """The target. `file` is absolute; `node` is the one whose options make `spec`."""

    file: Path
    node: Node
    options: LLMCalculatorOptions
    spec: TextSpec
    parsed: LlmOptions

    @property
    def base(self) -> Path:
        """Return what relative paths in the graph start from."""
        return self.file.parent


def find(path: Path, name: str = "") -> Target:
    """Find the target in a graph file or its directory; `name` of the node, if several have an engine.

    Raises LoadError for a graph that would not be served, InvalidArgument for a node that is not there.
    """
    if not path.exists():
        raise NotFound(f"{path} does not exist")
    file = path.absolute() / GRAPH_FILE if path.is_dir() else path.absolute()
    checked = check(ServableSpec(file.parent.name, file.parent, file, origin=str(path)), shipped_registry())
    checked.graph.close()
    engines = [e for e in checked.engines.values() if isinstance(e.options, LlmOptions)]
    nodes = {engine.node.name: engine for engine in engines}
    names = ", ".join(sorted(nodes)) or "none"
    if name and name not in nodes:
        raise InvalidArgument(f"--node: no node {name!r} with an engine in {file}; there are: {names}")
    if not name and len(nodes) != 1:
        raise InvalidArgument(f"{file} has {len(nodes)} nodes with an engine ({names}); choose one by --node")
    engine = nodes[name] if name else next(iter(nodes.values()))
    options = engine.node.options(LLMCalculatorOptions)
    assert options is not None, "the graph was checked"
    if not isinstance(engine.spec, TextSpec):
        raise InvalidArgument(
            f"{file}: the stateful pipeline of node {engine.node.name!r} has nothing to tune"
        )
    return Target(file, engine.node, options, engine.spec, engine.options)


Value = str | int | bool


def with_options(text: str, node: int, options: str, values: Mapping[str, Value]) -> str:
    """Set `values` by field, in the message `options` (its full name) of the node at this position in the
    file.

    Raises LoadError where the message is not written out as text.
    """
    document = Document(text)
    block = _block(document, node, options)
    edits: list[Edit] = []
    missing = []
    for name, value in values.items():
        if (entry := block.child(name)) is not None:
            edits.append((entry.at, entry.value_end, literal(value)))
        else:
            missing.append(f"{name}: {literal(value)}")
    if missing:
        edits.append(_inserted(text, block, missing))
    return _edited(text, edits)


def with_paths(text: str, moved: Mapping[str, str]) -> str:
    """Replace every `..._path` in the options of all nodes that is a key of `moved` by its value."""
    document = Document(text)
    inner = [e for node in document.nodes for child in node.children for e in child.walk()]
    paths = [e for e in inner if e.name.endswith("_path") and e.value is not None and e.text in moved]
    return _edited(text, [(e.at, e.value_end, literal(moved[e.text])) for e in paths])


def literal(value: Value) -> str:
    """Return a scalar in text format. Strings use a quote they do not contain, or JSON's form if they contain
    both."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    quote = "'" if '"' in value else '"'
    escaped = value.replace("\\", "\\\\").replace(quote, f"\\{quote}").replace("\n", "\\n")
    return f"{quote}{escaped}{quote}"


def _block(document: Document, node: int, options: str) -> Entry:
    for entry in document.nodes[node].walk() if node < len(document.nodes) else ():
        name = entry.name.removeprefix("[").removesuffix("]").rpartition("/")[2].removesuffix(".ext")
        if entry.name.startswith("[") and name == options and entry.value is None:
            return entry
    raise LoadError(f"{options} is not written out as text here, so it cannot be changed by the field")


def _inserted(text: str, block: Entry, fields: list[str]) -> Edit:
    """Insert fields after the last one of the block: on lines of their own if that one is, else on its
    line."""
    if not block.children:
        at = block.at + 1
        return at, at, f" {' '.join(fields)} "
    last = max(block.children, key=lambda entry: entry.end)
    line_start = text.rfind("\n", 0, last.start) + 1
    line_end = text.find("\n", last.end)
    line_end = len(text) if line_end < 0 else line_end
    indent, rest = text[line_start : last.start], text[last.end : line_end].strip()
    if indent.strip() or (rest and not rest.startswith("#")):
        return last.end, last.end, "".join(f" {one}" for one in fields)
    return line_end, line_end, "".join(f"\n{indent}{one}" for one in fields)


def _edited(text: str, edits: list[Edit]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


MESSAGE = LLMCalculatorOptions.DESCRIPTOR.full_name


def check_output(target: Target, output: Path, *, force: bool) -> Path:
    """Return the absolute path to write. It runs before anything is measured. Raises InvalidArgument."""
    file = output.absolute()
    if file.is_dir():
        raise InvalidArgument(f"--output: {output} is a directory; name a file in it")
    if file.exists() and not force:
        raise InvalidArgument(f"--output: {output} exists; --force would overwrite it")
    if not file.parent.is_dir():
        raise InvalidArgument(f"--output: the directory {output.parent} does not exist")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InvalidArgument(f"--output: {output} cannot be written")
    return file


def tuned_text(target: Target, options: Options, evidence: Sequence[str], output: Path) -> str:
    """Return the graph's text with `evidence` as comments above. Relative paths keep their meaning in the new
    place."""
    text = target.file.read_bytes().decode().removeprefix("\ufeff")
    fields: dict[str, Value] = {name: value for name, value in options.items() if not is_property(name)}
    if "models_path" in fields:
        fields["models_path"] = os.path.relpath(str(fields["models_path"]), target.base)
    if properties := {name: value for name, value in options.items() if is_property(name)}:
        fields["plugin_config"] = with_properties(target.options.plugin_config, properties)
    text = with_options(text, target.node.position, MESSAGE, fields)
    if output.parent != target.base:
        text = with_paths(text, _moved(target, options, output.parent))
    return "".join(f"# {line}".rstrip() + "\n" for line in evidence) + "\n" + text


def write(target: Target, options: Options, evidence: Sequence[str], output: Path) -> None:
    """Replace the file at once, then read it as the server would. Raises OSError, Internal."""
    replace_file(output, tuned_text(target, options, evidence, output).encode())
    name = target.node.name
    actual, expected = find(output, name).spec, applied(target.spec, options)
    if actual != expected:
        raise Internal(f"{output} was written, but means {actual} and not {expected}")


def _moved(target: Target, options: Options, directory: Path) -> dict[str, str]:
    paths = set(target.node.config.paths())
    if "models_path" in options:
        paths.add(os.path.relpath(str(options["models_path"]), target.base))
    relative = (path for path in paths if not os.path.isabs(path))
    return {path: os.path.relpath(target.base / path, directory) for path in relative}


# The choices worth trying: values of a graph's options.
#
# An option is a field of LLMCalculatorOptions; names in capitals are properties in its plugin_config. What a
# processor cannot do fast is left out (docs/performance.md has the measurements); what merely turns out slow
# costs two rounds.


Options = Mapping[str, Value]

BATCHED_TOKENS = (256, 512, 1024, 2048, 4096)
DIMENSIONS = (
    "weights",
    "precision",
    "threads",
    "kv_cache",
    "dynamic_quantization",
    "hyper_threading",
    "pinning",
    "streams",
    "batched_tokens",
    "split_fuse",
)
LONGEST_WHOLE_PROMPT = 16384  # tokens; a longer step would delay all other requests for seconds
_SPEC_FIELD = {"models_path": "model_path"}


# The choices of one dimension: options that are set together, of which only one can win.
Choices = Sequence[Options]


def label(options: Options) -> str:
    short_options = {k: Path(str(v)).name if k == "models_path" else v for k, v in options.items()}
    return ", ".join(f"{k}={_display(v)}" for k, v in short_options.items()) or "the graph as it is"


def is_property(name: str) -> bool:
    """Return whether it is in plugin_config, and not a field of its own."""
    return name.isupper()


def applied(spec: TextSpec, options: Options) -> TextSpec:
    """Return the engine of a graph with these options in place of its own."""
    properties: dict[str, Value] = json.loads(spec.properties)
    changed: dict[str, object] = {}
    for name, value in options.items():
        if is_property(name):
            properties[name] = value
        else:
            changed[_SPEC_FIELD.get(name, name)] = value
    return msgspec.structs.replace(spec, properties=json.dumps(properties, sort_keys=True), **changed)


def dimensions(
    spec: TextSpec,
    processor: Processor,
    *,
    context: int | None,
    weights: Sequence[str] = (),
    only: Sequence[str] = (),
) -> dict[str, Choices]:
    """Return the dimensions with a choice that differs from the graph's; the most promising first.

    `context` is the model's length in tokens, `weights` are paths of the same model in other forms. `only`:
    names of dimensions, none for all.
    """
    every = {
        "weights": _each("models_path", weights),
        **(_of_cpu(processor) if spec.device.startswith("CPU") else _of_others()),
        "batched_tokens": _each("max_num_batched_tokens", BATCHED_TOKENS),
    }
    if spec.decoding != "paged":
        every["split_fuse"] = _whole_prompts(spec, context)
    others = {name: [c for c in choices if applied(spec, c) != spec] for name, choices in every.items()}
    return {name: choices for name, choices in others.items() if choices and (not only or name in only)}


def _of_cpu(processor: Processor) -> dict[str, Choices]:
    flags, cores, logical = processor.flags, processor.cores, processor.logical
    half = ["bf16"] if flags & {"amx_bf16", "avx512_bf16"} else []
    fp16 = ["f16"] if flags & {"amx_fp16", "avx512_fp16"} else []
    threads = sorted({cores, logical, max(1, cores - 1), max(1, cores // 2)}, reverse=True)
    return {
        "precision": _each("INFERENCE_PRECISION_HINT", ["f32", *half, *fp16]),
        "threads": _each("INFERENCE_NUM_THREADS", threads),
        "kv_cache": _each("KV_CACHE_PRECISION", ["u8", *(half or ["f32"]), "f16", "u4"]),
        "dynamic_quantization": _each("DYNAMIC_QUANTIZATION_GROUP_SIZE", [0, 32, 64, 128]),
        "hyper_threading": _each("ENABLE_HYPER_THREADING", [True, False] if logical > cores else []),
        "pinning": _each("ENABLE_CPU_PINNING", [True, False] if cores > 2 else []),
        "streams": _each("NUM_STREAMS", ["1", "2"] if cores > 1 else []),
    }


def _of_others() -> dict[str, Choices]:
    return {
        "precision": _each("INFERENCE_PRECISION_HINT", ["f16", "f32"]),
        "kv_cache": _each("KV_CACHE_PRECISION", ["i8", "u8", "f16"]),
    }


def _whole_prompts(spec: TextSpec, context: int | None) -> Choices:
    """Return choices without split-fuse, where a prompt takes one step: sensible only if the longest one
    does."""
    if context is None or max(context, spec.max_num_seqs) > LONGEST_WHOLE_PROMPT:
        return []
    tokens = max(context, spec.max_num_seqs, spec.max_num_batched_tokens)
    return [{"dynamic_split_fuse": False, "max_num_batched_tokens": tokens}]


def _each(name: str, values: Sequence[Value]) -> Choices:
    return [{name: value} for value in values]


def _display(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
