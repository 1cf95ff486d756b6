"""Facts about a model from its files, without loading it.

A model is a .gguf file or a directory in Hugging Face layout. Every fact is optional: directories exported
by hand often lack half of the files.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from ovserve.engine.model.gguf import PART_NAME, GGUFError, first_part
from ovserve.engine.model.gguf_model import GGUFModel, read_model
from ovserve.engine.model.gguf_tokens import BYTE_LEVEL
from ovserve.errors import LoadError, described
from ovserve.llm.images import ImageTokens

T = TypeVar("T", dict[str, Any], list[Any])

# In the order of precedence that OVMS documents for its max_model_length default.
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "seq_len", "seq_length", "n_ctx", "sliding_window")
BY_SIZE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_omni", "qwen3_omni_moe")
LANGUAGE_MODELS = ("openvino_model.xml", "openvino_language_model.xml")
# With unpacked weights in openvino_model.xml: the same model as it was quantised, for steps of few tokens.
PACKED = "openvino_model_packed.xml"
PACKED_WEIGHTS = "openvino_model_packed.bin"
# What OpenVINO GenAI's own reader of .gguf files reads, of matrices.
LIBRARY_ARCHITECTURES = ("llama", "qwen2", "qwen3")
LIBRARY_KINDS = ("F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
VISION_FILES = ("openvino_text_embeddings_model.xml", "openvino_vision_embeddings_model.bin")

LFS_HEAD = b"version https://git-lfs.github.com/spec/"
LONGEST_POINTER = 1024  # bytes, by the specification of Git LFS
_VARIABLE = re.compile(rb"<data [^>]*variable_id=[^>]*>")  # of a ReadValue or an Assign
_ID, _STATE = re.compile(r'variable_id="([^"]*)"'), re.compile(r'variable_shape="\?,([\d,]+)"')
REFUSALS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
SAFETENSORS_HEADER_LIMIT = 100 << 20  # bytes, the format's own


class ModelFiles(msgspec.Struct, frozen=True):
    max_length: int | None = None
    chat_template: str | None = None
    tool_template: str | None = None  # the variant for requests with tools
    architecture: str = ""
    model_type: str = ""
    vision: bool = False  # it takes images
    image_tokens: ImageTokens | None = None  # by size, without markers; the engine verifies it
    vocab_size: int = 0
    add_bos_token: bool = False
    end_token_ids: tuple[int, ...] = ()
    generation_config: dict[str, object] = {}
    library_fault: str = ""  # why the library cannot read a .gguf file by itself


def model_in(path: Path) -> Path:
    """Return the path itself, or the only .gguf model of a directory without OpenVINO IR.

    A model in several files is named by the first.
    """
    if not path.is_dir() or any((path / name).is_file() for name in LANGUAGE_MODELS):
        return path
    files = gguf_models(path)
    return files[0] if len(files) == 1 else path


def gguf_models(directory: Path) -> list[Path]:
    """Return the .gguf models of a directory, sorted; of one that is split, the first file; no projectors."""
    files = sorted(file for file in directory.glob("*.gguf") if file.is_file() and "mmproj" not in file.name)
    return [file for file in files if PART_NAME.search(file.name) is None or first_part(file) == file]


def refuse_for_library(path: str, files: ModelFiles) -> None:
    """Raise LoadError for a .gguf file that OpenVINO GenAI's own reader cannot read rightly."""
    if files.library_fault:
        raise LoadError(
            f"OpenVINO GenAI's reader {files.library_fault}; `ovserve pull {path} --convert` makes a form "
            "that every engine reads",
            file=path,
        )


def json_object(file: Path, *, needed: bool = False) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no such file, and none is needed.

    Raises LoadError.
    """
    if not needed and not file.exists():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"not a JSON object: {error}", file=str(file)) from error
    if not isinstance(content, dict):
        raise LoadError(f"not a JSON object: {type(content).__name__}", file=str(file))
    return content


def json_or_empty(file: Path, type_: type[T]) -> T:
    """Return the JSON value of a file, an empty one if it cannot be read or has another type."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return type_()
    return content if isinstance(content, type_) else type_()


