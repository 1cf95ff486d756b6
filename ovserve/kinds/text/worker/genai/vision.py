"""Prompts with images for a pipeline that sees.

What the library does with such a pipeline, found by running it (tests/engine/test_vision.py):

- It takes a prompt as text only, with a tag per image. Token ids and `echo` kill that of continuous batching;
  no request reaches it with either. What else stands for an image in a text is rejected here once more.
- There the vision part runs inside `add_request()`, before it returns; the language part in steps as ever.
- The number of tokens of a prompt is unknown until its answer is complete. So text is counted as the library
  will count it, and images by a rule that is held against the library when the model is loaded; where none is
  known, the images of one size are measured once, by a request for a single token.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import openvino
import openvino_genai as ov_genai

from ovserve.engine.model.files import ModelFiles
from ovserve.engine.protocol.messages import Add
from ovserve.engine.protocol.specs import TextFacts
from ovserve.errors import InvalidArgument, OvserveError, ResourceExhausted
from ovserve.kinds.text.worker.genai.options import sentence
from ovserve.kinds.text.worker.genai.text import ids_tensor
from ovserve.llm.images import Image, ImageTokens, Vision, tag, texts_between

IMAGE_TOKEN = -1  # stands for each token of an image among token ids
MAX_KNOWN_SIZES = 4096  # remembered
FIRST_ID = 1 << 62  # of measurements, which are requests among those of clients

# These scale and crop to one size, so one measurement is enough.
ONE_SIZE = ("llava",)
PROBES = (64, 64), (100, 333)  # pixels, of the images that are measured at load
# What stands for an image in prompts besides tokens of the vocabulary that look like it.
NATIVE = {
    "internvl_chat": ("<image>",),
    "minicpmv": ("<image>", "</image>"),
    "minicpmo": ("<image>", "</image>"),
    "phi3_v": ("<|image_",),
    "phi4mm": ("<|image_",),
}
_MARKER = re.compile(r"<[/|]?\s*\w*(image|img|vision|video|slice)\w*\s*\|?>", re.IGNORECASE)

Encode = Callable[[str, bool], list[int]]  # text, add_special_tokens
# One prompt with images answered whole: what was measured of it. Raises RuntimeError.
GenerateCall = Callable[[str, list[openvino.Tensor], ov_genai.GenerationConfig], ov_genai.PerfMetrics]

_RUNNING = ov_genai.GenerationStatus.RUNNING


class VisionInput:
    def __init__(
        self,
        encode: Encode,
        answer: GenerateCall,
        files: ModelFiles,
        facts: TextFacts,
        *,
        lookup: bool = False,
    ) -> None:
        """Measures an image: a model whose vision part does not work fails to load. Raises RuntimeError."""
        self._encode = encode
        self._answer = answer
        self._rule = Vision(facts.image_markers)
        self._lookup = lookup
        self._sizes: dict[tuple[int, int], int] = {}  # of an image: its tokens
        # Special tokens that the library puts around a text, whatever we would like; the first, as text.
        self.added, self._begin = 0, ""
        self.tokens: ImageTokens | None = None
        try:
            self.added = self._measure("a", ()) - len(encode("a", False))
            if self.added and encode("a", True)[:1] == encode(facts.bos_token, False):
                self._begin = facts.bos_token
            self.tokens = self._proven(files)
        except OvserveError as error:
            raise RuntimeError(error.message) from error

    def encode_prompt(self, request: Add) -> openvino.Tensor:
        """Ids as the library makes them, IMAGE_TOKEN for each token that is not text. Takes as long as
        the image takes to be seen, where one has a new size. Raises InvalidArgument."""
        if not isinstance(request.prompt, str) or request.sampling.echo:
            raise InvalidArgument("a vision model takes no token ids, and gives no echo", param="prompt")
        self._rule.check(request.prompt, len(request.images), "prompt")
        ids = [IMAGE_TOKEN] * self.added
        *before, last = texts_between(self.text(request), len(request.images))
        for text, image in zip(before, request.images, strict=True):
            ids += [*self._encode(text, False), *[IMAGE_TOKEN] * self._tokens_of(image)]
        return ids_tensor(ids + self._encode(last, False))

    def text(self, request: Add) -> str:
        """Return a prompt that `encode_prompt` took, as the library is to get it: a template such as Gemma's
        writes the token with which a text begins, and the library would add it a second time."""
        return str(request.prompt).removeprefix(self._begin)

    def knows(self, images: Sequence[Image]) -> bool:
        """Return whether the tokens of the images are known without a measurement."""
        return self.tokens is not None or all((i.width, i.height) in self._sizes for i in images)

    def facts(self, of_model: TextFacts) -> TextFacts:
        """Add the findings about images."""
        return msgspec.structs.replace(of_model, image_tokens=self.tokens, added_tokens=self.added)

    def answer(self, config: ov_genai.GenerationConfig) -> ov_genai.PerfMetrics:
        """Return the measurements of an answer to an arbitrary prompt. Raises RuntimeError."""
        return self._answer("a", [], config)

    def _proven(self, files: ModelFiles) -> ImageTokens | None:
        """The rule of this model, if the library counts two images by it."""
        first, second = (self._tokens_of(Image(w, h, bytes(w * h * 3))) for w, h in PROBES)
        if files.model_type in ONE_SIZE:
            return ImageTokens(same=first) if first == second else None
        if (rule := files.image_tokens) is None:
            return None
        rule = msgspec.structs.replace(rule, markers=first - rule.of(*PROBES[0]))
        return rule if second == rule.of(*PROBES[1]) else None

    def _tokens_of(self, image: Image) -> int:
        if self.tokens is not None:
            return self.tokens.of(image.width, image.height)
        size = image.width, image.height
        if size not in self._sizes:
            if len(self._sizes) >= MAX_KNOWN_SIZES:
                del self._sizes[next(iter(self._sizes))]
            self._sizes[size] = self._measure(tag(0), (image,)) - self.added
        return self._sizes[size]

    def _measure(self, prompt: str, images: Sequence[Image]) -> int:
        config = ov_genai.GenerationConfig()
        config.max_new_tokens = 1
        config.apply_chat_template = False
        if self._lookup:  # which the pipeline insists on
            config.num_assistant_tokens = config.max_ngram_size = 1
        try:
            return int(self._answer(prompt, tensors(images), config).get_num_input_tokens())
        except RuntimeError as error:
            raise InvalidArgument(f"the model cannot take this image: {sentence(error)}") from error


class Beside:
    """Answers by a pipeline of continuous batching, in parallel to all that runs: the tokens of others wait
    in their handles."""

    def __init__(self, pipeline: ov_genai.ContinuousBatchingPipeline) -> None:
        self._pipeline = pipeline
        self._ids = itertools.count(FIRST_ID)

    def __call__(
        self, prompt: str, images: list[openvino.Tensor], config: ov_genai.GenerationConfig
    ) -> ov_genai.PerfMetrics:
        handle = self._pipeline.add_request(next(self._ids), prompt, images, config)
        while handle.get_status() == _RUNNING:
            self._pipeline.step()
        if handle.get_status() != ov_genai.GenerationStatus.FINISHED:
            raise ResourceExhausted("an image does not fit into the engine's KV cache")
        return handle.get_perf_metrics()


def image_markers(vocabulary: dict[Any, int], files: ModelFiles) -> tuple[str, ...]:
    """Texts that must not come from a client, since in a prompt they stand for an image."""
    tokens = (t.decode(errors="replace") if isinstance(t, bytes) else str(t) for t in vocabulary)
    return tuple(sorted({*filter(_MARKER.fullmatch, tokens), *NATIVE.get(files.model_type, ())}))


def tensors(images: Sequence[Image]) -> list[openvino.Tensor]:
    """Copies, each of shape [1, height, width, 3]."""
    copies = [openvino.Tensor(openvino.Type.u8, openvino.Shape([1, i.height, i.width, 3])) for i in images]
    for image, copy in zip(images, copies, strict=True):
        copy.data[:] = np.frombuffer(image.rgb, np.uint8).reshape(copy.data.shape)
    return copies
