"""The playground of each kind of model in a real browser, over tiny real models: what is sent, and what is shown."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, start_process
from tests.console.conftest import Tab, open_tab, serious
from tests.console.stage import stage_kinds
from tests.speech import samples, wav

FIRST = 60_000  # ms for the first answer of an engine, beside another worker's tests


@pytest.fixture(scope="module")
def kinds(
    tmp_path_factory: pytest.TempPathFactory, plain_models: Path, image_model: Path
) -> Iterator[Server]:
    place = stage_kinds(tmp_path_factory.mktemp("kinds"), plain_models, image_model)
    server = start_process("--graphs_dir", str(place))
    yield server
    server.stop()


@pytest.fixture
def tab(browser: Any, kinds: Server) -> Iterator[Tab]:
    yield from open_tab(browser, kinds.url)


def pick(tab: Tab, model: str) -> Any:
    page = tab.open("chat")
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("option", name=re.compile(f"^{model}")).click()
    return page.locator(".playground")


def cells(place: Any) -> list[list[float]]:
    rows = place.get_by_role("region", name="Similarity").locator("tbody tr")
    return [[float(text) for text in row.locator("td").all_text_contents()] for row in rows.all()]


def test_embeddings_are_compared(tab: Tab) -> None:
    place = pick(tab, "embed")
    place.get_by_label("Texts, one a line").fill("the ship\nthe ship\nshe plays the cello")
    place.get_by_label("Texts, one a line").press("Control+Enter")
    place.get_by_role("region", name="Similarity").wait_for()
    matrix = cells(place)
    assert [matrix[i][i] for i in range(3)] == [1, 1, 1]
    assert matrix[0][1] == 1
    assert matrix[0][2] == matrix[2][0] < 1
    assert serious(tab.page) == []
    place.get_by_label("Dimensions").fill("100000")
    place.get_by_role("button", name="Compare").click()
    place.get_by_role("alert").get_by_text("dimensions").wait_for()


def test_documents_are_ranked(tab: Tab) -> None:
    place = pick(tab, "rank")
    place.get_by_label("Documents, one a line").fill("oil\nleft the harbour\nshe plays the cello")
    place.get_by_role("button", name="Rank", exact=True).click()
    place.locator(".ranking li").nth(2).wait_for()
    scores = [float(text) for text in place.locator(".ranking li > b").all_text_contents()]
    assert scores == sorted(scores, reverse=True)
    assert sorted(re.findall(r"was (\d)", place.locator(".ranking").inner_text())) == ["1", "2", "3"]
    assert serious(tab.page) == []


def test_a_plain_model_infers(tab: Tab) -> None:
    place = pick(tab, "add")
    place.get_by_role("cell", name="[1, 10]").first.wait_for()
    for i, values in enumerate(("0 1 2 3 4 5 6 7 8 9", "10 10 10 10 10 10 10 10 10 0.5")):
        tensor = place.locator("fieldset").nth(i)
        tensor.get_by_label("Filled with").select_option("values")
        tensor.get_by_role("textbox", name=re.compile("^Elements")).fill(values)
    place.get_by_role("button", name="Infer").click()
    place.get_by_text("10 11 12 13 14 15 16 17 18 9.5").wait_for()
    assert place.locator(".ranking.top li").first.inner_text().split() == ["index", "8", "18"]
    assert serious(tab.page) == []
    place.locator("fieldset").first.get_by_role("textbox", name=re.compile("^Elements")).fill("1 2")
    place.get_by_role("button", name="Infer").click()
    place.get_by_role("alert").get_by_text("takes 10 values, 2 were given").wait_for()
    place.get_by_role("tab", name="JSON").click()
    place.get_by_role("button", name="Infer").click()
    place.get_by_text("The answer as JSON").wait_for()


def test_texts_go_through_a_plain_model(tab: Tab) -> None:
    place = pick(tab, "passthrough_string")
    place.get_by_role("textbox", name=re.compile("^Elements")).fill("grüße\n日本")
    place.get_by_role("button", name="Infer").click()
    place.locator(".output-texts li").nth(1).wait_for()
    assert place.locator(".output-texts li").all_text_contents() == ["grüße", "日本"]


def test_an_image_is_drawn_and_seen(tab: Tab) -> None:
    place = pick(tab, "draw")
    place.get_by_label("Seed").fill("7")
    place.get_by_role("button", name="Draw").click()
    place.get_by_role("link", name="Download").wait_for()
    image = place.get_by_role("img", name="Image 1")
    assert image.evaluate(
        "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
    ) == [
        64,
        64,
    ]
    assert "seed 7" in place.locator("figure").inner_text()
    assert serious(tab.page) == []
    drawn = base64.b64decode(image.get_attribute("src").partition("base64,")[2])
    place.get_by_role("button", name="Edit", exact=True).click()
    place.get_by_label("Image to edit").set_input_files(
        {"name": "drawn.png", "mimeType": "image/png", "buffer": drawn}
    )
    place.locator("form").get_by_role("button", name="Edit").click()
    place.get_by_role("link", name="Download").wait_for()


def test_a_text_is_heard(tab: Tab) -> None:
    place = pick(tab, "say")
    place.get_by_label("Voice").locator("option").nth(2).wait_for(state="attached")
    place.get_by_label("Text", exact=True).fill("Hello world.")
    place.get_by_role("button", name="Speak").click()
    place.get_by_text(re.compile("of audio")).wait_for(timeout=FIRST)
    assert place.locator("audio").evaluate("audio => audio.duration") > 0.2
    assert serious(tab.page) == []


def test_a_recording_is_dropped_and_read(tab: Tab) -> None:
    place = pick(tab, "hear")
    sound = {"name": "a.wav", "mimeType": "audio/wav", "buffer": wav(samples())}
    place.get_by_label("Recording").set_input_files(sound)
    place.get_by_role("button", name="Transcribe").click()
    place.get_by_role("heading", name="Text").wait_for(timeout=FIRST)
    place.get_by_role("link", name="request").wait_for()
    assert place.locator(".playground-text").inner_text()
    place.get_by_label("With times of segments").check()
    place.get_by_role("button", name="Transcribe").click()
    place.locator(".segments-list li").first.wait_for()
    place.get_by_role("button", name=re.compile("^Play from")).first.press("Enter")
    tab.page.wait_for_function("() => document.querySelector('audio').currentTime > 0")
    assert serious(tab.page) == []
