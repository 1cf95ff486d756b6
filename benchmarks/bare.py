"""The bare engine: openvino_genai's continuous batching in a plain loop, in a child process of its own.

Started by `compare.py` (`python -m benchmarks.bare`), never by hand. One JSON object per line on stdin asks,
one on stdout answers: `prompts` makes texts of an exact number of tokens, `known` takes one of another engine,
`run` generates. Token ids in, step(), ids out; no text is decoded. Between questions it blocks in a read and
burns nothing.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import deque
from typing import Any

import openvino
import openvino_genai as ov_genai

SCHEDULER_FIELDS = (
    "cache_size",
    "num_kv_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "dynamic_split_fuse",
    "enable_prefix_caching",
)


class Bare:
    def __init__(self, spec: dict[str, Any]) -> None:
        """`spec` is the graph's TextSpec, so both sides have the same scheduler and device."""
        began = time.monotonic()
        config = ov_genai.SchedulerConfig()
        for name in SCHEDULER_FIELDS:
            setattr(config, name, spec[name])
        self.pipeline = ov_genai.ContinuousBatchingPipeline(
            spec["model_path"], config, spec["device"], json.loads(spec["properties"])
        )
        self.load_seconds = time.monotonic() - began
        self.tokenizer = self.pipeline.get_tokenizer()
        self.ids: dict[str, list[int]] = {}
        self.last_id = 0
        vocabulary = (bytes(word) for word in self.tokenizer.get_vocab())
        self.words = sorted(
            w[1:].decode()
            for w in vocabulary
            if 5 <= len(w) <= 9 and w.startswith(b" ") and w[1:].isalpha() and w[1:].islower()
        )

    def prompts(self, count: int, tokens: int, seed: int) -> list[str]:
        """Random words, so that no two prompts share a beginning; each checked to have `tokens` tokens."""
        random_ = random.Random(seed)
        found: list[str] = []
        while len(found) < count:
            text = " ".join(random_.choices(self.words, k=tokens))
            ids = self.tokenizer.encode(text).input_ids.data[0].tolist()
            if len(ids) > tokens:  # a word of several tokens; take as many as fit
                text = self.tokenizer.decode(ids[:tokens])
                ids = self.tokenizer.encode(text).input_ids.data[0].tolist()
            if len(ids) == tokens:
                self.ids[text] = ids
                found.append(text)
        return found

    def known(self, text: str) -> None:
        """A prompt that another engine of the same model has made."""
        self.ids[text] = self.tokenizer.encode(text).input_ids.data[0].tolist()

    def run(self, prompts: list[str], concurrency: int, tokens: int) -> list[dict[str, Any]]:
        """All prompts, `concurrency` at once. Of each: when it was added, and when each token was readable."""
        config = ov_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.apply_chat_template = False
        waiting = deque(self.ids.pop(text) for text in prompts)
        live: dict[int, tuple[ov_genai.GenerationHandle, dict[str, Any]]] = {}
        done: list[dict[str, Any]] = []
        pipeline = self.pipeline
        while waiting or live:
            while waiting and len(live) < concurrency:
                ids = waiting.popleft()
                tensor = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, len(ids)]))
                tensor.data[0] = ids
                self.last_id += 1
                answer: dict[str, Any] = {"sent": time.monotonic(), "times": []}
                live[self.last_id] = pipeline.add_request(self.last_id, tensor, config), answer
            pipeline.step()
            finished = []
            for id_, (handle, answer) in live.items():
                if handle.can_read():
                    for part in handle.read().values():
                        now = time.monotonic()
                        answer["times"] += [now] * len(part.generated_ids)
                    if len(answer["times"]) >= tokens:
                        finished.append(id_)
            for id_ in finished:
                done.append(live.pop(id_)[1])
        while pipeline.has_non_finished_requests():
            pipeline.step()
        return done


def main() -> None:
    # The library may print; answers go to a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    bare = Bare(json.loads(sys.stdin.readline()))
    answer({"load_seconds": bare.load_seconds})
    for line in sys.stdin:
        asked = json.loads(line)
        answer(getattr(bare, asked.pop("op"))(**asked))
    os._exit(0)  # native destructors may take long


if __name__ == "__main__":
    main()
