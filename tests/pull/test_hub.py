"""Models on the hub: the real huggingface_hub against a hub on this machine."""

from __future__ import annotations

import json
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ovserve.errors import LoadError, NotFound, OvserveError, PermissionDenied, ResourceExhausted, Unavailable
from ovserve.pull.hub import RemoteFile, choose
from ovserve.pull.run import Wanted, pull
from tests.conftest import ROOT
from tests.engine import random_gguf
from tests.pull import tiny_gguf
from tests.pull.hub_server import COMMITS, HubServer

IR = {
    "openvino_model.xml": b"<net/>",
    "openvino_model.bin": bytes(range(256)) * 8,
    "openvino_tokenizer.xml": b"<net/>",
    "config.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"{{ messages }}",
}
REPO = "some/model-ov"
EMPTY = [b"GGUF" + struct.pack("<IQQ", version, 0, 0) for version in (2, 3)]
HALF = 10_500_000  # the library writes 10 MiB at a time


GENAI = {"engine": "genai"}  # which loads a .gguf file as it is


def quiet(_: str) -> None:
    pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer()
    server.files[REPO] = {**IR, "model.safetensors": b"x", "README.md": b"x", ".gitattributes": b"x"}
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    yield server
    server.stop()


def record(directory: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "pull.json").read_text())
    return found


def test_files_of_one_form_are_fetched_and_a_graph_is_written(hub: HubServer, tmp_path: Path) -> None:
    directory = pull(Wanted(REPO, tmp_path), quiet)
    assert directory == tmp_path / REPO  # as OVMS lays it
    found = {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}
    assert found == {*IR, "graph.pbtxt", "pull.json"}
    assert all((directory / name).read_bytes() == data for name, data in IR.items())
    assert 'models_path: "./"' in (directory / "graph.pbtxt").read_text()
    assert record(directory)["identity"] == COMMITS["main"]


def test_the_revision_stays_until_another_is_asked_for(hub: HubServer, tmp_path: Path) -> None:
    directory = pull(Wanted(REPO, tmp_path, revision="old"), quiet)
    assert record(directory)["identity"] == COMMITS["old"]
    hub.asked.clear()
    said: list[str] = []
    pull(Wanted(REPO, tmp_path), said.append)
    assert [path for path, _ in hub.asked] == [f"/api/models/{REPO}/revision/{COMMITS['old']}"]
    assert any("every hash is right" in text for text in said)
    pull(Wanted(REPO, tmp_path, revision="main"), quiet)
    assert record(directory)["identity"] == COMMITS["main"]


def test_a_damaged_file_is_fetched_again(hub: HubServer, tmp_path: Path) -> None:
    directory = pull(Wanted(REPO, tmp_path), quiet)
    (directory / "openvino_model.bin").write_bytes(bytes(2048))
    hub.asked.clear()
    pull(Wanted(REPO, tmp_path), quiet)
    assert [path.rpartition("/")[2] for path, _ in hub.asked] == [COMMITS["main"], "openvino_model.bin"]
    assert (directory / "openvino_model.bin").read_bytes() == IR["openvino_model.bin"]


def test_an_interrupted_command_goes_on_in_the_middle_of_a_file(
    hub: HubServer, model: Path, tmp_path: Path
) -> None:
    """Ctrl-C while the connection stalls; the file is a real one, so that it is loaded at the end."""
    hub.files["some/smol-gguf"] = {"m.gguf": model.read_bytes(), "mmproj-m-f16.gguf": b"of images"}
    hub.cut = HALF
    hub.stall.clear()
    command = [
        sys.executable,
        "-m",
        "ovserve",
        "pull",
        "some/smol-gguf",
        "--engine",
        "genai",
        "--model_repository_path",
        str(tmp_path),
    ]
    # Ignored in what a shell runs in the background, and children inherit that; a handler they do not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    signal.signal(signal.SIGINT, before)
    assert hub.half_sent.wait(60)
    partial = tmp_path / "some/smol-gguf/.hub"
    while not (partial.is_dir() and any(p.stat().st_size for p in partial.iterdir())):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert "the same command resumes" in process.communicate(timeout=230)[0]
    assert process.returncode == 130
    hub.stall.set()
    hub.cut = 0
    (begun,) = partial.iterdir()
    size = begun.stat().st_size
    assert size > 1 << 20
    directory = pull(Wanted("some/smol-gguf", tmp_path, options=GENAI), quiet)
    assert hub.asked[-1] == (f"/some/smol-gguf/resolve/{COMMITS['main']}/m.gguf", f"bytes={size}-")
    assert (directory / "m.gguf").read_bytes() == model.read_bytes()
    assert not partial.exists()
    assert 'models_path: "./m.gguf"' in (directory / "graph.pbtxt").read_text()


