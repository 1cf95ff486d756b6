"""One call of the image engine: images one after the other, with steps and partial images in between.

The library draws on a thread of its own here, and reports steps on another. The callback must not raise:
the library then ends the process. Reports that wait when the run ends are dropped. A run that is stopped
returns a tensor without content.

Images between the library's tensors, pixels in blobs, and the base64 form of files.
"""

from __future__ import annotations

import binascii
import io
import threading
import time
import traceback
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import openvino
from numpy.typing import NDArray
from PIL import Image as Pillow

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import Internal
from ovserve.kinds.images.spec import Format, GenerateArguments, ImageItem, Raster
from ovserve.kinds.images.worker.errors import of_request

Image = NDArray[np.uint8]  # [height, width, 3]


def tensor_of(blob: Any, raster: Raster) -> Any:
    """Return a tensor [1, height, width, 3] of the pixels in a blob."""
    pixels = np.frombuffer(blob, np.uint8).reshape(1, raster.height, raster.width, 3)
    return openvino.Tensor(np.array(pixels))


def pixels_of(tensor: Any) -> Image:
    """Return a copy of the first image. Raises Internal for what a stopped run returns."""
    shape = tuple(tensor.shape)
    if len(shape) != 4 or shape[-1] != 3:
        raise Internal(f"the library returned an image of shape {list(shape)}")
    pixels: Image = np.array(tensor.data[0], np.uint8)
    return pixels


def encoded(image: Image, format_: Format, quality: int) -> bytes:
    """Return base64 of a file, which goes into the answer as it is. `quality` has no effect on png."""
    file = io.BytesIO()
    options = {} if format_ == "png" else {"quality": quality}
    Pillow.fromarray(image).save(file, format_, **options)
    return binascii.b2a_base64(file.getbuffer(), newline=False)


class Drawing:
    def __init__(
        self,
        pipeline: Any,
        arguments: GenerateArguments,
        adapters: dict[str, Any],
        invocation: Invocation,
        truncated: tuple[str, ...] = (),
    ) -> None:
        """`truncated` is repeated in every item."""
        self._pipeline, self._asked, self._invocation = pipeline, arguments, invocation
        self._options, self._truncated = arguments.options | adapters, truncated
        rasters = [raster for raster in (arguments.image, arguments.mask) if raster is not None]
        self._inputs = [tensor_of(b, r) for b, r in zip(invocation.blobs, rasters, strict=True)]
        self._items: SimpleQueue[Result | BaseException | None] = SimpleQueue()
        self._left = threading.Event()

    def items(self) -> Iterator[Result]:
        """Yield the items. Raises InvalidArgument for an option that the model rejects."""
        thread = threading.Thread(target=self._run, name="drawing", daemon=True)
        thread.start()
        try:
            while (item := self._items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._left.set()
            thread.join()

    @property
    def _stopped(self) -> bool:
        return self._left.is_set() or self._invocation.cancelled

    def _run(self) -> None:
        try:
            for index, seed in enumerate(self._asked.seeds):
                if self._stopped:
                    break
                self._draw(index, seed)
            self._items.put(None)
        except RuntimeError as error:
            self._items.put(of_request(error) or error)
        except BaseException as error:  # noqa: BLE001  it is raised where the items are read
            self._items.put(error)

    def _draw(self, index: int, seed: int) -> None:
        began = time.monotonic()
        steps = _Steps(self, index)
        # One run per image: with num_images_per_prompt the first image differs from that of a single one.
        tensor = self._pipeline.generate(
            self._asked.prompt, *self._inputs, rng_seed=seed, callback=steps, **self._options
        )
        if self._stopped:
            return
        steps.end()
        image = pixels_of(tensor)
        height, width = image.shape[:2]
        seconds = round(time.monotonic() - began, 4)
        self.put(
            image, ImageItem("image", index, steps=steps.steps, width=width, height=height, seconds=seconds)
        )

    def put(self, image: Image, item: ImageItem) -> None:
        self.report(item, (encoded(image, self._asked.format, self._asked.quality),))

    def report(self, item: ImageItem, blobs: tuple[bytes, ...] = ()) -> None:
        if self._truncated:
            item = msgspec.structs.replace(item, truncated=self._truncated)
        self._items.put(Result(item, blobs))


class _Steps:
    """The callback of one image. Returns True to stop the run."""

    def __init__(self, drawing: Drawing, index: int) -> None:
        self._drawing, self._index = drawing, index
        self._asked, self._pipeline = drawing._asked, drawing._pipeline
        self._partials = 0  # that have been sent
        self._done = 0
        self.steps = int(self._asked.options.get("num_inference_steps", 0))  # an edit does fewer

    def __call__(self, step: int, steps: int, latent: Any) -> bool:
        try:
            self.steps = steps
            if self._drawing._stopped:
                return True
            self._report(step + 1, steps, latent)
        except Exception:  # noqa: BLE001  an exception that leaves here ends the process
            traceback.print_exc()
        return False

    def _report(self, step: int, steps: int, latent: Any) -> None:
        if self._asked.progress:
            self._drawing.report(ImageItem("step", self._index, step, steps))
            self._done = step
        partials = self._asked.partial_images
        # The k-th of n is due at k/(n+1) of the way, so that the last one is not the image itself.
        if (
            self._partials < partials
            and step * (partials + 1) >= (self._partials + 1) * steps
            and step < steps
        ):
            image = pixels_of(self._pipeline.decode(latent))
            item = ImageItem(
                "partial", self._index, step, steps, self._partials, image.shape[1], image.shape[0]
            )
            self._partials += 1
            self._drawing.put(image, item)

    def end(self) -> None:
        """Report the last step if it was dropped, like 19 of 20 steps of 1 ms with a callback of 20 ms."""
        if self._asked.progress and self._done < self.steps:
            self._drawing.report(ImageItem("step", self._index, self.steps, self.steps))
