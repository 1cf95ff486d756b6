"""The facts about its model that an engine of this package sends with Ready."""

from __future__ import annotations

import openvino_genai as ov_genai

from ovserve.engine.model.files import ModelFiles
from ovserve.engine.protocol.specs import TextFacts
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.vision import image_markers


def engine_facts(
    files: ModelFiles,
    tokenizer: ov_genai.Tokenizer,
    defaults: ov_genai.GenerationConfig,
    max_length: int | None,
    cache_bytes: int,
    load_seconds: float,
) -> TextFacts:
    """`defaults` is what the library read of generation_config.json."""
    ends = [defaults.eos_token_id, *files.end_token_ids, *sorted(defaults.stop_token_ids)]
    ends.append(tokenizer.get_eos_token_id())
    if (last := max(ends)) >= (size := files.vocab_size or len(tokenizer.get_vocab())):
        raise LoadError(f"token {last} ends texts; the model has {size} tokens, so its files are of two")
    return TextFacts(
        max_length=max_length,
        chat_template=files.chat_template or tokenizer.get_original_chat_template() or None,
        tool_template=files.tool_template,
        bos_token=tokenizer.get_bos_token(),
        eos_token=tokenizer.get_eos_token(),
        pad_token=tokenizer.get_pad_token(),
        pad_token_id=pad if (pad := tokenizer.get_pad_token_id()) >= 0 else None,
        eos_token_ids=tuple(dict.fromkeys(id_ for id_ in ends if id_ >= 0)),
        add_bos_token=files.add_bos_token,
        vocab_size=size,
        generation_config=files.generation_config,
        architecture=files.architecture,
        vision=files.vision,
        image_markers=image_markers(tokenizer.get_vocab(), files) if files.vision else (),
        engine=f"openvino-genai {ov_genai.get_version()}",
        cache_bytes=cache_bytes,
        load_seconds=round(load_seconds, 3),
    )
