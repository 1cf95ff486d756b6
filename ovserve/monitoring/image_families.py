"""The metrics of image generation. OVMS has none for it."""

from __future__ import annotations

from ovserve.monitoring.family import Family, value

FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_images_total",
        "counter",
        "Images that were finished.",
        value(lambda m: m.metrics.images.images),
    ),
    Family(
        "ovserve_images_edited_total",
        "counter",
        "Finished images that were made of an image of the request.",
        value(lambda m: m.metrics.images.edited),
    ),
    Family(
        "ovserve_partial_images_total",
        "counter",
        "Unfinished images that were sent in streams.",
        value(lambda m: m.metrics.images.partial),
    ),
    Family(
        "ovserve_image_steps_total",
        "counter",
        "Inference steps of finished images.",
        value(lambda m: m.metrics.images.steps),
    ),
    Family(
        "ovserve_image_step_seconds",
        "histogram",
        "Seconds per step of an image, its text and its decoding included.",
        value(lambda m: m.metrics.images.step_seconds),
    ),
)
