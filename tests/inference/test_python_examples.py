"""The shipped graph and example with Python nodes, as their comments say they are used."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.conftest import ROOT, Server, start_process


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("graphs")
    (directory / "words").symlink_to(ROOT / "graphs/python_node")
    if (ROOT / "models/ocr/classifier/1/model.onnx").is_file():
        (directory / "upside_down").symlink_to(ROOT / "examples/06_python_picture")
    running = start_process("--graphs_dir", str(directory))
    yield running
    running.stop()


def test_the_shipped_graph_counts_and_streams(shipped: Server) -> None:
    url = f"{shipped.v3}/words"
    assert httpx.post(url, content="one two three").json() == {"words": 3, "longest": "three"}
    assert httpx.post(url).json() == {"words": 0, "longest": ""}
    assert (
        httpx.post(f"{url}?stream=1", content="one two").text
        == 'data: {"word": "one"}\n\ndata: {"word": "two"}\n\n'
    )
    assert "UnicodeDecodeError" in httpx.post(url, content=b"\xff").json()["error"]["message"]


@pytest.mark.skipif(
    not (ROOT / "models/ocr/classifier/1/model.onnx").is_file(),
    reason="`ovserve pull ocr` fetches its model, 16 MB; CI has it by `make setup-dev`",
)
def test_06_reads_whether_a_line_is_upside_down(shipped: Server) -> None:
    line = Image.new("RGB", (380, 48), "white")
    ImageDraw.Draw(line).text((5, 5), "upside down line", fill="black", font=ImageFont.load_default(size=34))
    for picture, turned in ((line, False), (line.rotate(180), True)):
        file = io.BytesIO()
        picture.save(file, "PNG")
        answer = httpx.post(f"{shipped.v3}/upside_down", content=file.getvalue(), timeout=230).json()
        assert answer["upside_down"] is turned
        assert answer["score"] > 0.9
    wrong = httpx.post(f"{shipped.v3}/upside_down", content=b"no picture")
    assert (wrong.status_code, "cannot identify image file" in wrong.text) == (500, True)


def test_ten_lines_are_enough() -> None:
    lines = Path(ROOT / "graphs/python_node/handler.py").read_text().split("class ")[1].splitlines()
    assert len([line for line in lines if line.strip()]) <= 11
