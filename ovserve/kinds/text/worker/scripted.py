"""An engine that answers from a script (`model/script.py`): for tests, examples and CI without a model.

Nothing of OpenVINO is imported for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import chain, cycle, islice, repeat

from ovserve.engine.model.script import Reply, Script, read_script
from ovserve.engine.protocol.admission import admit, context_limit
from ovserve.engine.protocol.messages import ENGINE_FAILED, Accepted, Add, Compiled, Failed, StepItem, Usage
from ovserve.engine.protocol.specs import TextFacts, TextSpec
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.kinds.text.worker.decoding import Output
from ovserve.llm.grammar import constraint
from ovserve.llm.images import ImageTokens, tag, texts_between
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling, TokenLogprob, TopToken

EXIT_CODE = 13
CACHE_BYTES = 1 << 20
IMAGE_TOKENS = 16
MARKER = "<image>"


def words(text: str) -> list[str]:
    """Cut before each blank that follows a character, like most tokenizers: joined they are the text."""
    parts = text.split(" ")
    return [part for part in [parts[0], *(" " + part for part in parts[1:])] if part]


def visible_prompt(request: Add) -> str:
    """The prompt, with images as the script sees them."""
    if not isinstance(request.prompt, str):
        return " ".join(map(str, request.prompt))
    prompt = request.prompt
    for i, image in enumerate(request.images):
        prompt = prompt.replace(tag(i), f"[{image.width}x{image.height} #{image.rgb[:3].hex()}]")
    return prompt


def scored(piece: str, sampling: Sampling) -> TokenLogprob:
    """A piece with made up log-probabilities: it is the likeliest if greedy, else only the third."""
    rank = 0 if sampling.temperature == GREEDY_TEMPERATURE else 2
    texts = [piece if i == rank else f"{piece}?{i}" for i in range(max(sampling.top_logprobs, rank + 1))]
    top_tokens = [TopToken(text, text.encode(), -0.25 - i) for i, text in enumerate(texts)]
    return TokenLogprob(
        piece, piece.encode(), top_tokens[rank].logprob, tuple(top_tokens[: sampling.top_logprobs])
    )


def _length(request: Add) -> int:
    """The length of the prompt in tokens."""
    prompt = request.prompt
    texts = texts_between(prompt, len(request.images)) if isinstance(prompt, str) else []
    counted = sum(len(text.split()) for text in texts) if texts else len(prompt)
    return counted + IMAGE_TOKENS * len(request.images)


def prover(model_path: str) -> Callable[[str], str]:
    """The compiler of the process that only compiles grammars."""
    grammars = read_script(model_path).grammars
    chunks: list[bytes] = []

    def prove(structural_tag: str) -> str:
        rule = next((grammar for grammar in grammars if grammar.match in structural_tag), None)
        if rule is None:
            return ""
        time.sleep(rule.seconds)
        until = time.process_time() + rule.cpu_seconds
        while time.process_time() < until:
            pass
        chunks.append(b"x" * rule.take_bytes)
        if rule.exit:
            os._exit(EXIT_CODE)
        return rule.refuse

    return prove


class _Running:
    __slots__ = ("beams", "left", "output", "pieces", "prompt_tokens", "reply", "sampling", "steps", "text")

    def __init__(self, request: Add, reply: Reply, prompt_tokens: int, max_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        prompt = visible_prompt(request)
        pieces = tuple(words(prompt) if reply.echo else words(reply.text or "") or reply.pieces or ())
        if not (reply.echo or reply.text or reply.pieces):
            pieces = ("ok.",)
        again = cycle(pieces) if reply.repeat == 0 else chain.from_iterable(repeat(pieces, reply.repeat))
        self.pieces = again
        self.reply, self.sampling = reply, request.sampling
        self.output = Output(request.id, request.sampling)
        self.left = max_tokens or -1
        self.steps = 0
        self.text = ""  # what was sent
        self.beams = request.sampling.n if request.sampling.beams > 1 else 1

    @property
    def read(self) -> float:
        """The part of the prompt that is read."""
        return min(1.0, self.steps / self.reply.prefill_steps) if self.reply.prefill_steps else 1.0

    def other_beams(self) -> list[StepItem]:
        """A search over a script finds the same text in every beam."""
        output = self.output
        return [
            StepItem(output.id, self.text, output.total, output.finish, i, None, i == self.beams - 1)
            for i in range(1, self.beams)
        ]


class Words:
    """The script's tokenizer: words, as in admission; joined again by one blank each."""

    def __init__(self, script: Script) -> None:
        self._seconds = script.tokenize_seconds
        self._known: dict[str, int] = {}  # every word met is a token; ids in order of appearance

    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]:
        time.sleep(self._seconds)
        ids = self._known
        return [[ids.setdefault(word, len(ids)) for word in text.split()] for text in texts]

    def detokenize(
        self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool, escaped: bool
    ) -> list[str]:
        time.sleep(self._seconds)
        met = list(self._known)
        unknown = next((id_ for row in rows for id_ in row if not 0 <= id_ < len(met)), None)
        if unknown is not None:
            raise InvalidArgument(
                f"token id {unknown} is not in the vocabulary of {len(met)}", param="tokens"
            )
        return [" ".join(met[id_] for id_ in row) for row in rows]


def words_of(path: str) -> Words:
    """The tokenizer for a process that only tokenizes; it does not know words that another has met."""
    return Words(read_script(path))


