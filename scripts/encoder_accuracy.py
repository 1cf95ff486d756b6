"""Compare an embedding model with the answers of sentence-transformers on the 200 texts of the tests, in float32.

    python -m scripts.encoder_accuracy reference SOURCE VECTORS.npy    in an environment with sentence-transformers
    python -m scripts.encoder_accuracy compare DIRECTORY VECTORS.npy   in ours

SOURCE is a directory of sentence-transformers, DIRECTORY the same model as `ovserve pull` left it.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from scripts.encoder_goldens import texts


def reference(source: str, file: str) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(source, device="cpu")
    model.max_seq_length = 512
    np.save(file, model.encode(texts(), batch_size=1, normalize_embeddings=True))


def compare(directory: str, file: str) -> None:
    import msgspec

    from ovserve.engine.protocol.call_backend import Invocation
    from ovserve.engine.protocol.messages import Call
    from ovserve.kinds.encoders.spec import EMBED, SEPARATOR, EmbedArguments, EmbeddingSpec
    from ovserve.kinds.encoders.worker.embed import EmbeddingBackend

    backend = EmbeddingBackend(EmbeddingSpec(directory, properties='{"INFERENCE_PRECISION_HINT": "f32"}'))

    def embed(some: list[str]) -> np.ndarray:
        call = Call(
            1, EMBED, msgspec.msgpack.encode(EmbedArguments(truncate=512)), (msgspec.msgpack.encode(some),)
        )
        (result,) = backend.call(Invocation(call))
        return np.array([json.loads(part) for part in bytes(result.blobs[0]).split(SEPARATOR)])

    expected, together = np.load(file), embed(texts())
    alone = np.concatenate([embed([text]) for text in texts()[::8]])
    cosine = (together * expected).sum(axis=1)
    print(f"cosine: least {cosine.min():.7f}, mean {cosine.mean():.7f}")
    print(f"a text alone and among 199 others differ by at most {np.abs(alone - together[::8]).max():.1e}")


if __name__ == "__main__":
    {"reference": reference, "compare": compare}[sys.argv[1]](*sys.argv[2:])