class TensorEntry(msgspec.Struct):
    """A tensor of a .safetensors file. Offsets count from the end of the header."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[int, int]


def safetensors_header(file: Path) -> tuple[dict[str, TensorEntry], int]:
    """Return the tensors of a .safetensors file, and where their values begin. Raises LoadError.

    A file of which the end is missing is refused: OpenVINO GenAI reads what is behind it in memory.
    Source: https://huggingface.co/docs/safetensors/index, read 2026-11-22
    """
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            data_size = os.fstat(opened.fileno()).st_size - 8 - length
            if length > SAFETENSORS_HEADER_LIMIT or data_size < 0:
                raise ValueError(f"a header of {length} bytes")
            header = msgspec.json.decode(opened.read(length), type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=TensorEntry) for name, raw in header.items()}
        for name, entry in entries.items():
            begin, end = entry.data_offsets
            if not 0 <= begin <= end <= data_size:
                raise ValueError(f"{name!r} is at {begin} to {end} of {data_size} bytes of values")
    except (OSError, struct.error, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise LoadError(f"not a .safetensors file: {error}", file=str(file)) from error
    return entries, 8 + length


def weights_fault(xml: Path, weights: Path) -> str:
    """Return why a model of OpenVINO cannot be read: invalid XML, or weights that are absent or cut short.

    Raises OSError.
    """
    stat = xml.stat()
    root, needed, invalid = _read_xml(str(xml), stat.st_size, stat.st_mtime_ns)
    if invalid:
        return f"{xml}:{invalid}"
    if root != "net":
        return f"{xml}:1: not a model of OpenVINO: its root is <{root}>, expected <net>"
    if not needed:
        return ""
    try:
        size = weights.stat().st_size
    except FileNotFoundError:
        return f"{weights} does not exist, and {xml.name} needs {needed} bytes of it"
    return (
        ""
        if size >= needed
        else f"{weights} is truncated: it has {size} bytes, and {xml.name} needs {needed}"
    )


@lru_cache(maxsize=1024)
def _read_xml(xml: str, size: int, changed: int) -> tuple[str, int, str]:
    """Return the name of the root, how many bytes of weights are referred to, and what is invalid.

    `size` and `changed` distinguish the contents.
    """
    from xml.etree import ElementTree  # rarely needed

    root, needed, open_ = "", 0, 0
    try:
        for event, element in ElementTree.iterparse(xml, ("start", "end")):
            if event == "start":
                root = root or element.tag
                open_ += 1
                continue
            open_ -= 1
            if element.tag == "data" and "offset" in element.attrib:
                needed = max(needed, int(element.attrib["offset"]) + int(element.attrib.get("size", 0)))
            if open_ == 2:  # a layer or an edge: read, and no longer needed
                element.clear()
    except ElementTree.ParseError as error:
        return root, needed, f"{error.position[0]}: not XML: {error}"
    return root, needed, ""


def broken_file(paths: Iterable[str]) -> str:
    """Return what is wrong with a file of the models at these paths, which the library does not name; ""
    if nothing is known."""
    for directory in map(Path, paths):
        for xml in sorted(directory.rglob("openvino_*.xml")):
            try:
                if fault := weights_fault(xml, xml.with_suffix(".bin")):
                    return fault
            except OSError as error:
                return f"{error.filename or xml} cannot be read: {error.strerror}"
    return ""


def end_with(convert: Callable[[Path, Path], None]) -> NoReturn:
    """End this process with a conversion between the paths of its command, or with the fault in a line."""
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except (LoadError, OSError, KeyError, RuntimeError, ValueError) as error:
        sys.exit(described(error) if isinstance(error, KeyError) else str(error))
    sys.exit()


def pulled(directory: Path) -> dict[str, Any]:
    """Return what `ovserve pull` recorded about a directory; empty for other directories."""
    return json_object(directory / "pull.json")


def read_model_files(path: str) -> ModelFiles:
    """Raises LoadError."""
    if not os.path.exists(path):
        raise LoadError(f"no such model: {path}")
    try:
        if pointer := lfs_pointer(path):
            raise LoadError("a Git LFS pointer instead of the file; `git lfs pull` fetches it", file=pointer)
        if os.path.isdir(path):
            return _from_directory(path)
        if not path.endswith(".gguf"):
            raise LoadError("a model is a directory or a .gguf file", file=path)
        return _from_gguf(read_model(path))
    except GGUFError as error:
        raise LoadError(str(error), file=path) from error
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(error.filename or path)) from error


def lfs_pointer(path: str) -> str:
    """Return a model file that a checkout without Git LFS has left as a pointer; "" if there is none."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else [""]
    for file in (os.path.join(path, name) if name else path for name in names):
        if os.path.isfile(file) and os.path.getsize(file) < LONGEST_POINTER:
            with open(file, "rb") as head:
                if head.read(len(LFS_HEAD)) == LFS_HEAD:
                    return file
    return ""