class Grammars:
    """They are all accepted, because the prover has checked them."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self._compiled: list[Compiled] = []

    @property
    def compiling(self) -> bool:
        return bool(self._compiled)

    def compile(self, id_: int, structural_tag: str, *, validated: bool = False) -> None:
        self._compiled.append(Compiled(id_))
        self.tags.add(structural_tag)

    def compiled(self) -> list[Compiled | Failed]:
        compiled, self._compiled = self._compiled, []
        return [*compiled]

    def clear(self) -> None:
        self.tags.clear()


class ScriptedEngine:
    def __init__(self, spec: TextSpec) -> None:
        script = read_script(spec.model_path).varied(spec)
        if any(reply.refuse == ENGINE_FAILED for reply in script.replies):
            raise LoadError(f"`refuse` cannot be {ENGINE_FAILED!r}: use raise_in_step", file=spec.model_path)
        time.sleep(script.load_seconds)
        while script.load == "hang" and not os.path.exists(f"{os.path.dirname(spec.model_path)}/go"):
            time.sleep(0.01)
        if script.load == "exit":
            print("about to exit while loading", flush=True)  # noqa: T201  so that tests see a log tail
            os._exit(EXIT_CODE)
        elif script.load not in ("ok", "hang"):
            raise LoadError("the script says that loading fails")
        self._script = script
        self._mode = spec.decoding
        self._live: dict[int, _Running] = {}
        self.grammars = Grammars()
        self._taken: list[bytes] = []
        self.text = Words(script)
        self.facts = TextFacts(
            max_length=context_limit(script.max_length, spec.max_model_len),
            chat_template=script.chat_template,
            eos_token=script.eos_token,
            longest_token=script.longest_token,
            vocab_size=script.vocab_size,
            vision=script.vision,
            image_markers=(MARKER,) if script.vision else (),
            image_tokens=ImageTokens(same=IMAGE_TOKENS) if script.vision else None,
            generation_config=script.generation_config,
            architecture="scripted",
            engine="scripted",
            load_seconds=script.load_seconds,
        )

    @property
    def busy(self) -> bool:
        return bool(self._live)

    def live(self) -> list[int]:
        return list(self._live)

    def encode_prompts(self, requests: list[Add]) -> dict[int, int]:
        return {request.id: _length(request) for request in requests}

    def can_schedule(self, request: Add, encoded: int | None) -> bool:
        return True

    def add(self, request: Add, encoded: int | None = None) -> Accepted:
        if request.id in self._live:
            raise Internal(f"request {request.id} is already running")
        form = request.sampling.constraint
        if form is not None and constraint.structural_tag(form.format) not in self.grammars.tags:
            raise Internal("this grammar was not compiled before")
        prompt_tokens = _length(request)
        max_tokens = admit(prompt_tokens, self.facts.max_length, request.sampling, mode=self._mode)
        text = visible_prompt(request)
        reply = next((reply for reply in self._script.replies if reply.match in text), Reply())
        self._taken.append(b"x" * reply.take_bytes)
        self._live[request.id] = _Running(request, reply, prompt_tokens, max_tokens)
        return Accepted(request.id, prompt_tokens, max_tokens, reply.cached_tokens)

    def abort(self, request_id: int) -> None:
        self._live.pop(request_id, None)

    def step(self) -> None:
        replies = [running.reply for running in self._live.values()]
        time.sleep(max([self._script.step_seconds, *(reply.step_seconds for reply in replies)]))
        for running in self._live.values():
            running.steps += 1
            if running.reply.raise_in_step == running.steps:
                raise RuntimeError("Exception from script.cpp:1:\nthe script says that this step raises")
            if running.reply.exit_in_step == running.steps:
                os._exit(EXIT_CODE)

    def collect(self) -> list[StepItem | Failed]:
        items: list[StepItem | Failed] = []
        for request_id, running in list(self._live.items()):
            if running.steps <= running.reply.wait_steps + running.reply.prefill_steps:
                continue
            word = self._refused(running) or self._advance(running)
            if word:
                items.append(word)
            if isinstance(word, StepItem):
                running.text += word.text
            if isinstance(word, Failed) or running.output.finish:
                del self._live[request_id]
                items += [] if isinstance(word, Failed) else running.other_beams()
        return items

    def usage(self) -> Usage:
        """A request that waits for its first piece counts as not scheduled."""
        scheduled = sum(running.steps > running.reply.wait_steps for running in self._live.values())
        prefilled = [r.read for r in self._live.values() if r.reply.prefill_steps]
        to_prefill = tuple(
            (i, round((1 - r.read) * r.prompt_tokens)) for i, r in self._live.items() if r.read < 1
        )
        cache = max([self._script.cache_usage, *prefilled])
        return Usage(len(self._live), scheduled, cache, CACHE_BYTES, to_prefill)

    def _refused(self, running: _Running) -> Failed | None:
        kind = running.reply.refuse
        return Failed(running.output.id, kind, f"the script rejects this: {kind}") if kind else None

    def _advance(self, running: _Running) -> StepItem | None:
        output, reply = running.output, running.reply
        count = reply.burst if running.left < 0 else min(reply.burst, running.left)
        pieces = list(islice(running.pieces, count))
        output.count(len(pieces))
        if self._mode == "paged":
            output.add_logprobs([scored(piece, running.sampling) for piece in pieces])
        running.left -= len(pieces) if running.left > 0 else 0
        matched = output.add_text("".join(pieces))
        if not matched:
            if len(pieces) < reply.burst and running.left != 0:
                output.finish = reply.finish
            elif running.left == 0:
                output.finish = "length"
        return output.take()
