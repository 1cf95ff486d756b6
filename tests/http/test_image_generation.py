"""POST images/generations on the real server and library, with OpenAI's own client; a tiny pipeline made here."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from scripts.image_model import make
from tests.conftest import Server, eventually, start_process, until
from tests.images import graph, opened, pixels

LIMITS = (
    'max_resolution: "128x96"', "max_num_images_per_prompt: 3", "default_num_inference_steps: 4",
    "max_num_inference_steps: 8",
)  # fmt: skip
STEPS = 50_000
SLOW = 'device: "CPU"', "max_num_inference_steps: 100000", 'default_resolution: "72x64"'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("images")
    make(place / "tiny", edits=False)
    make(place / "slow", edits=False, work=3)
    (place / "tiny/graph.pbtxt").write_text(graph("./", *LIMITS))
    (place / "slow/graph.pbtxt").write_text(graph("./", *SLOW))
    server = start_process("--graphs_dir", str(place), "--metrics_enable", "--max_queue", "2")
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def post(server: Server, **body: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": "a cat", **body}
    return httpx.post(f"{server.v3}/images/generations", json=body, timeout=230)


def drawn(server: Server, **body: Any) -> list[Any]:
    response = post(server, **body)
    assert response.status_code == 200, response.text
    return [pixels(data["b64_json"]) for data in response.json()["data"]]


def test_openai_s_client_gets_png_files_of_the_asked_size(client: openai.OpenAI) -> None:
    answer = client.images.generate(model="tiny", prompt="a cat", n=2, size="128x96", user="me")  # type: ignore[call-overload]
    assert abs(answer.created - time.time()) < 60
    assert answer.size == "128x96"
    files = [opened(data.b64_json) for data in answer.data]
    assert [(file.format, file.size) for file in files] == [("PNG", (128, 96))] * 2


def test_a_seed_repeats_each_image_alone(server: Server) -> None:
    first, second = drawn(server, n=2, seed=7)
    (again,) = drawn(server, rng_seed=8)
    assert (first != second).any()
    assert (again == second).all()


def test_the_largest_seed_is_that_of_the_last_image(server: Server) -> None:
    data = post(server, n=2, seed=2**32 - 2).json()["data"]
    assert [image["seed"] for image in data] == [2**32 - 2, 2**32 - 1]
    assert data[0]["b64_json"] != data[1]["b64_json"]


def test_without_a_seed_each_image_differs_and_is_told(server: Server) -> None:
    one, other = (post(server).json()["data"][0] for _ in range(2))
    assert one["seed"] != other["seed"]
    (again,) = drawn(server, seed=one["seed"])
    assert (again == pixels(one["b64_json"])).all()


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "a dog"},
        {"negative_prompt": "blue"},
        {"guidance_scale": 3},
        {"num_inference_steps": 8},
        {"width": 64, "height": 72},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_parameter_changes_the_image(server: Server, change: dict[str, Any]) -> None:
    (plain,), (changed,) = drawn(server, seed=1), drawn(server, **{"seed": 1, **change})
    assert plain.shape != changed.shape or np.abs(plain - changed).mean() > 1


def test_files_in_jpeg_and_webp(server: Server) -> None:
    (plain,) = drawn(server, seed=3)
    for name in ("jpeg", "webp"):
        sizes = []
        for quality in (100, 20):
            answer = post(server, seed=3, output_format=name, output_compression=quality).json()
            assert answer["output_format"] == name
            file = opened(answer["data"][0]["b64_json"])
            assert file.format == name.upper()
            sizes.append(len(answer["data"][0]["b64_json"]))
        assert sizes[1] < sizes[0]
        assert np.abs(pixels(answer["data"][0]["b64_json"]) - plain).mean() < 40


@pytest.mark.parametrize(
    ("body", "field", "part"),
    [
        ({"prompt": None}, "prompt", "null"),
        ({"prompt": 5}, "prompt", "str"),
        ({"prompt": "x" * 32_001}, "prompt", "32000"),
        ({"n": 0}, "n", "1"),
        ({"n": -1}, "n", "1"),
        ({"n": 4}, "n", "at most 3"),
        ({"n": 1, "num_images_per_prompt": 1}, "num_images_per_prompt", "n"),
        ({"num_inference_steps": 0}, "num_inference_steps", "1"),
        ({"num_inference_steps": 9}, "num_inference_steps", "at most 8"),
        ({"size": "136x96"}, "size", "128x96"),
        ({"size": "96x104"}, "size", "128x96"),
        ({"size": "60x64"}, "size", "multiples of 8"),
        ({"size": "0x64"}, "size", "WIDTHxHEIGHT"),
        ({"size": "64"}, "size", "WIDTHxHEIGHT"),
        ({"size": "9" * 5000 + "x8"}, "size", "WIDTHxHEIGHT"),
        ({"size": "64x64", "width": 64}, "width", "size"),
        ({"width": 64}, "height", "required"),
        ({"guidance_scale": -1}, "guidance_scale", "0"),
        ({"guidance_scale": 1e300}, "guidance_scale", "1000"),
        ({"guidance_scale": 1, "negative_prompt": "x"}, "negative_prompt", "guidance_scale"),
        ({"seed": -1}, "seed", "0"),
        ({"seed": 2**32}, "seed", "4294967295"),
        ({"rng_seed": 2**63 - 1}, "rng_seed", "4294967295"),
        ({"seed": 2**32 - 1, "n": 2}, "seed", "expected 0 to 4294967294 for 2 images"),
        ({"rng_seed": 2**32 - 2, "n": 3}, "rng_seed", "got 4294967294"),
        ({"seed": 1, "rng_seed": 1}, "rng_seed", "seed"),
        ({"response_format": "url"}, "response_format", "b64_json"),
        ({"background": "transparent"}, "background", "transparent"),
        ({"output_format": "gif"}, "output_format", "png"),
        ({"output_compression": 50}, "output_compression", "png"),
        ({"output_compression": 101, "output_format": "jpeg"}, "output_compression", "100"),
        ({"partial_images": 1}, "partial_images", "stream"),
        ({"partial_images": 4, "stream": True}, "partial_images", "3"),
        ({"lora_alphas": {"x": 1}}, "lora_alphas", "no adapters"),
        ({"prompt_2": "x"}, None, "Prompt 2 is not used"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_value_is_named(server: Server, body: dict[str, Any], field: str | None, part: str) -> None:
    response = post(server, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == field
    assert part in error["message"]
    assert len(error["message"]) < 400


def test_text_that_is_not_text(server: Server) -> None:
    for body in (b'{"model":"tiny","prompt":"\xff"}', b'{"model":"tiny","prompt":"a","seed":NaN}'):  # fmt: skip
        response = httpx.post(f"{server.v3}/images/generations", content=body)
        assert response.status_code == 400, response.text
    assert drawn(server, prompt="", seed=1)[0].shape == drawn(server, prompt="\0", seed=1)[0].shape


def test_parameters_without_effect_are_listed(server: Server) -> None:
    response = post(server, quality="high", style="auto", unheard_of=1, response_format="b64_json")
    assert response.headers["x-ovserve-ignored-params"] == "quality,unheard_of"
    response = post(server, max_sequence_length=5, seed=1, stream=True, unheard_of=1)
    assert response.headers["x-ovserve-ignored-params"] == "max_sequence_length,unheard_of"


def test_prompts_that_the_text_encoder_cuts_are_named(server: Server) -> None:
    long = "word " * 300
    cat, dog = (post(server, prompt=long + animal, seed=1) for animal in ("cat", "dog"))
    assert cat.json()["data"] == dog.json()["data"]
    assert cat.headers["x-ovserve-truncated"] == "prompt"
    both = post(server, prompt=long, negative_prompt=long, stream=True)
    assert both.headers["x-ovserve-truncated"] == "negative_prompt, prompt"
    assert post(server, negative_prompt=long).headers["x-ovserve-truncated"] == "negative_prompt"
    assert "x-ovserve-truncated" not in post(server, prompt="a dog in the rain " * 2).headers


def test_a_stream_has_partial_images_and_the_image(client: openai.OpenAI, server: Server) -> None:
    (expected,) = drawn(server, model="slow", seed=5, num_inference_steps=12)
    events = list(
        client.images.generate(
            model="slow", prompt="a cat", stream=True, partial_images=2,
            extra_body={"seed": 5, "num_inference_steps": 12},
        )  # type: ignore[call-overload]
    )  # fmt: skip
    kinds = [event.type.removeprefix("image_generation.") for event in events]
    assert set(kinds) == {"partial_image", "completed"}, "what the types of the client have"
    assert kinds.count("partial_image") == 2
    assert kinds[-1] == "completed"
    assert kinds.count("completed") == 1
    partials = [event for event in events if event.type.endswith("partial_image")]
    assert [event.partial_image_index for event in partials] == [0, 1]
    assert opened(partials[0].b64_json).size == (72, 64)
    assert (pixels(partials[0].b64_json) != pixels(partials[1].b64_json)).any()
    last = events[-1]
    assert (pixels(last.b64_json) == expected).all()
    assert last.size == "72x64"
    assert last.usage.total_tokens == 0


def test_a_stream_of_several_images(server: Server) -> None:
    text = post(server, n=3, stream=True, seed=1).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    done = [event for event in events if event["type"].endswith("completed")]
    assert [(event["image_index"], event["seed"]) for event in done] == [(0, 1), (1, 2), (2, 3)]


def test_a_bad_request_for_a_stream_is_no_stream(server: Server) -> None:
    response = post(server, stream=True, n=99)
    assert response.status_code == 400
    assert response.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_the_image(server: Server, stream: bool) -> None:
    body = {"model": "slow", "prompt": "x", "num_inference_steps": STEPS, "stream": stream}
    began = time.monotonic()
    url = f"{server.v3}/images/generations"
    with suppress(httpx.ReadTimeout), httpx.stream("POST", url, json=body, timeout=0.6) as response:
        for _ in response.iter_lines():
            if time.monotonic() - began > 0.6:
                break
    # One image is drawn at a time, and all steps of the other would take minutes.
    assert drawn(server, model="slow", num_inference_steps=1)


def test_two_at_once_and_a_full_queue(server: Server) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(post(server, model="slow", num_inference_steps=12))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    engines = server.children("ovserve.engine.worker.main")
    for engine in engines:  # nothing is drawn until all have come
        os.kill(engine, signal.SIGSTOP)
    try:
        for thread in threads:
            thread.start()
        until(lambda: len(answers) == 2)
    finally:
        for engine in engines:
            os.kill(engine, signal.SIGCONT)
    for thread in threads:
        thread.join()
    # One is drawn, one waits in the engine, and two in the queue.
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [503] * 2
    assert all(float(a.headers["retry-after"]) > 0 for a in answers if a.status_code == 503)


async def test_metrics_count_images_and_steps(server: Server) -> None:
    def value(name: str) -> float:
        text = httpx.get(f"{server.url}/metrics").text
        return next(float(x.split()[-1]) for x in text.splitlines() if x.startswith(f'{name}{{name="tiny"'))

    before = value("ovserve_images_total"), value("ovserve_image_steps_total")
    post(server, n=2, num_inference_steps=3)
    await eventually(lambda: value("ovserve_images_total") == before[0] + 2)
    assert value("ovserve_image_steps_total") == before[1] + 6
