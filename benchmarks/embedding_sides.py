"""One side of `benchmarks.embeddings` that is a library, in a process of its own: bare, fastembed, transformers.

    python benchmarks/embedding_sides.py bare|fastembed|sentence-transformers DIRECTORY

Standard input has `{"clients", "texts"}` and, after a line of output, any line that starts them; their output
is `{"seconds", "cpu", "note"}`. A library has no server, so it gets the texts in calls of as many as there are clients, which is the best that
a server around it could do. `bare` is the compiled model without tokenizer: it tries batch sizes, one stream
over all cores and a stream per core, sorted by length, and keeps the fastest of each row. It has as many texts in work at a time as there are clients,
because each waits for its answer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Embed = Callable[[Sequence[str], int], str]  # texts and clients; what was chosen


def fastembed(directory: Path) -> Embed:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="none/none"),
        dim=384,
        model_file="model.onnx",
    )
    model = TextEmbedding("minilm", specific_model_path=str(directory))

    def embed(texts: Sequence[str], clients: int) -> str:
        for i in range(0, len(texts), clients):
            list(model.embed(list(texts[i : i + clients]), batch_size=clients))
        return ""

    return embed


def sentence_transformers(directory: Path) -> Embed:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(directory), device="cpu")
    model.max_seq_length = 512

    def embed(texts: Sequence[str], clients: int) -> str:
        for i in range(0, len(texts), clients):
            model.encode(list(texts[i : i + clients]), batch_size=min(clients, 32), normalize_embeddings=True)
        return ""

    return embed


class Bare:
    """The pooled model, compiled both ways."""

    def __init__(self, directory: Path) -> None:
        import openvino as ov

        from ovserve.engine.host.cpu import properties_of
        from ovserve.kinds.encoders.worker import model as models
        from ovserve.kinds.encoders.worker.model import FastTokenizer

        pooled = models.pool(models.read(directory), "MEAN", True)
        cores = models.usable_cores()
        core = ov.Core()
        precision = properties_of("{}", "CPU")
        self._forms = {
            "one stream": self._requests(
                core.compile_model(pooled, "CPU", {**precision, "PERFORMANCE_HINT": "LATENCY"}), 1
            ),
            f"{cores} streams": self._requests(
                core.compile_model(pooled, "CPU", {**precision, "NUM_STREAMS": cores}), cores
            ),
        }
        self._tokenizer = FastTokenizer(directory / "tokenizer.json")
        self._best: dict[tuple[int, int], tuple[str, int]] = {}

    def _requests(self, compiled: Any, count: int) -> list[Any]:
        return [compiled.create_infer_request() for _ in range(count)]

    def prepare(self, texts: Sequence[str], clients: int) -> Callable[[], str]:
        """Tokenise and choose; return what is timed."""
        rows = self._tokenizer.encode(texts)
        key = (clients, sum(map(len, rows)))
        if key not in self._best:
            some = rows[: max(clients, len(rows) // 4)]
            tried = {
                (form, b): self._seconds(form, b, some, clients)
                for form, requests in self._forms.items()
                for b in (1, 2, 4, 8, 16, 32)
                if b * min(len(requests), clients) <= clients
            }
            self._best[key] = min(tried, key=lambda choice: tried[choice])
        form, size = self._best[key]

        def run() -> str:
            self._seconds(form, size, rows, clients)
            return f"{form}, batch {size}"

        return run

    def _seconds(self, form: str, size: int, rows: Sequence[Any], clients: int) -> float:
        batches = []
        for i in range(0, len(rows), clients):
            window = sorted(rows[i : i + clients], key=len)
            batches += [window[j : j + size] for j in range(0, len(window), size)]
        began = time.perf_counter()
        workers = [
            threading.Thread(target=self._work, args=(r, batches)) for r in self._forms[form][:clients]
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - began

    def _work(self, request: Any, batches: list[Any]) -> None:
        import numpy as np

        while batches:
            try:
                batch = batches.pop()
            except IndexError:
                return
            ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
            mask = np.zeros_like(ids)
            for i, row in enumerate(batch):
                ids[i, : len(row)] = row
                mask[i, : len(row)] = 1
            request.infer(
                {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)},
                share_inputs=True,
            )


def main(kind: str, directory: str) -> None:
    place = Path(directory)
    bare = Bare(place) if kind == "bare" else None
    makers: dict[str, Callable[..., Any]] = {
        "fastembed": fastembed,
        "sentence-transformers": sentence_transformers,
    }
    embed: Any = makers[kind](place) if kind in makers else None
    out = os.fdopen(os.dup(1), "w")
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        texts, clients = asked["texts"], asked["clients"]
        run = bare.prepare(texts, clients) if bare is not None else partial(embed, texts, clients)
        print(json.dumps({"ready": True}), file=out, flush=True)
        sys.stdin.readline()
        before, began = os.times(), time.perf_counter()
        note = run()
        seconds, after = time.perf_counter() - began, os.times()
        cpu = after.user + after.system - before.user - before.system
        print(json.dumps({"seconds": seconds, "cpu": cpu, "note": note}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
