"""ImageGenCalculatorOptions: which pipeline a node asks for, and the limits of its requests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from ovserve.graph import Node
from ovserve.kinds.images.spec import AdapterMode, ImageAdapter, ImageSpec, missing_files, pipeline_class
from ovserve.kinds.plugin_config import without_lookup
from ovserve.kinds.resource import model_path
from ovserve.protos.options_pb2 import ImageGenCalculatorOptions, LoraAdapterEntry

SIDE_MULTIPLE_PIXELS = 8  # pixels: sides of images are multiples of it
DEVICES = (1, 3)  # how many names `device` has
_SIZE = re.compile(r"(\d{1,6})x(\d{1,6})")
_NPU = "NPU"

Size = tuple[int, int]  # width, height in pixels


class ImageLimits(msgspec.Struct, frozen=True):
    """Bounds and defaults of requests."""

    max_size: Size
    default_size: Size | None  # None: the model's
    sizes: tuple[Size, ...]  # the only ones; (): any
    max_images: int
    images: int  # without n
    max_steps: int
    steps: int
    guidance: float | None  # the only one; None: any


@dataclass(frozen=True)
class ImageOptions:
    spec: ImageSpec
    limits: ImageLimits
    # For each model name of its own: the adapters that it turns on.
    aliases: Mapping[str, Mapping[str, float]]
    base_name: bool  # the name of the graph answers without adapters


def parse_size(text: str) -> Size | None:
    """Return width and height of "512x768"; None for another text."""
    match = _SIZE.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]))


def parse_image_options(node: Node) -> ImageOptions:
    """Raises LoadError naming the field."""
    options = node.required_options(ImageGenCalculatorOptions)
    path, _ = model_path(node, options.models_path, pipeline_class, task="image_generation")
    devices = tuple(options.device.split()) or ("CPU",)
    if len(devices) not in DEVICES:
        raise node.error(
            f"expected one device, or three for text encoder, denoiser and VAE, got {len(devices)}: "
            f"{options.device!r}",
            "device",
        )
    properties = without_lookup(node, options.plugin_config)
    limits = _limits(node, options, npu=_NPU in devices)
    adapters, mode, aliases = _adapters(node, options)
    if _NPU in devices and mode == "DYNAMIC" and adapters:
        raise node.error("on NPU the mode must be STATIC or FUSE", "lora_adapters")
    fixed = limits.sizes[0] if len(limits.sizes) == 1 else None
    spec = ImageSpec(
        str(path),
        devices[0],
        json.dumps(properties, sort_keys=True),
        devices=devices if len(devices) > 1 else (),
        shape=fixed,
        guidance=limits.guidance,
        adapters=adapters,
        adapter_mode=mode,
    )
    return ImageOptions(spec, limits, aliases, base_name=not adapters or mode == "DYNAMIC")


def check_image_files(node: Node, options: ImageOptions) -> None:
    """Raises LoadError for a directory that lacks a file."""
    if missing := missing_files(Path(options.spec.model_path)):
        raise node.error("; ".join(missing), "models_path")


def _limits(node: Node, options: ImageGenCalculatorOptions, *, npu: bool) -> ImageLimits:
    sizes = _sizes(node, options)
    if npu and len(sizes) != 1:
        raise node.error(f"NPU needs exactly one size, got {len(sizes)}", "resolution")
    max_size = _size(node, "max_resolution", options.max_resolution)
    default = sizes[0] if sizes else None
    if options.HasField("default_resolution"):
        default = _size(node, "default_resolution", options.default_resolution)
        if sizes and default not in sizes:
            raise node.error(f"{size_text(default)} is not in resolution", "default_resolution")
    if sizes:
        max_size = max(w for w, _ in sizes), max(h for _, h in sizes)
    elif default is not None and (default[0] > max_size[0] or default[1] > max_size[1]):
        raise node.error(
            f"{size_text(default)} exceeds max_resolution, which is {size_text(max_size)}",
            "default_resolution",
        )
    images, max_images = _images(node, options, fixed=len(sizes) == 1)
    steps, max_steps = options.default_num_inference_steps, options.max_num_inference_steps
    if not steps or steps > max_steps:
        raise node.error(
            f"expected from 1 to max_num_inference_steps, which is {max_steps}, got {steps}",
            "default_num_inference_steps",
        )
    guidance = _guidance(node, options, fixed=len(sizes) == 1)
    return ImageLimits(max_size, default, sizes, max_images, images, max_steps, steps, guidance)


def _sizes(node: Node, options: ImageGenCalculatorOptions) -> tuple[Size, ...]:
    if not options.HasField("resolution"):
        return ()
    if options.HasField("max_resolution"):
        raise node.error("not with resolution, which lists the only sizes", "max_resolution")
    sizes = tuple(_size(node, "resolution", text) for text in options.resolution.split())
    if not sizes:
        raise node.error("expected sizes such as '512x512', got none", "resolution")
    if len(set(sizes)) < len(sizes):
        raise node.error(f"names a size twice: {options.resolution!r}", "resolution")
    return sizes


def _size(node: Node, field: str, text: str) -> Size:
    size = parse_size(text)
    if size is None or 0 in size:
        raise node.error(f"expected WIDTHxHEIGHT such as '512x512', got {text!r}", field)
    if any(side % SIDE_MULTIPLE_PIXELS for side in size) and field != "max_resolution":
        raise node.error(f"width and height must be multiples of {SIDE_MULTIPLE_PIXELS}, got {text!r}", field)
    return size


def _images(node: Node, options: ImageGenCalculatorOptions, *, fixed: bool) -> tuple[int, int]:
    """Return how many images a request gets without n, and at most."""
    most = options.max_num_images_per_prompt
    if not most:
        raise node.error("expected at least 1, got 0", "max_num_images_per_prompt")
    if not options.HasField("num_images_per_prompt"):
        return 1, most
    if not fixed:
        raise node.error("only with exactly one size in resolution", "num_images_per_prompt")
    if options.HasField("max_num_images_per_prompt"):
        raise node.error("not with num_images_per_prompt", "max_num_images_per_prompt")
    if options.num_images_per_prompt < 1:
        raise node.error(f"expected at least 1, got {options.num_images_per_prompt}", "num_images_per_prompt")
    return options.num_images_per_prompt, options.num_images_per_prompt


def _guidance(node: Node, options: ImageGenCalculatorOptions, *, fixed: bool) -> float | None:
    if not options.HasField("guidance_scale"):
        return None
    if not fixed:
        raise node.error("only with exactly one size in resolution", "guidance_scale")
    if not math.isfinite(options.guidance_scale) or options.guidance_scale < 0:
        raise node.error(f"expected 0 or more, got {options.guidance_scale}", "guidance_scale")
    return options.guidance_scale


def _adapters(
    node: Node, options: ImageGenCalculatorOptions
) -> tuple[tuple[ImageAdapter, ...], AdapterMode, Mapping[str, Mapping[str, float]]]:
    """Return the adapters, their mode, and the alphas behind each model name."""
    entries = options.lora_adapters
    names = [e.alias for e in entries] + [e.alias for e in options.composite_lora_adapters]
    for name in names:
        if not name or names.count(name) > 1:
            raise node.error(f"expected an alias of its own, got {name!r}", "lora_adapters")
    modes = sorted({LoraAdapterEntry.LoraLoadMode.Name(entry.mode) for entry in entries})
    if len(modes) > 1:
        raise node.error(
            f"one mode for all adapters is supported, got {' and '.join(modes)}", "lora_adapters"
        )
    mode = cast(AdapterMode, modes[0]) if modes else "DYNAMIC"
    adapters = []
    for entry in entries:
        file = (node.config.base / entry.path).resolve()
        if not file.is_file():
            raise node.error(f"{file} does not exist", "lora_adapters", entry.path)
        if not math.isfinite(entry.alpha):
            raise node.error(
                f"alpha of {entry.alias!r}: expected a number, got {entry.alpha}", "lora_adapters"
            )
        adapters.append(ImageAdapter(entry.alias, str(file), entry.alpha))
    alphas = {adapter.alias: adapter.alpha for adapter in adapters}
    if mode != "DYNAMIC":
        if options.composite_lora_adapters:
            raise node.error("only with adapters of mode DYNAMIC", "composite_lora_adapters")
        return tuple(adapters), mode, {alias: {} for alias in alphas}
    aliases: dict[str, Mapping[str, float]] = {alias: {alias: alpha} for alias, alpha in alphas.items()}
    for composite in options.composite_lora_adapters:
        parts = composite.components
        for part in parts:
            if part.adapter_alias not in alphas:
                raise node.error(
                    f"{composite.alias!r} names {part.adapter_alias!r}, which is not in lora_adapters",
                    "composite_lora_adapters",
                )
        aliases[composite.alias] = {
            p.adapter_alias: p.alpha if p.HasField("alpha") else alphas[p.adapter_alias] for p in parts
        }
    return tuple(adapters), mode, aliases


def size_text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
