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

from ovserve.engine.client.call_client import CallClient
from ovserve.engine.client.text import TextClient
from ovserve.engine.host.cpu import Processor, processor
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
from ovserve.pull.loras import FLAG, fetch_loras, lora_fields, parse_loras
from ovserve.pull.model import How, obtain
from ovserve.pull.packaged import MODELS, PackagedModel
from ovserve.pull.plain import PLAIN_MODELS, PackagedModels, fetch_plain
from ovserve.pull.source import Say, Source, find
from ovserve.serving.engines import FIELD, convert_spec
from ovserve.serving.settings import Convert
from ovserve.serving.spec import GRAPH_FILE

PROMPT = "The capital of France is"


async def verify(directory: Path, convert: Convert) -> str:
    """Return the result in words. Raises LoadError, or the error that ended the request."""
    checked = check_file(directory, GRAPH_FILE)
    checked.graph.close()
    if not checked.engine_specs:
        raise LoadError("no node of the graph holds a model", file=str(directory / GRAPH_FILE))
    said = []
    for engine in checked.engines.values():
        spec, fallback = engine.spec, engine.fallback
        if not isinstance(spec, TextSpec | StatefulTextSpec):
            said.append(await _encode(spec))
            continue
        try:
            said.append(await _generate(await convert_spec(spec, convert)))
        except LoadError as error:
            if error.field != FIELD or not isinstance(fallback, TextSpec):
                raise
            said.append(await _generate(fallback))
    return "; ".join(said)


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


PROMPT_TOKENS = 1024  # of a step, as in graphs/smollm2; docs/performance.md, "Weights and tokens per step"


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
    output_layer: str = ""  # record.SOURCE or INT8; empty: SOURCE, or with AUTO the processor decides
    explicit: bool = False  # five nodes in place of one
    loras: str = ""  # adapters of an image model, see `loras`


