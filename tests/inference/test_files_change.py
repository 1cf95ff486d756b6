"""What operators do to the files of models that are served: overwrite, copy slowly, move away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import start_process, until
from tests.inference.conftest import Site, start_site

WIDTH = 1500  # of the weights: 9 MB, which the runtime maps and does not keep as a copy
POLL = ("--file_system_poll_wait_seconds", "0.2")
WRITER = """
import sys
import numpy as np, openvino as ov
from openvino import opset15 as op
for directory, factor, width in zip(*[iter(sys.argv[1:])] * 3):
    width = int(width)
    x = op.parameter([1, width], np.float32, name="x")
    x.output(0).get_tensor().set_names({"x"})
    y = op.matmul(x, op.constant(np.full((width, width), float(factor), np.float32)), False, False)
    y.output(0).get_tensor().set_names({"y"})
    ov.save_model(ov.Model([y], [x], "m"), f"{directory}/model.xml", compress_to_fp16=False)
"""


def write(*models: tuple[Path, float, int]) -> None:
    """Write models whose output is `factor` times the sum of its input."""
    for directory, _, _ in models:
        directory.mkdir(parents=True)
    arguments = [str(part) for model in models for part in model]
    subprocess.run([sys.executable, "-c", WRITER, *arguments], check=True)


def answer(site: Site, model: str, width: int = WIDTH) -> float | str:
    reply = site.infer(model, {"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width})
    if reply.status_code != 200:
        return f"{reply.status_code} {reply.text}"
    values = reply.json()["outputs"][0]["data"]
    assert len({*values}) == 1, "values of two models are mixed"
    return float(values[0]) / width


@contextmanager
def asking(site: Site, *models: tuple[str, int]) -> Iterator[list[float | str]]:
    """Ask all the while, 50 times a second at most; the list gets the answers."""
    answers: list[float | str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.02):
            answers.extend(answer(site, *model) for model in models)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("factors")
    write(
        (root / "one", 1.0, WIDTH),
        (root / "two", 2.0, WIDTH),
        (root / "small", 1.0, 8),
    )
    return root


OVERWRITTEN = ("in_place", "cut_first", "copyfile", "cut_short", "open")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Site]:
    """A server of the model `small`, and of one for each test that overwrites it and spoils nothing else."""
    root = tmp_path_factory.mktemp("shared")
    for name in (*OVERWRITTEN, "small"):
        shutil.copytree(models / ("small" if name == "small" else "one"), root / name / "1")
    site = start_site(root, [{"name": name} for name in (*OVERWRITTEN, "small")], *POLL)
    yield site
    site.server.stop()


def serving(root: Path, models: Path, owner: int | None = None) -> Site:
    """A server of the models `m` and `small`. `owner`: of their files; the server may not lease them then."""
    for name, source in (("m", "one"), ("small", "small")):
        shutil.copytree(models / source, root / name / "1")
    entries = [{"name": name} for name in ("m", "small")]
    if owner is None:
        return start_site(root, entries, *POLL)
    for file in root.glob("*/1/*"):
        os.chown(file, owner, owner)
    config = root / "config.json"
    config.write_text(json.dumps({"model_config_list": [{"config": entry} for entry in entries]}))
    powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    return Site(start_process("--config_path", str(config), *POLL, prefix=powerless), root, "")


def in_place(source: Path, target: Path) -> None:
    """Write as `rsync --inplace`: without cutting the file first."""
    with source.open("rb") as old, target.open("r+b") as new:
        while part := old.read(1 << 20):
            new.write(part)
            new.flush()
            time.sleep(0.02)
        new.truncate()


def cut_first(source: Path, target: Path) -> None:
    """Write as `cp`: the file is empty at first, and grows."""
    with source.open("rb") as old, target.open("wb") as new:
        time.sleep(0.5)
        while part := old.read(1 << 20):
            new.write(part)
            new.flush()
            time.sleep(0.05)


@pytest.mark.parametrize("writer", [in_place, cut_first, shutil.copyfile])
def test_weights_overwritten_in_place(
    shared: Site, models: Path, writer: Callable[[Path, Path], None]
) -> None:
    """Each answer is that of the old or of the new weights, and no process ends."""
    name = writer.__name__
    engines = shared.server.children("ovserve.engine.worker.main")
    with asking(shared, (name, WIDTH), ("small", 8)) as answers:
        until(lambda: len(answers) > 2)
        writer(models / "two/model.bin", shared.root / name / "1/model.bin")
        until(lambda: answer(shared, name) == 2.0, lambda: (answers[-3:], shared.states(name)))
    assert {*answers} <= {1.0, 2.0}, [one for one in answers if isinstance(one, str)][:3]
    assert shared.server.children("ovserve.engine.worker.main") == engines
    assert shared.states(name) == {"1": ("AVAILABLE", "OK")}


def test_a_file_that_is_cut_short_leaves_the_old_weights(shared: Site, models: Path) -> None:
    name = "cut_short"
    weights = shared.root / name / "1/model.bin"
    with weights.open("r+b") as file:
        file.truncate(1000)
    until(lambda: "is truncated" in shared.states(name)["1"][1], lambda: shared.states(name))
    assert shared.states(name)["1"][0] == "AVAILABLE"
    assert (answer(shared, name), answer(shared, "small", 8)) == (1.0, 1.0)
    shutil.copyfile(models / "two/model.bin", weights)
    until(lambda: answer(shared, name) == 2.0, lambda: shared.states(name))
    assert shared.states(name) == {"1": ("AVAILABLE", "OK")}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_files_of_another_user_can_be_overwritten(tmp_path: Path, models: Path) -> None:
    """The kernel gives no lease on them, so they are copied when they are loaded."""
    site = serving(tmp_path, models, owner=65534)
    try:
        with asking(site, ("m", WIDTH), ("small", 8)) as answers:
            cut_first(models / "two/model.bin", tmp_path / "m/1/model.bin")
            until(lambda: answer(site, "m") == 2.0, lambda: (answers[-3:], site.states("m")))
        assert {*answers} <= {1.0, 2.0}
        assert not any("about to be overwritten" in line for line in site.server.errors)
    finally:
        site.server.stop()


def test_a_version_that_arrives_in_pieces_is_served_once_it_is_whole(tmp_path: Path, models: Path) -> None:
    site = serving(tmp_path, models)
    new = tmp_path / "m/2"
    try:
        with asking(site, ("m", WIDTH)) as answers:
            for step in pieces(models / "two", new):
                states = site.states("m")
                assert states["1"] == ("AVAILABLE", "OK"), (step, states)
                until(lambda: site.states("m").get("2", ("", ""))[0] == "LOADING", lambda: site.states("m"))
                assert {*answers[-2:]} <= {1.0}, step
            until(lambda: answer(site, "m") == 2.0, lambda: site.states("m"))
        assert {*answers} <= {1.0, 2.0}
        until(lambda: site.states("m").get("2") == ("AVAILABLE", "OK"), lambda: site.states("m"))
    finally:
        site.server.stop()


def pieces(source: Path, target: Path) -> Iterator[str]:
    """Copy a model slowly, and yield between two pieces."""
    target.mkdir()
    yield "an empty folder"
    xml, weights = ((source / name).read_bytes() for name in ("model.xml", "model.bin"))
    (target / "model.xml").write_bytes(xml[:500])
    yield "half of the xml"
    (target / "model.xml").write_bytes(xml)
    yield "no weights"
    (target / "model.bin").write_bytes(weights[:1000])
    yield "some weights"
    (target / "model.bin").write_bytes(weights)


def test_a_start_next_to_a_version_that_is_not_whole_serves_the_one_before(
    tmp_path: Path, models: Path
) -> None:
    shutil.copytree(models / "two", tmp_path / "m/2")
    (tmp_path / "m/2/model.bin").write_bytes(b"")
    site = serving(tmp_path, models)
    try:
        assert answer(site, "m") == 1.0
        assert "is truncated: it has 0 bytes" in site.states("m")["2"][1]
        assert httpx.get(f"{site.url}/v2/health/ready").status_code == 200
        shutil.copyfile(models / "two/model.bin", tmp_path / "m/2/model.bin")
        until(lambda: answer(site, "m") == 2.0, lambda: site.states("m"))
    finally:
        site.server.stop()


def test_a_file_that_is_open_for_writing_is_loaded_when_it_is_closed(shared: Site, models: Path) -> None:
    """Its size is right all the while, as of a file that was reserved before it is filled."""
    name = "open"
    with (shared.root / name / "1/model.bin").open("r+b") as file:
        file.write((models / "two/model.bin").read_bytes())
        file.flush()
        until(lambda: "is open for writing" in shared.states(name)["1"][1], lambda: shared.states(name))
        assert answer(shared, name) == 1.0
    until(lambda: answer(shared, name) == 2.0, lambda: shared.states(name))
    assert shared.states(name) == {"1": ("AVAILABLE", "OK")}


def hide(path: Path) -> None:
    path.rename(path.with_name("away"))


def bring_back(path: Path) -> None:
    path.with_name("away").rename(path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("stored")
    for name, source in (("m", "one"), ("small", "small")):
        shutil.copytree(models / source, root / "models" / name / "1")
    entries: list[dict[str, Any]] = [{"name": n, "base_path": f"models/{n}"} for n in ("m", "small")]
    site = start_site(root, entries, *POLL)
    yield site
    site.server.stop()


@pytest.mark.parametrize(
    ("what", "empty"), [("models/m", False), ("models", True), ("models/m/1", False), ("models/m", True)]
)
def test_storage_that_goes_away_for_a_while(stored: Site, what: str, empty: bool) -> None:
    """The model answers from memory; its state has the reason until the files are back."""
    place = stored.root / what
    with asking(stored, ("m", WIDTH), ("small", 8)) as answers:
        hide(place)
        if empty:
            place.mkdir()
        until(lambda: stored.states("m")["1"][1] != "OK", lambda: stored.states("m"))
        assert stored.states("m").keys() == {"1"}
        state, why = stored.states("m")["1"]
        assert state == "AVAILABLE"
        assert str(stored.root / "models/m") in why
        count = len(answers)
        until(lambda: len(answers) > count + 4)
        if empty:
            place.rmdir()
        bring_back(place)
        until(lambda: stored.states("m") == {"1": ("AVAILABLE", "OK")}, lambda: stored.states("m"))
    assert {*answers} == {1.0}
    loads = [line for line in stored.server.errors if "m version 1 is served" in line]
    assert len(loads) == 1, "it was not loaded again"


def test_a_directory_of_models_that_is_empty_for_a_while(tmp_path: Path, models: Path) -> None:
    """An unmounted volume leaves an empty directory."""
    shutil.copytree(models / "one", tmp_path / "models/m/1")
    server = start_process("--graphs_dir", str(tmp_path / "models"), *POLL)
    site = Site(server, tmp_path, "")
    try:
        assert answer(site, "m") == 1.0
        hide(tmp_path / "models")
        (tmp_path / "models").mkdir()
        until(lambda: any("is empty now" in line for line in server.errors))
        assert answer(site, "m") == 1.0
        (tmp_path / "models").rmdir()
        bring_back(tmp_path / "models")
        time.sleep(1)
        assert answer(site, "m") == 1.0
        shutil.copytree(models / "two", tmp_path / "models/m/2")
        until(lambda: answer(site, "m") == 2.0, lambda: site.states("m"))
    finally:
        server.stop()


def test_versions_with_leading_zeros(tmp_path: Path, models: Path) -> None:
    """TensorFlow's exporters write them."""
    for folder, source in (("00000001", "one"), ("0002", "two"), ("1", "one"), ("0", "one")):
        shutil.copytree(models / source, tmp_path / "m" / folder)
    shutil.copytree(models / "one", tmp_path / "old/00000001")
    site = start_site(tmp_path, [{"name": "m", "model_version_policy": {"all": {}}}, {"name": "old"}], *POLL)
    try:
        assert site.states("m") == {"1": ("AVAILABLE", "OK"), "2": ("AVAILABLE", "OK")}
        assert site.states("old") == {"1": ("AVAILABLE", "OK")}
        assert answer(site, "m") == 2.0
        log = "".join(site.server.errors)
        assert f"{tmp_path}/m/00000001 is not served: {tmp_path}/m/1 is version 1 too" in log
        assert f"{tmp_path}/m/0 is not served: versions are numbers from 1" in log
    finally:
        site.server.stop()


def test_paths_that_hold_nothing_to_serve_say_what_to_do(tmp_path: Path) -> None:
    language = tmp_path / "language"
    language.mkdir()
    for name in ("openvino_model", "openvino_tokenizer", "openvino_detokenizer"):
        (language / f"{name}.xml").touch()
        (language / f"{name}.bin").touch()
    entries = [
        {"name": "windows", "base_path": "C:\\models\\m", "nireq": 2},
        {"name": "graph", "base_path": "models\\graph"},
        {"name": "language", "base_path": str(language)},
        {"name": "language2", "base_path": str(language), "nireq": 2},
    ]
    site = start_site(tmp_path, entries)
    try:
        for name in ("windows", "graph"):
            assert "folders are separated by '/' here" in site.states(name)["1"][1]
        for name in ("language", "language2"):
            assert f"`ovserve new graph NAME --model {language}`" in site.states(name)["1"][1]
    finally:
        site.server.stop()
