"""The nodes between the models of `graph.pbtxt`: scale, cut, turn, read.

They compute, so they run on threads. The picture comes as pixels: a file of a client is not decoded here, in
the process of the server.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ovserve.api.kserve import Tensor
from ovserve.errors import InvalidArgument
from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.kinds.tensors.inference import Session

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

MAX_SIDE = 4096  # pixels of a picture's longer side
MIN_SIDE, LONGEST = 32, 960  # of what the detector sees
STEP = 32  # the detector halves the picture five times
HEIGHT, WIDTH, MAX_WIDTH = 48, 192, 2304  # of a line: for the classifier, and at most for the recogniser
TEXT, LINE = 0.3, 0.5  # score of a pixel, and the mean of a line
GROWTH = 1.6  # the detector marks the core of a line
MAX_LINES = 200
TURNED = 0.9  # score from which a line is turned
BLANK = 0  # the recogniser's sign between two letters


def pixels_of(tensor: Tensor) -> Pixels:
    height, width = tensor.shape[0], tensor.shape[1] if len(tensor.shape) > 1 else 0
    if tensor.datatype != "UINT8" or tensor.shape != (height, width, 3):
        raise InvalidArgument(
            f"inputs: 'image': expected UINT8 [height,width,3], got {tensor.datatype} {list(tensor.shape)}"
        )
    if min(height, width) < 1 or max(height, width) > MAX_SIDE:
        raise InvalidArgument(
            f"inputs: 'image': expected 1 to {MAX_SIDE} pixels a side, got {width} x {height}"
        )
    found: Pixels = tensor.array()
    return found


def resized(pixels: Pixels, width: int, height: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def normalised(pixels: Pixels) -> Floats:
    """-1 to 1, channels first."""
    scaled: Floats = (pixels.astype(np.float32) / 127.5 - 1.0).transpose(2, 0, 1)
    return scaled


@calculator("OcrScaleCalculator")
class Scale(Calculator):
    runs_on = "thread"
    image = Input("IMAGE", Tensor)
    scaled = Output("SCALED", Tensor)

    def process(self, cc: Context) -> None:
        image = cc[self.image]
        if image is None:
            return
        pixels = pixels_of(image)
        height, width = pixels.shape[:2]
        factor = min(1.0, LONGEST / max(height, width))
        sides = [max(MIN_SIDE, round(side * factor / STEP) * STEP) for side in (width, height)]
        cc.send(self.scaled, Tensor.of_array(normalised(resized(pixels, *sides))[None]))


@calculator("OcrCutCalculator")
class Cut(Calculator):
    """Sends no lines and no faces if there is no text: the nodes behind it then do not run."""

    runs_on = "thread"
    image = Input("IMAGE", Tensor)
    map = Input("MAP", Tensor)
    boxes = Output("BOXES", Tensor)
    lines = Output("LINES", list)
    faces = Output("FACES", Tensor)

    def process(self, cc: Context) -> None:
        image, scores = cc[self.image], cc[self.map]
        if image is None or scores is None:
            return
        pixels = pixels_of(image)
        boxes = text_boxes(scores.array()[0, 0], pixels.shape[1], pixels.shape[0])
        cc.send(self.boxes, Tensor.of_array(np.array(boxes, np.float32).reshape(-1, 4)))
        if not boxes:
            return
        lines = [pixels[top:bottom, left:right] for left, top, right, bottom in boxes]
        cc.send(self.lines, lines)
        cc.send(self.faces, Tensor.of_array(stacked(lines, WIDTH)))


@calculator("OcrTurnCalculator")
class Turn(Calculator):
    runs_on = "thread"
    lines = Input("LINES", list)
    angles = Input("ANGLES", Tensor)
    upright = Output("UPRIGHT", Tensor)

    def process(self, cc: Context) -> None:
        lines, angles = cc[self.lines], cc[self.angles]
        if lines is None or angles is None:
            return
        turned = angles.array()[:, 1] > TURNED
        upright = [line[::-1, ::-1] if turn else line for line, turn in zip(lines, turned, strict=True)]
        widest = max(line.shape[1] / line.shape[0] for line in upright) * HEIGHT
        cc.send(self.upright, Tensor.of_array(stacked(upright, min(MAX_WIDTH, max(320, round(widest))))))


@calculator("OcrReadCalculator")
class Read(Calculator):
    runs_on = "thread"
    session = SidePacket("SESSION", Session)
    boxes = Input("BOXES", Tensor)
    letters = Input("LETTERS", Tensor)
    texts = Output("TEXTS", Tensor)
    scores = Output("SCORES", Tensor)

    def process(self, cc: Context) -> None:
        letters = cc[self.letters]
        found: list[tuple[str, float]] = []
        if letters is not None:
            with cc[self.session].lease() as model:
                signs = ["", *model.model.framework["character"].splitlines(), " "]
            found = [read_line(row, signs) for row in letters.array()]
        cc.send(self.texts, Tensor.of_bytes(*(text.encode() for text, _ in found)))
        cc.send(self.scores, Tensor.of_array(np.array([score for _, score in found], np.float32)))


def stacked(lines: list[Pixels], width: int) -> Floats:
    """Lines as one batch: scaled to one height, the rest of the width is grey."""
    batch = np.zeros((len(lines), 3, HEIGHT, width), np.float32)
    for row, line in zip(batch, lines, strict=True):
        own = min(width, max(1, round(line.shape[1] / line.shape[0] * HEIGHT)))
        row[:, :, :own] = normalised(resized(np.ascontiguousarray(line), own, HEIGHT))
    return batch


def read_line(row: Floats, signs: list[str]) -> tuple[str, float]:
    """The text of a line: the best sign of each step, without repetitions and blanks; and its mean score."""
    best = row.argmax(axis=1)
    kept = (best != BLANK) & np.insert(best[1:] != best[:-1], 0, True)
    scores = row.max(axis=1)[kept]
    return "".join(signs[i] for i in best[kept]), float(scores.mean()) if scores.size else 0.0


def text_boxes(scores: Floats, width: int, height: int) -> list[tuple[int, int, int, int]]:
    """Boxes around the text in a picture of this size, from top to bottom and from left to right."""
    across, down = width / scores.shape[1], height / scores.shape[0]
    found = []
    for left, top, right, bottom in regions(scores > TEXT):
        if right - left < 3 or bottom - top < 3 or scores[top:bottom, left:right].mean() < LINE:
            continue
        margin = (right - left) * (bottom - top) * GROWTH / (2 * (right - left + bottom - top))
        box = (
            max(0, int((left - margin) * across)),
            max(0, int((top - margin) * down)),
            min(width, int((right + margin) * across + 1)),
            min(height, int((bottom + margin) * down + 1)),
        )
        found.append(box)
    return sorted(found, key=lambda box: (box[1] // 10, box[0]))[:MAX_LINES]


def regions(mask: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Boxes of connected regions: the runs of each row, joined with those they touch in the row above."""
    parent: list[int] = []
    boxes: list[list[int]] = []
    above: list[tuple[int, int, int]] = []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    for y in np.flatnonzero(mask.any(axis=1)):
        row = []
        for begin, end in zip(np.flatnonzero(edges[y] == 1), np.flatnonzero(edges[y] == -1), strict=True):
            mine = len(parent)
            parent.append(mine)
            boxes.append([int(begin), int(y), int(end), int(y) + 1])
            for first, last, other in above:
                if first < end and begin < last and boxes[root(other)][3] >= y:
                    old, new = sorted((root(other), root(mine)))
                    parent[new] = old
                    boxes[old] = [
                        *map(min, boxes[old][:2], boxes[new][:2]),
                        *map(max, boxes[old][2:], boxes[new][2:]),
                    ]
            row.append((int(begin), int(end), mine))
        above = row
    return [(b[0], b[1], b[2], b[3]) for i, b in enumerate(boxes) if parent[i] == i]
