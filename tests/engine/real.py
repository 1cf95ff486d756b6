"""Drive a real engine step by step in this process: `generate(engine, prompt, **sampling)`; used by the tests
of `ovserve/kinds/text/worker/genai/`."""

from __future__ import annotations

from typing import Any

import openvino_genai as ov_genai

from ovserve.engine.protocol.messages import Abort, Accepted, Add, Failed, StepItem
from ovserve.engine.worker.steps import AdmissionQueue
from ovserve.kinds.text.worker.genai import GenAIEngine, StatefulEngine
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.llm.images import Image
from ovserve.llm.request import Sampling
from tests.short_model import EXACT as EXACT

Engine = GenAIEngine | StatefulEngine | PagedEngine

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
FRANCE = CHAT.format("What is the capital of France?")
STORY = CHAT.format("Tell me a long story about a dragon.")
LIST = CHAT.format("Repeat this list: apple banana cherry apple banana cherry apple banana cherry.")


class Result:
    def __init__(self) -> None:
        self.deltas: list[str] = []
        self.reads: list[int] = []  # tokens of each item
        self.drafted = self.accepted = 0
        self.logprobs: list[float | None] = []
        self.finish: str | None = None
        self.failed: Failed | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    def take(self, item: StepItem) -> None:
        assert self.finish is None
        self.deltas.append(item.text)
        self.reads.append(item.tokens)
        self.drafted += item.drafted
        self.accepted += item.accepted
        self.logprobs += [token.logprob for token in item.logprobs or ()]
        self.finish = item.finish_reason

    @property
    def tokens(self) -> int:
        return sum(self.reads)


def add(engine: Engine, id_: int, prompt: str | tuple[int, ...], **sampling: Any) -> Accepted:
    sampling = {"temperature": 0.0, "max_tokens": 40, **sampling}
    return engine.add(Add(id_, prompt, False, Sampling(**sampling)))


def run(engine: Engine) -> dict[int, Result]:
    """To the end of all that was added, by id."""
    results: dict[int, Result] = {}
    for _ in range(2000):
        if not engine.busy:
            return results
        engine.step()
        for word in engine.collect():
            result = results.setdefault(word.id, Result())
            assert result.finish is None
            assert result.failed is None
            if isinstance(word, StepItem):
                result.take(word)
            else:
                result.failed = word
    raise AssertionError("the engine never finished")


class Queued:
    """An engine behind the worker's queue, as the loop of `worker/steps.py` drives it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.queue = AdmissionQueue(engine)
        self.accepted: dict[int, Accepted] = {}
        self.results: dict[int, Result] = {}
        self.most = 0  # requests in the engine at a time
        self._messages: list[Add | Abort] = []

    def add(
        self, id_: int, prompt: str | tuple[int, ...], images: tuple[Image, ...] = (), **sampling: Any
    ) -> None:
        sampling = {"temperature": 0.0, "max_tokens": 40, **sampling}
        self.results[id_] = Result()
        self._messages.append(Add(id_, prompt, False, Sampling(**sampling), images))

    def abort(self, id_: int) -> None:
        del self.results[id_]
        self._messages.append(Abort(id_))

    def step(self) -> None:
        messages, self._messages = self._messages, []
        self.queue.begin()
        for message in self.queue.take(messages):
            if isinstance(message, Add):
                self.accepted[message.id] = self.engine.add(message, self.queue.encoded(message))
            else:
                assert isinstance(message, Abort)
                self.engine.abort(message.id)
        if self.engine.busy:
            self.most = max(self.most, len(self.engine.live()))
            self.engine.step()
            for item in self.engine.collect():
                assert isinstance(item, StepItem), item
                self.results[item.id].take(item)

    def run(self) -> dict[int, Result]:
        """To the end of all that was added."""
        for _ in range(20_000):
            if not (self._messages or self.queue.waiting or self.engine.busy):
                assert all(result.finish for result in self.results.values())
                return self.results
            self.step()
        raise AssertionError("the engine never finished")


def generate(engine: Engine, prompt: str | tuple[int, ...], **sampling: Any) -> Result:
    add(engine, 1, prompt, **sampling)
    return run(engine)[1]


def bare_ids(engine: GenAIEngine, prompt: str, **settings: Any) -> list[int]:
    """The ids the library gives without our rules, at most 40."""
    config = ov_genai.GenerationConfig()
    config.apply_chat_template = False
    [end] = engine.facts.eos_token_ids
    config.eos_token_id, config.stop_token_ids, config.max_new_tokens = end, {end}, 40
    if engine._mode != "plain":
        config.num_assistant_tokens = 5
    if engine._mode == "prompt_lookup":
        config.max_ngram_size = 3
    for name, value in settings.items():
        setattr(config, name, value)
    ids = engine.text._tokenizer.encode(prompt, add_special_tokens=False).input_ids
    handle = engine._pipeline.add_request(99, ids, config)
    given: list[int] = []
    while engine._pipeline.has_non_finished_requests():
        engine._pipeline.step()
        if handle.can_read():
            given += [id_ for part in handle.read().values() for id_ in part.generated_ids]
    return given