def pull(
    wanted: Wanted,
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
        directory = _pull(wanted, say, models, machine or processor())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhausted(
                f"the disk of {wanted.repository} is full; free space, then run the same command to resume"
            ) from error
        raise LoadError(
            str(error.strerror or error), file=str(error.filename or wanted.repository)
        ) from error
    if wanted.source in PLAIN_MODELS:
        return directory
    if wanted.verify:
        convert = functools.partial(convert_for_serving, repository=wanted.repository, say=say)
        say(asyncio.run(verify(directory, convert)))
    if hint:
        say(f"serve it: {command()} serve {directory}")
    return directory


def _pull(wanted: Wanted, say: Say, models: Mapping[str, PackagedModel], machine: Processor) -> Path:
    if task := encoders.task_of(wanted.source, wanted.task):
        return _pull_encoder(wanted, task, say)
    if wanted.source in PLAIN_MODELS:
        return _pull_plain(wanted, say, PLAIN_MODELS[wanted.source])
    if wanted.loras:
        raise InvalidArgument(f"{FLAG} is for {IMAGES}; a graph of text has lora_adapters: docs/pull.md")
    if wanted.weight_format in record.COMPRESSED and importlib.util.find_spec("nncf") is None:
        raise InvalidArgument(f"--weight-format {wanted.weight_format} needs nncf; {extra('compress')}")
    source = find(wanted.source, models, revision=wanted.revision, gguf=wanted.gguf)
    draft = find(wanted.draft, models) if wanted.draft else None
    directory = _place(wanted, source.name)
    known = record.read(directory)
    as_source = wanted.weight_format == record.SOURCE
    wanted = _as_laid(wanted, known, is_packaged=wanted.source in models)
    keep = graph_file.is_changed(directory, known) and not wanted.force
    if keep and (given := _given(wanted)):
        raise LoadError(
            f"was not written by pull, or changed since; --{given[0]} is not applied. --force overwrites it",
            file=str(directory / GRAPH_FILE),
        )
    packaged = models[wanted.source].options if wanted.source in models else {}
    options: Mapping[str, OptionValue] = {**packaged, **wanted.options}
    if wanted.weight_format == AUTO and wanted.source in models and models[wanted.source].wide_cache:
        options = _with_cache(options, machine)
    source.identify(known.identity if known.source == wanted.source else "")
    if source.is_gguf and not wanted.draft and not as_source:
        options = with_paged_engine(options)
    graph_file.check_options(graph_text(options, "./", "./" if draft else ""))
    how = _how(wanted, options, models.get(wanted.source), machine)
    if source.is_gguf and (how.compressed or (draft is not None and not as_source)):
        how = replace(how, convert=True)  # with a draft, because both need tokenizers of one origin
    model = obtain(source, wanted.source, directory, how, say)
    draft_path = ""
    if draft is not None:
        place = wanted.repository / draft.name
        # A draft is loaded in OpenVINO's form only.
        output_layer = wanted.output_layer.removeprefix(record.SOURCE)
        drafting = How(again=wanted.again, only_ir=True, merge=how.merge, output_layer=output_layer)
        draft_path = _relative(obtain(draft, wanted.draft, place, drafting, say), directory)
    if keep:
        say(f"{directory / GRAPH_FILE} has changes and is kept; --force overwrites it")
        return directory
    heading = f"Written by `ovserve pull {wanted.source}`. Edit it: pull leaves a changed file alone."
    path = _relative(model, directory)
    text = graph_text(options, path, draft_path, heading=heading, explicit=wanted.explicit)
    graph = graph_file.write(directory, text)
    made = msgspec.structs.replace(record.read(directory), graph=graph, explicit=wanted.explicit)
    if made != known:  # the file's date says when the form last changed: see `$(LAID)` in the Makefile
        record.write(directory, made)
    say(f"{directory / GRAPH_FILE} is written")
    return directory


def _as_laid(wanted: Wanted, known: record.Record, *, is_packaged: bool) -> Wanted:
    """Choose the form of the weights where the command line leaves it open.

    A model that is there keeps its form. A packaged one is laid as `make serve`, `ovserve serve` and
    `ovserve run` lay it.
    """
    if wanted.weight_format == record.SOURCE:
        return replace(wanted, weight_format="")
    if wanted.weight_format or wanted.convert:
        return wanted
    if known.compressed and known.source == wanted.source:
        return replace(wanted, weight_format=known.compressed, explicit=wanted.explicit or known.explicit)
    if known.converted and known.source == wanted.source:
        form = AUTO if known.auto else known.weight_format
        explicit = wanted.explicit or known.explicit
        return replace(wanted, convert=not form, weight_format=form, explicit=explicit)
    return replace(wanted, weight_format=AUTO) if is_packaged else wanted


def _how(
    wanted: Wanted, options: Mapping[str, OptionValue], packaged: PackagedModel | None, machine: Processor
) -> How:
    """Choose the form of the network for this processor, where the command line leaves it open."""
    on_cpu = options.get("target_device", "CPU") == "CPU"  # merging was not measured on other devices
    compressed = wanted.weight_format if wanted.weight_format in record.COMPRESSED else ""
    how = How(
        wanted.convert,
        "" if compressed else wanted.weight_format,
        wanted.again,
        compressed=compressed,
        only_ir=options.get("engine") == "paged",
        merge=wanted.merge and on_cpu,
        output_layer=wanted.output_layer.removeprefix(record.SOURCE),
    )
    if wanted.weight_format != AUTO:
        return how
    rounds = packaged is not None and packaged.rounded_zeros
    how = replace(how, weight_format=FP16 if machine.unpacked_is_faster else "", auto=True, rounds=rounds)
    int8 = packaged is not None and packaged.int8_output and on_cpu and machine.int8_output_is_faster
    return replace(how, output_layer=record.INT8) if int8 and not wanted.output_layer else how


def _with_cache(options: Mapping[str, OptionValue], machine: Processor) -> Mapping[str, OptionValue]:
    """Choose the type of the KV cache for this processor, unless the options do."""
    chosen = "KV_CACHE_PRECISION" in str(options.get("plugin_config", ""))
    if chosen or not machine.wide_cache_is_faster or options.get("target_device", "CPU") != "CPU":
        return options
    return {"kv_cache_precision": "bf16", **options}


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
    check_memory(loaded_size(checked(file), ""), f"serving {file}", available or memory())
    return obtain(source, str(file.absolute()), directory, How(convert=True), say)


def _is_beside_its_conversion(file: Path) -> bool:
    """Return whether `pull` has kept the file next to what it was converted to."""
    known, network = record.read(file.parent), file.parent / MAIN
    current = known.converted and known.conversion == record.CONVERSION_VERSION and network.is_file()
    return current and gguf_models(file.parent) == [file] and _changed_at(file) <= _changed_at(network)


def _changed_at(file: Path) -> int:
    return file.stat().st_mtime_ns


def _is_free_for(source: Source, file: Path, directory: Path) -> bool:
    """Return whether a directory holds no other model than what the file was converted to."""
    known = record.read(directory)
    taken = any((directory / name).exists() for name in (*LANGUAGE_MODELS, GRAPH_FILE))
    return not taken or known.identity == source.identify("") or Path(known.source).name == file.name


def with_paged_engine(options: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
    """Choose the paged engine if it has all that the options ask for, grammars included."""
    if "engine" in options or not masks_grammars():
        return options
    paged = {"max_num_batched_tokens": PROMPT_TOKENS, **options, "engine": "paged"}
    try:
        graph_file.check_options(graph_text(paged, "./"))
    except LoadError:
        return options
    return paged


def _pull_encoder(wanted: Wanted, task: str, say: Say) -> Path:
    """Fetch an encoder and write its graph; the steps are those of `_pull`."""
    for flag, value in (
        ("gguf_filename", wanted.gguf),
        ("convert", wanted.convert),
        ("draft_source_model", wanted.draft),
        ("weight-format", wanted.weight_format),
        ("output_layer", wanted.output_layer),
    ):
        if value:
            raise InvalidArgument(f"--{flag} is for text generation, and {wanted.source} is for {task}")
    path = Path(wanted.source).expanduser()
    named = wanted.source in encoders.ENCODERS or wanted.source in encoders.NAMED
    directory = _place(
        wanted, wanted.source if named or encoders.is_hub(wanted.source) else path.absolute().name
    )
    keep = graph_file.is_changed(directory, record.read(directory)) and not wanted.force
    encoder_graph(task, wanted.options, "./")  # what is wrong with an option is said before the download
    if wanted.loras and task != IMAGES:
        raise InvalidArgument(f"{FLAG} is for {IMAGES}, and {wanted.source} is for {task}")
    adapters, composites = parse_loras(wanted.loras)
    model, identity = _fetch_encoder(wanted, task, directory, say)
    made = msgspec.structs.replace(record.read(directory), source=wanted.source, identity=identity)
    if keep:
        say(f"{directory / GRAPH_FILE} has changes and is kept; --force overwrites it")
    else:
        directory.mkdir(parents=True, exist_ok=True)
        heading = f"Written by `ovserve pull {wanted.source}`. Edit it: pull leaves a changed file alone."
        paths = fetch_loras(adapters, directory, again=wanted.again, say=say)
        more = lora_fields(paths, adapters, composites)
        text = encoder_graph(task, wanted.options, _relative(model, directory), heading, more)
        made = msgspec.structs.replace(made, graph=graph_file.write(directory, text))
        say(f"{directory / GRAPH_FILE} is written")
    record.write(directory, made)
    return directory


def _fetch_encoder(wanted: Wanted, task: str, directory: Path, say: Say) -> tuple[Path, str]:
    """Return the directory of the model, and what identifies it."""
    source, again = wanted.source, wanted.again
    if source == kokoro.NAME:
        return kokoro.fetch(directory, again=again, say=say), kokoro.SHA256
    if source == whisper.NAME:
        return whisper.fetch(directory, again=again, say=say), whisper.WEIGHTS.sha256
    if task == whisper.TASK:
        if encoders.is_hub(source):
            return whisper.fetch_hub(source, wanted.revision, directory, again=again, say=say)
        path = Path(source).expanduser()
        return whisper.fetch_local(path, directory, again=again, say=say), str(path.absolute())
    if (known := encoders.ENCODERS.get(source)) is not None:
        return encoders.fetch_packaged(source, known, directory, again=again, say=say), known.identity
    if encoders.is_hub(source):
        return encoders.fetch_hub(source, wanted.revision, directory, task, again=again, say=say)
    path = Path(source).expanduser()
    return encoders.fetch_local(path, directory, task, again=again, say=say), str(path.absolute())


def _place(wanted: Wanted, default: str) -> Path:
    name = wanted.name or default
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InvalidArgument(f"--model_name: expected the name of a folder, got {name!r}")
    return wanted.repository / name


def _given(wanted: Wanted) -> list[str]:
    """Return the flags that only a new graph can follow."""
    draft, explicit = ["draft_source_model"] * bool(wanted.draft), ["explicit"] * wanted.explicit
    return [*wanted.options, *draft, *explicit]


def _pull_plain(wanted: Wanted, say: Say, models: PackagedModels) -> Path:
    """Fetch plain models, which need no graph of their own. Raises InvalidArgument for options of a graph."""
    given = [
        *wanted.options,
        *(name for name in ("convert", "draft", "gguf", "output_layer", "revision") if getattr(wanted, name)),
    ]
    if given:
        raise InvalidArgument(f"--{given[0]} is for language models, and {wanted.source!r} is not one")
    directory = wanted.repository / (wanted.name or wanted.source)
    fetch_plain(wanted.source, models, directory, say, again=wanted.again)
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
