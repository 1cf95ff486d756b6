"""What counts as a change of a servable's files, and what does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ovserve.serving import fingerprint
from ovserve.serving.fingerprint import Fingerprints
from ovserve.serving.settings import ServableSpec


@pytest.fixture
def spec(tmp_path: Path) -> ServableSpec:
    base = tmp_path / "g"
    (base / "model/sub").mkdir(parents=True)
    (base / "graph.pbtxt").write_text("graph")
    for name in ("openvino_model.xml", "openvino_model.bin", "chat_template.jinja", "generation_config.json"):
        (base / "model" / name).write_text(name)
    (base / "model/sub/weights.bin").write_text("deep")
    (base / "model/README.md").write_text("prose")
    return ServableSpec("g", base, base / "graph.pbtxt", subconfig=base / "subconfig.json")


Edit = Callable[[Path], object]

CHANGES: dict[str, Edit] = {
    "graph": lambda d: (d / "graph.pbtxt").write_text("other"),
    "graph gone": lambda d: (d / "graph.pbtxt").unlink(),
    "calculators": lambda d: (d / "calculators.py").write_text("x = 1"),
    "subconfig": lambda d: (d / "subconfig.json").write_text("{}"),
    "template": lambda d: (d / "model/chat_template.jinja").write_text("other"),
    "generation config": lambda d: (d / "model/generation_config.json").write_text("{}"),
    "same size": lambda d: (d / "model/openvino_model.bin").write_text("openvino_model.bim"),
    "deep": lambda d: (d / "model/sub/weights.bin").write_text("deeper"),
    "new file": lambda d: (d / "model/tokenizer.json").write_text("{}"),
    "file gone": lambda d: (d / "model/openvino_model.xml").unlink(),
    "model gone": lambda d: shutil.rmtree(d / "model"),
}
NO_CHANGES: dict[str, Edit] = {
    "touch": lambda d: [os.utime(f, (1, 1)) for f in d.rglob("*")],
    "copy over itself": lambda d: [
        (shutil.copy(f, f"{f}~"), os.replace(f"{f}~", f)) for f in d.rglob("*") if f.is_file()
    ],
    "prose": lambda d: (d / "model/README.md").write_text("more prose"),
    "compile cache": lambda d: [(d / "model/.cache").mkdir(), (d / "model/.cache/blob.bin").write_text("x")],
}


@pytest.mark.parametrize(
    ("edit", "changes"),
    [pytest.param(e, True, id=n) for n, e in CHANGES.items()]
    + [pytest.param(e, False, id=n) for n, e in NO_CHANGES.items()],
)
def test_content_decides(spec: ServableSpec, edit: Edit, changes: bool) -> None:
    prints = Fingerprints()
    paths = [str(spec.base / "model")]
    before = prints.of(spec, paths)
    assert prints.of(spec, paths) == before
    edit(spec.base)
    assert (prints.of(spec, paths) != before) is changes
    assert prints.of(spec, paths) == Fingerprints().of(spec, paths), "remembering makes no difference"


def test_a_link_turned_to_another_model_is_a_change(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "openvino_model.bin").write_text(version)
    link = tmp_path / "current"
    link.symlink_to("v1")
    prints = Fingerprints()
    before = prints.model(str(link))
    link.unlink()
    link.symlink_to("v2")
    assert prints.model(str(link)) != before


def test_of_a_large_file_only_samples_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MAX_HASHED", 1 << 20)
    monkeypatch.setattr(fingerprint, "BLOCK", 4096)
    path = tmp_path / "model.gguf"
    content = bytearray(os.urandom(4 << 20))
    path.write_bytes(content)
    prints = Fingerprints()
    first = prints.file(str(path))
    read: list[int] = []
    real = os.read
    monkeypatch.setattr(fingerprint.os, "read", lambda fd, n: read.append(n) or real(fd, n))
    for at in (0, len(content) - 1):
        content[at] ^= 1
        path.write_bytes(content)
        assert prints.file(str(path)) != first
        content[at] ^= 1
    path.write_bytes(os.urandom(4 << 20))
    assert prints.file(str(path)) != first
    assert sum(read) < 4 << 20
    read.clear()
    prints.file(str(path))
    assert not read, "nothing is read while size, times and inode are the same"
