"""Counters of image generation."""

from __future__ import annotations

from dataclasses import dataclass

from ovserve.telemetry.metrics import TO_FIRST_TOKEN, Histogram, counter, histogram


@dataclass(eq=False)
class ImageMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    images: int = counter("ovserve_images_total", "Images that were finished.")
    edited: int = counter(
        "ovserve_images_edited_total", "Finished images that were made of an image of the request."
    )
    partial: int = counter("ovserve_partial_images_total", "Unfinished images that were sent in streams.")
    steps: int = counter("ovserve_image_steps_total", "Inference steps of finished images.")
    step_seconds: Histogram = histogram(
        "ovserve_image_step_seconds",
        "Seconds per step of an image, its text and its decoding included.",
        TO_FIRST_TOKEN,
    )

    def count_image(self, steps: int, seconds: float, *, edited: bool = False) -> None:
        self.images += 1
        self.edited += edited
        self.steps += steps
        if steps:
            self.step_seconds.observe(seconds / steps)