def _library_fault(model: GGUFModel) -> str:
    """Return why OpenVINO GenAI's own reader would fail or answer wrongly; "" if it would not.

    By trial with openvino-genai 2026.4.1: it ends the process for what it does not know, and ignores factors
    of rotary embeddings and tokens that begin a text.
    """
    matrices = (tensor for tensor in model.gguf.tensors.values() if len(tensor.dims) > 1)
    strange = next((tensor for tensor in matrices if tensor.type not in LIBRARY_KINDS), None)
    rope = model.parameters.rope
    if model.parameters.mixture:
        return "does not read experts"
    if model.name not in LIBRARY_ARCHITECTURES:
        return f"does not know general.architecture {model.name!r}"
    if strange is not None:
        return f"does not read the type {strange.type} of the tensor {strange.name}"
    if model.tokens.model != BYTE_LEVEL:
        return f"does not know tokenizer.ggml.model {model.tokens.model!r}"
    if rope.factors or rope.factor != 1:
        return f"ignores {rope.factors or 'rope.scaling.factor'}, so that long contexts are wrong"
    if model.tokens.begin is not None:
        return "ignores tokenizer.ggml.add_bos_token"
    if model.tokens.rule.whole:
        return f"splits texts otherwise than tokenizer.ggml.pre {model.gguf.metadata['tokenizer.ggml.pre']!r}"
    return ""


def _from_gguf(model: GGUFModel) -> ModelFiles:
    metadata = model.gguf.metadata
    return ModelFiles(
        max_length=model.parameters.length,
        chat_template=_text(metadata.get("tokenizer.chat_template")),
        tool_template=_text(metadata.get("tokenizer.chat_template.tool_use")),
        architecture=model.name,
        vocab_size=model.tokens.size,
        add_bos_token=model.tokens.begin is not None,
        end_token_ids=model.tokens.ends,
        library_fault=_library_fault(model),
    )


def _from_directory(path: str) -> ModelFiles:
    config = json_object(Path(path, "config.json"))
    text_config = config.get("text_config")
    configs = [config, text_config] if isinstance(text_config, dict) else [config]
    tokenizer = json_object(Path(path, "tokenizer_config.json"))
    generation = json_object(Path(path, "generation_config.json"))
    architectures = config.get("architectures")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelFiles(
        max_length=_first_positive(configs, LENGTH_KEYS),
        chat_template=_chat_template(path, tokenizer, "chat_template.jinja", "default"),
        tool_template=_chat_template(path, tokenizer, "additional_chat_templates/tool_use.jinja", "tool_use"),
        architecture=_text(architectures[0] if isinstance(architectures, list) and architectures else None)
        or _text(config.get("model_type"))
        or "",
        model_type=_text(config.get("model_type")) or "",
        vision=is_vision(path),
        image_tokens=_image_tokens(path, config),
        vocab_size=_first_positive(configs, ("vocab_size",)) or 0,
        add_bos_token=tokenizer.get("add_bos_token") is True,
        end_token_ids=tuple(id_ for id_ in (ends if isinstance(ends, list) else [ends]) if type(id_) is int),
        generation_config={name: value for name, value in generation.items() if value is not None},
    )


def is_vision(path: str) -> bool:
    """Return whether it is a vision model, by OVMS's rule."""
    return all(os.path.isfile(os.path.join(path, name)) for name in VISION_FILES)


