"""The draft_* fields of LLMCalculatorOptions, checked and made a DraftSpec."""

from __future__ import annotations

from pathlib import Path

from ovserve.engine.protocol.specs import DraftSpec
from ovserve.graph import Node
from ovserve.protos.llm_pb2 import LLMCalculatorOptions

FIELDS = (
    "draft_device",
    "draft_max_num_batched_tokens",
    "draft_cache_size",
    "draft_block_size",
    "draft_max_num_seqs",
    "draft_dynamic_split_fuse",
)


def draft_spec(node: Node, options: LLMCalculatorOptions) -> DraftSpec | None:
    """None without draft_models_path. Raises LoadError naming the field."""
    given = [name for name in FIELDS if options.HasField(name)]  # type: ignore[arg-type]
    given += ["draft_eagle3_mode"] if options.draft_eagle3_mode else []
    if not options.draft_models_path:
        if given:
            raise node.error("has no meaning without draft_models_path", given[0])
        return None
    _same_as_the_main_model(node, options)
    if options.HasField("draft_block_size"):
        raise node.error("the engine chooses the size of a block itself; remove it", "draft_block_size")
    if options.HasField("draft_max_num_seqs") and not options.draft_max_num_seqs:
        raise node.error("expected at least 1, got 0", "draft_max_num_seqs")
    return DraftSpec(
        model_path=str(_directory(node, options.draft_models_path)),
        device=options.draft_device,
        cache_size=options.draft_cache_size if options.HasField("draft_cache_size") else None,
        max_num_seqs=options.draft_max_num_seqs if options.HasField("draft_max_num_seqs") else None,
        eagle3=options.draft_eagle3_mode,
    )


def _same_as_the_main_model(node: Node, options: LLMCalculatorOptions) -> None:
    """The library schedules both models alike whatever a draft's own scheduler says."""
    for name in ("max_num_batched_tokens", "dynamic_split_fuse"):
        draft, main = getattr(options, f"draft_{name}"), getattr(options, name)
        if options.HasField(f"draft_{name}") and draft != main:  # type: ignore[arg-type]
            raise node.error(
                f"{draft}: the engine uses the main model's {name}, {main}, for the draft too; set that, or "
                "remove this",
                f"draft_{name}",
            )


def _directory(node: Node, text: str) -> Path:
    path = (node.config.base / text).resolve()
    if not path.exists():
        raise node.error(f"{path} does not exist", "draft_models_path", text)
    if not path.is_dir():
        raise node.error(
            f"{text!r}: a draft model must be a directory in OpenVINO IR form; docs/decoding.md says how to "
            "make one of a .gguf file",
            "draft_models_path",
            text,
        )
    return path
