"""Counters of image generation."""

from __future__ import annotations

from ovserve.telemetry.metrics import TO_FIRST_TOKEN, Family, Histogram, value


class ImageMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.images = 0  # that were finished
        self.edited = 0  # of these, made of an image
        self.partial = 0  # unfinished ones that were sent
        self.steps = 0  # of finished images
        self.step_seconds = Histogram(TO_FIRST_TOKEN)  # the mean of each finished image

    def count_image(self, steps: int, seconds: float, *, edited: bool = False) -> None:
        self.images += 1
        self.edited += edited
        self.steps += steps
        if steps:
            self.step_seconds.observe(seconds / steps)

    def sent_partial(self) -> None:
        """Count an unfinished image."""
        self.partial += 1


FAMILIES: tuple[Family[ImageMetrics], ...] = (
    Family(
        "ovserve_images_total",
        "counter",
        "Images that were finished.",
        value(lambda m: m.images),
    ),
    Family(
        "ovserve_images_edited_total",
        "counter",
        "Finished images that were made of an image of the request.",
        value(lambda m: m.edited),
    ),
    Family(
        "ovserve_partial_images_total",
        "counter",
        "Unfinished images that were sent in streams.",
        value(lambda m: m.partial),
    ),
    Family(
        "ovserve_image_steps_total",
        "counter",
        "Inference steps of finished images.",
        value(lambda m: m.steps),
    ),
    Family(
        "ovserve_image_step_seconds",
        "histogram",
        "Seconds per step of an image, its text and its decoding included.",
        value(lambda m: m.step_seconds),
    ),
)