def test_a_connection_that_breaks_for_good(
    hub: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = random.Random(0).randbytes(HALF + 5000)
    hub.files["some/big"] = {"openvino_model.xml": b"", "openvino_model.bin": data}
    hub.cut = HALF
    with pytest.raises(Unavailable, match=r"some/big cannot be fetched .*500.*The same command resumes"):
        pull(Wanted("some/big", tmp_path), quiet)
    hub.cut = 0
    assert (pull(Wanted("some/big", tmp_path), quiet) / "openvino_model.bin").read_bytes() == data


def test_content_that_is_not_what_the_hub_told(hub: HubServer, tmp_path: Path) -> None:
    for name in ("openvino_model.bin", "config.json"):
        hub.lies = {name: b"!" * len(IR[name])}
        with pytest.raises(LoadError, match=rf"^{name}: its hash is not .*; it is not kept"):
            pull(Wanted(REPO, tmp_path), quiet)
        assert not (tmp_path / REPO / name).exists()
    assert not (tmp_path / REPO / "graph.pbtxt").exists()


def test_one_file_of_several(hub: HubServer, tmp_path: Path) -> None:
    whole = tiny_gguf.write(tmp_path / "whole.gguf").read_bytes()
    hub.files["some/gguf"] = {"q4.gguf": EMPTY[0], "q8.gguf": whole}
    with pytest.raises(
        LoadError, match=r"several .gguf files; choose one with --gguf_filename: q4.gguf, q8.gguf"
    ):
        pull(Wanted("some/gguf", tmp_path), quiet)
    with pytest.raises(NotFound, match=r"no file q5.gguf; its .gguf files: q4.gguf, q8.gguf"):
        pull(Wanted("some/gguf", tmp_path, gguf="q5.gguf"), quiet)
    directory = pull(Wanted("some/gguf", tmp_path, gguf="q8.gguf", options=GENAI), quiet)
    assert {p.name for p in directory.iterdir()} == {"q8.gguf", "graph.pbtxt", "pull.json"}
    assert record(directory)["identity"] == f"{COMMITS['main']}:q8.gguf"


def test_a_model_in_several_files_is_fetched_whole(hub: HubServer, tmp_path: Path) -> None:
    parts = random_gguf.split(random_gguf.write(tmp_path / "whole.gguf", kind=random_gguf.F16), tmp_path, 3)
    hub.files["some/split"] = {f"q8/{part.name}": part.read_bytes() for part in parts}
    directory = pull(Wanted("some/split", tmp_path, options=GENAI), quiet)
    assert {p.name for p in (directory / "q8").iterdir()} == {part.name for part in parts}
    assert f'models_path: "./q8/{parts[0].name}"' in (directory / "graph.pbtxt").read_text()


def test_a_repository_without_a_form_the_engine_loads(hub: HubServer, tmp_path: Path) -> None:
    hub.files["some/torch"] = {"model.safetensors": b"x", "config.json": b"{}"}
    with pytest.raises(LoadError, match=r"optimum-cli export openvino -m some/torch"):
        pull(Wanted("some/torch", tmp_path), quiet)


@pytest.mark.parametrize(
    ("source", "revision", "error", "says"),
    [
        (
            "some/gated",
            "",
            PermissionDenied,
            r"gated: accept its terms at http.*/some/gated, and set HF_TOKEN",
        ),
        ("no/such", "", NotFound, r"the hub has no model no/such, or it is private; then set HF_TOKEN"),
        (REPO, "v9", NotFound, r"some/model-ov has no revision v9"),
        ("a--b/c", "", NotFound, r"is not an id on the hub"),
        ("smollm2", "main", OvserveError, r"--revision is for models on the hub"),
    ],
)
def test_what_the_hub_refuses(
    source: str, revision: str, error: type[OvserveError], says: str, hub: HubServer, tmp_path: Path
) -> None:
    hub.files["some/gated"] = dict(IR)
    hub.gated.add("some/gated")
    with pytest.raises(error, match=says):
        pull(Wanted(source, tmp_path, revision=revision), quiet)


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"cannot be fetched from the hub: .*Is there a network\?"):
        pull(Wanted(REPO, tmp_path), quiet)


def test_without_the_client_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as an import finds it that is not installed
    with pytest.raises(LoadError, match=r"install it: .*-m pip install -e '.*\[hub\]'"):
        pull(Wanted(REPO, tmp_path), quiet)


def test_a_disk_that_refuses_to_write(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota of the kernel on the size of a file stands in for a disk that fills up."""
    hub.files["some/big"] = {"openvino_model.xml": b"", "openvino_model.bin": bytes(HALF)}
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from ovserve.cli import main; main(['pull', 'some/big', '--model_repository_path', sys.argv[1]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ovserve: ")
    assert "File too large" in done.stderr


def test_a_name_never_leaves_the_folder() -> None:
    for name in ("../x.json", "/etc/x.json", "a/../../x.json"):
        with pytest.raises(LoadError, match="outside of its folder"):
            choose("r", [RemoteFile(name, 1, "", False), RemoteFile("openvino_model.xml", 1, "", False)])


def test_no_room(hub: HubServer, tmp_path: Path) -> None:
    from ovserve.pull.hub import Hub

    source = Hub("some/huge")
    source._files = [RemoteFile("openvino_model.bin", 10**18, "0" * 64, True)]
    with pytest.raises(ResourceExhausted, match=r"fetching some/huge needs .* GB on the disk"):
        source.fetch(tmp_path, again=False, say=quiet)
    assert not list(tmp_path.iterdir())
