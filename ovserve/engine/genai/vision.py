"""Prompts with images for a pipeline that sees; used by the engine when the model is one.

What the library does with such a pipeline, found by running it (tests/engine/test_vision.py):

- It takes a prompt as text only, with a tag per image. Token ids kill it, and so does `echo`; no request
  reaches it with either.
- The vision part runs inside `add_request()`, before it returns; the language part in steps as ever.
- Nothing tells how many tokens a prompt has until its answer is complete. So the images of one size are
  measured once, by a request for a single token, and text is counted as the library will count it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai as ov_genai

from ovserve.engine.genai.options import sentence
from ovserve.engine.genai.text import ids_tensor
from ovserve.engine.messages import Add
from ovserve.engine.model_files import ModelFiles
from ovserve.errors import InvalidArgument, OvserveError, ResourceExhausted
from ovserve.llm.images import Image, tag

IMAGE = -1  # stands for each token of an image among token ids
SIZES = 4096  # remembered
FIRST_ID = 1 << 62  # of measurements, which are requests among those of clients

# These scale and crop to one size, so one measurement is enough.
ONE_SIZE = ("llava",)
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
_RUNNING = ov_genai.GenerationStatus.RUNNING


class VisionInput:
    def __init__(
        self,
        pipeline: ov_genai.ContinuousBatchingPipeline,
        encode: Encode,
        files: ModelFiles,
        *,
        lookup: bool,
    ) -> None:
        """Measures an image: a model whose vision part does not work fails to load. Raises RuntimeError."""
        self._pipeline = pipeline
        self._encode = encode
        self._lookup = lookup
        self._one_size = files.model_type in ONE_SIZE
        self._sizes: dict[tuple[int, int], int] = {}  # of an image: its tokens
        self._ids = itertools.count(FIRST_ID)
        # Special tokens that the library puts around a text, whatever we would like.
        self._added = 0
        try:
            self._added = self._measure("a", ()) - len(encode("a", False))
            self._tokens_of(Image(64, 64, bytes(64 * 64 * 3)))
        except OvserveError as error:
            raise RuntimeError(error.message) from error

    def encode_prompt(self, request: Add) -> openvino.Tensor:
        """Ids as the library makes them, IMAGE for each token that is no text. Takes as long as the image
        takes to be seen, where one has a new size. Raises InvalidArgument."""
        if not isinstance(request.prompt, str) or request.sampling.echo:
            raise InvalidArgument("a vision model takes no token ids, and gives no echo", param="prompt")
        ids = [IMAGE] * self._added
        rest = request.prompt
        for i, image in enumerate(request.images):
            before, found, rest = rest.partition(tag(i))
            if not found:
                raise InvalidArgument(f"the prompt has no place for image {i}", param="prompt")
            ids += [*self._encode(before, False), *[IMAGE] * self._tokens_of(image)]
        return ids_tensor(ids + self._encode(rest, False))

    def add(self, id_: int, prompt: str, images: Sequence[Image], config: ov_genai.GenerationConfig) -> Any:
        """The library's handle. Raises RuntimeError."""
        return self._pipeline.add_request(id_, prompt, [_tensor(image) for image in images], config)

    def answer(self, config: ov_genai.GenerationConfig) -> ov_genai.PerfMetrics:
        """What was measured of an answer to nothing in particular. Raises RuntimeError."""
        return self._run("a", (), config)

    def _tokens_of(self, image: Image) -> int:
        size = (0, 0) if self._one_size else (image.width, image.height)
        if size not in self._sizes:
            if len(self._sizes) >= SIZES:
                del self._sizes[next(iter(self._sizes))]
            self._sizes[size] = self._measure(tag(0), (image,)) - self._added
        return self._sizes[size]

    def _measure(self, prompt: str, images: Sequence[Image]) -> int:
        config = ov_genai.GenerationConfig()
        config.max_new_tokens = 1
        config.apply_chat_template = False
        if self._lookup:  # which the pipeline insists on
            config.num_assistant_tokens = config.max_ngram_size = 1
        try:
            return int(self._run(prompt, images, config).get_num_input_tokens())
        except RuntimeError as error:
            raise InvalidArgument(f"the model cannot take this image: {sentence(error)}") from error

    def _run(
        self, prompt: str, images: Sequence[Image], config: ov_genai.GenerationConfig
    ) -> ov_genai.PerfMetrics:
        """To its end, beside all that runs; the others' tokens wait in their handles."""
        handle = self.add(next(self._ids), prompt, images, config)
        while handle.get_status() == _RUNNING:
            self._pipeline.step()
        if handle.get_status() != ov_genai.GenerationStatus.FINISHED:
            raise ResourceExhausted("an image does not fit into the engine's KV cache")
        return handle.get_perf_metrics()


def image_markers(vocabulary: dict[Any, int], files: ModelFiles) -> tuple[str, ...]:
    """Texts that must not come from a client, since in a prompt they stand for an image."""
    tokens = (t.decode(errors="replace") if isinstance(t, bytes) else str(t) for t in vocabulary)
    return tuple(sorted({*filter(_MARKER.fullmatch, tokens), *NATIVE.get(files.model_type, ())}))


def _tensor(image: Image) -> openvino.Tensor:
    """A copy, height by width by colour."""
    tensor = openvino.Tensor(openvino.Type.u8, openvino.Shape([1, image.height, image.width, 3]))
    tensor.data[:] = np.frombuffer(image.rgb, np.uint8).reshape(tensor.data.shape)
    return tensor
