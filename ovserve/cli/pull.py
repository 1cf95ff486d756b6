"""`ovserve pull SOURCE`: fetch a model and write a graph for it, with the flags of OVMS's `--pull`."""

from __future__ import annotations

import argparse
import sys

from ovserve.cli.parser import Commands, add_graph_options, add_ovms_flags, graph_options
from ovserve.errors import InvalidArgument
from ovserve.pull.encoder_graph import TASKS as ENCODER_TASKS
from ovserve.pull.record import COMPRESSED
from ovserve.pull.source import SHORT_NAMES
from ovserve.server.settings import MODEL_REFUSED, MODEL_WITHOUT_EFFECT

REFUSED = {
    "extra_quantization_params": "weights are compressed by --weight-format int8 or int4, or by optimum-cli",
    **MODEL_REFUSED,
}
WITHOUT_EFFECT = {
    "cache_dir": "compiled models are kept by `ovserve serve --cache_dir`",
    "log_level": "pull prints its steps, and has no log",
    **MODEL_WITHOUT_EFFECT,
}
TASKS = ("text_generation", *ENCODER_TASKS)


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "pull",
        help="fetch a model, and write a graph that serves it",
        description="Fetches a model into REPOSITORY/NAME and writes a graph.pbtxt next to it, as OVMS's "
        "--pull does. Valid files are not fetched again, and a changed graph is kept. Without SOURCE it says "
        "which sizes of models this machine's memory holds, and how fast they can be.",
    )
    parser.add_argument(
        "source",
        nargs="?",
        default="",
        metavar="SOURCE",
        help=f"a short name ({', '.join(SHORT_NAMES)}), an id on the Hugging Face hub, "
        "a directory or a .gguf file",
    )
    parser.add_argument("--source_model", default="", metavar="SOURCE", help="SOURCE as OVMS writes it")
    parser.add_argument(
        "--model_repository_path", default="", metavar="PATH", help="directory of models (default: models)"
    )
    parser.add_argument(
        "--model_name", default="", metavar="NAME", help="folder in the repository (default: that of SOURCE)"
    )
    parser.add_argument(
        "--revision",
        default="",
        help="on the hub: branch, tag or commit; without it the fetched revision stays",
    )
    parser.add_argument("--gguf_filename", default="", metavar="FILE", help="on the hub: which .gguf file")
    parser.add_argument(
        "--task",
        choices=TASKS,
        default="",
        help=f"what the model does; a short name has its own (default: {TASKS[0]})",
    )
    parser.add_argument("--overwrite_models", action="store_true", help="fetch again what exists")
    parser.add_argument("--force", action="store_true", help="overwrite a graph.pbtxt that was changed")
    parser.add_argument(
        "--verify", action="store_true", help="load the model at the end, and generate a token"
    )
    parser.add_argument(
        "--convert",
        action="store_true",
        help="convert a .gguf file to OpenVINO IR once, for faster starts",
    )
    parser.add_argument(
        "--weight-format",
        type=_weight_format,
        default="",
        metavar="int8|int4|fp16|auto|source",
        help="int8, int4: compress float weights (extra compress); of a .gguf file, source: leave it as it "
        "is; fp16: unpack its weights; auto: the faster form on this processor "
        "(default: that of the model on disk; auto for a short name)",
    )
    parser.add_argument(
        "--merge_qkv",
        choices=("true", "false"),
        default="true",
        help="merge query, key and value of each layer into one matrix product, which is faster and gives "
        "the same text; false for a model that gets LoRA adapters (default: true)",
    )
    parser.add_argument(
        "--draft_source_model",
        "--draft_model_path",
        default="",
        metavar="SOURCE",
        help="a draft model, pulled in OpenVINO IR form",
    )
    parser.add_argument(
        "--explicit",
        action="store_true",
        help="write the graph as five nodes, for calculators of your own between them; OVMS cannot read it",
    )
    parser.add_argument(
        "--source_loras",
        default="",
        metavar="ALIAS=SOURCE,...",
        help="LoRA adapters of an image model: ALIAS=SOURCE[@FILE][:ALPHA], or ALIAS=@ALIAS:ALPHA+@ALIAS of "
        "several; a SOURCE on the hub is fetched to loras/",
    )
    add_ovms_flags(parser, REFUSED, WITHOUT_EFFECT)
    parser.add_argument("--json", action="store_true", help="print steps and progress as lines of JSON")
    add_graph_options(parser, "options of the graph")
    parser.set_defaults(run=_run)


def _weight_format(text: str) -> str:
    if text not in ("", *COMPRESSED, "fp16", "auto", "source"):  # the default is checked too
        raise argparse.ArgumentTypeError(f"expected int8, int4, fp16, auto or source, got {text!r}")
    return text


def _recommend() -> None:
    from ovserve.engine.host.memory import memory
    from ovserve.pull.packaged import MODELS, described
    from ovserve.pull.recommend import advice, read_bandwidth

    listed = [f"  {name}: {described(model)}" for name, model in MODELS.items()]
    lines = (*advice(memory(), read_bandwidth()), "models of text with a short name:", *listed)
    print(*lines, sep="\n", file=sys.stderr)  # noqa: T201


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.cli.local import repository
    from ovserve.cli.progress import Shown
    from ovserve.pull.progress import JsonLines
    from ovserve.pull.run import Wanted, pull

    for notice in arguments.notices:
        print(notice, file=sys.stderr)  # noqa: T201
    if not (arguments.source or arguments.source_model):
        _recommend()
    if arguments.source and arguments.source_model:
        raise InvalidArgument("SOURCE and --source_model are the same; give one of them")
    request = Wanted(
        arguments.source or arguments.source_model,
        repository(arguments.model_repository_path),
        name=arguments.model_name,
        revision=arguments.revision,
        gguf=arguments.gguf_filename,
        options=graph_options(arguments),
        again=arguments.overwrite_models,
        force=arguments.force,
        verify=arguments.verify,
        convert=arguments.convert,
        weight_format=arguments.weight_format,
        merge=arguments.merge_qkv == "true",
        draft=arguments.draft_source_model,
        task=arguments.task,
        explicit=arguments.explicit,
        loras=arguments.source_loras,
    )
    say = JsonLines(sys.stdout) if arguments.json else Shown(sys.stdout)
    try:
        pull(request, say)
    except KeyboardInterrupt:
        say("interrupted; the same command resumes where it stopped")
        raise
    return 0
