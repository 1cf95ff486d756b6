"""Measurements of image generation, per servable."""

from __future__ import annotations

from ovserve.telemetry.histogram import TO_FIRST_TOKEN, Histogram


class ImageMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.images = 0  # that were finished
        self.edited = 0  # of these, made of an image
        self.partial = 0  # unfinished ones that were sent
        self.steps = 0  # of finished images
        self.step_seconds = Histogram(TO_FIRST_TOKEN)  # the mean of each finished image

    def drawn(self, steps: int, seconds: float, *, edited: bool = False) -> None:
        """Count a finished image."""
        self.images += 1
        self.edited += edited
        self.steps += steps
        if steps:
            self.step_seconds.observe(seconds / steps)

    def sent_partial(self) -> None:
        """Count an unfinished image."""
        self.partial += 1