def recurrent_state_bytes(path: str) -> int:
    """Return the bytes of the states of one sequence, those of linear attention and of convolutions, in f32.

    Of such a state only the first size is open, the number of sequences; a KV cache grows with tokens too.
    """
    files = (Path(path, name) for name in LANGUAGE_MODELS)
    if (file := next((file for file in files if file.is_file()), None)) is None:
        return 0
    tags = [tag.decode() for tag in _VARIABLE.findall(file.read_bytes())]
    states = {id_[1]: shape[1] for tag in tags if (id_ := _ID.search(tag)) and (shape := _STATE.search(tag))}
    return sum(4 * math.prod(map(int, shape.split(","))) for shape in states.values())


def _image_tokens(path: str, config: dict[str, Any]) -> ImageTokens | None:
    """Return the token counts of images for models with Qwen2-VL's processor, if their files are complete."""
    if config.get("model_type") not in BY_SIZE:
        return None
    preprocessor = json_object(Path(path, "preprocessor_config.json"))
    size = preprocessor.get("size")
    least, most = preprocessor.get("min_pixels"), preprocessor.get("max_pixels")
    if least is None and most is None and isinstance(size, dict):
        least, most = size.get("shortest_edge"), size.get("longest_edge")
    patch, merged, least, most = map(
        _positive, (preprocessor.get("patch_size"), preprocessor.get("merge_size"), least, most)
    )
    if not (patch and merged and least and most):
        return None
    return ImageTokens(side=patch * merged, min_pixels=least, max_pixels=most)


def _chat_template(path: str, tokenizer: dict[str, Any], file_name: str, name: str) -> str | None:
    """Return the chat template. A file wins over chat_template.json (older vision models), which wins over
    tokenizer_config.json; both hold a text or a list of named ones.
    """
    file = Path(path, file_name)
    if file.exists():
        try:
            return file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise LoadError(f"it is not UTF-8: {error}", file=str(file)) from error
    template = json_object(Path(path, "chat_template.json")).get("chat_template") or tokenizer.get(
        "chat_template"
    )
    if isinstance(template, list):
        templates = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        return _text(templates.get(name))
    return _text(template) if name == "default" else None


def _first_positive(configs: list[dict[str, Any]], keys: tuple[str, ...]) -> int | None:
    return next((n for key in keys for config in configs if (n := _positive(config.get(key)))), None)


def _positive(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# Commands that copy from the storage of a URL's scheme, and the environment variables that OVMS reads for it.
_BATCH = "az storage {kind} download-batch --source '{bucket}' --pattern '{pattern}' --destination DIRECTORY"
_AZURE = ("AZURE_STORAGE_CONNECTION_STRING",)
_CLOUDS = {
    "s3": (
        "aws s3 sync '{url}' DIRECTORY",
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_PROFILE",
         "S3_ENDPOINT"),
    ),
    "gs": ("gcloud storage rsync -r '{url}' DIRECTORY", ("GOOGLE_APPLICATION_CREDENTIALS",)),
    **dict.fromkeys(("az", "azure"), (_BATCH.replace("{kind}", "blob"), _AZURE)),
    "azfs": (_BATCH.replace("{kind}", "file"), _AZURE),
}  # fmt: skip
# A path of the operating system has one slash where the URL has two.
_CLOUD_URL = re.compile(rf"(?:^|/)({'|'.join(_CLOUDS)})://?([^/].*|$)", re.IGNORECASE)


def refusal(error: OSError) -> str:
    """Return why one path cannot be looked at; it concerns no other.

    Raises the error of storage that has gone.
    """
    if error.errno not in REFUSALS:
        raise error
    return f"{error.filename} cannot be read: {error.strerror}"


def cloud_fault(path: str | Path) -> str:
    """Return why a path in cloud storage is not served, and how to fetch it; "" for other paths."""
    if (match := _CLOUD_URL.search(str(path))) is None:
        return ""
    scheme, rest = match[1].lower(), match[2]
    command, variables = _CLOUDS[scheme]
    url = f"{scheme}://{rest}"
    text = f"{url} is in cloud storage, which is not read here; copy it to a directory and name that: "
    bucket, _, key = rest.strip("/").partition("/")
    text += command.format(url=url, bucket=bucket, pattern=f"{key}/*" if key else "*")
    if unused := [name for name in variables if os.environ.get(name)]:
        text += f" (without effect here: {', '.join(unused)})"
    return text
