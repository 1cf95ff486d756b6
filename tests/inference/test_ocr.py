"""graphs/ocr with its real models: what the shipped client reads and draws. `make setup-dev` fetches the models."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.conftest import ROOT, Server, start_server

MODELS = ROOT / "models/ocr"
LINES = ["OpenVINO reads text", "Invoice 2026-11-22", "upside down line"]

pytestmark = pytest.mark.skipif(
    not (MODELS / "recogniser/1/model.onnx").is_file(), reason="`ovserve pull ocr` fetches its models"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = start_server(ROOT / "graphs/ocr", name="ocr")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ocr_client", ROOT / "examples/05_ocr_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def picture() -> Image.Image:
    made = Image.new("RGB", (640, 300), "white")
    font = ImageFont.load_default(size=36)
    drawing = ImageDraw.Draw(made)
    for i, text in enumerate(LINES[:2]):
        drawing.text((40, 30 + 90 * i), text, fill="black", font=font)
    turned = Image.new("RGB", (400, 50), "white")
    ImageDraw.Draw(turned).text((5, 5), LINES[2], fill="black", font=font)
    made.paste(turned.rotate(180), (40, 220))
    return made


def test_a_picture_is_read_and_drawn_into(
    server: Server,
    client: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(client.read, "__defaults__", (server.url, "ocr"))
    picture().save(tmp_path / "in.png")
    client.main(str(tmp_path / "in.png"), str(tmp_path / "out.png"))
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == LINES
    drawn = Image.open(tmp_path / "out.png").convert("RGB")
    assert drawn.size == (640, 300)
    ((left, top, right, bottom), _, score), *_ = client.read(picture())
    assert score > 0.9
    assert (left < 60, top < 50, right > 300, bottom > 60) == (True,) * 4
    assert drawn.getpixel((int(left), int(top + bottom) // 2)) == (255, 0, 0)


def test_pictures_without_text_and_many_at_once(server: Server, client: ModuleType) -> None:
    assert client.read(Image.new("RGB", (300, 200), "white"), server.url) == []
    assert client.read(Image.new("RGB", (1, 1), "black"), server.url) == []
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: client.read(picture(), server.url), range(6)))
    assert [[text for _, text, _ in one] for one in found] == [LINES] * 6


def test_what_is_wrong_with_a_picture_is_said(server: Server) -> None:
    def sent(shape: list[int], datatype: str = "UINT8") -> httpx.Response:
        count = shape[0] * shape[1] * shape[2]
        tensor = {"name": "image", "datatype": datatype, "shape": shape, "data": [0] * count}
        return httpx.post(f"{server.url}/v2/models/ocr/infer", json={"inputs": [tensor]}, timeout=230)

    for shape, datatype in (
        ([4, 4, 1], "UINT8"),
        ([2, 2, 3], "FP32"),
        ([0, 5, 3], "UINT8"),
        ([1, 5000, 3], "UINT8"),
    ):
        answer = sent(shape, datatype)
        assert (answer.status_code, "'image': expected" in answer.json()["error"]) == (400, True), answer.text
