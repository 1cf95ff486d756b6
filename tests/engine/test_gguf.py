"""Files that are not what they say: OpenVINO's own reader crashes on them, so ours must not."""

import contextlib
import os
import struct
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.engine.model.files import read_model_files
from ovserve.engine.model.gguf import ArrayLength, GGUFError, read_metadata
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.options import writable
from tests.breadth import examples
from tests.engine import random_gguf


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


ENTRIES = [
    entry("general.architecture", 8, text("llama")),
    entry("llama.context_length", 4, struct.pack("<I", 2048)),
    entry("llama.rope.freq_base", 6, struct.pack("<f", 0.5)),
    entry("tokenizer.ggml.add_bos_token", 7, b"\1"),
    entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
    entry("tokenizer.ggml.token_type", 9, struct.pack("<IQ3i", 5, 3, 1, 2, 3)),
    entry("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2B", 0, 2, 7, 8)),
]


def gguf(*entries: bytes, version: int = 3, tensors: int = 1, data: int = 64) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(entries)) + b"".join(entries)
    for _ in range(tensors):
        head += text("t") + struct.pack("<IQIQ", 1, 16, 0, 0)
    return head + b"\0" * (-len(head) % 32 + data)


WHOLE = gguf(*ENTRIES)


def read(tmp_path: Path, data: bytes) -> dict[str, object]:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    return dict(read_metadata(str(path)))


@pytest.mark.parametrize("version", [2, 3])
def test_values(tmp_path: Path, version: int) -> None:
    assert read(tmp_path, gguf(*ENTRIES, version=version)) == {
        "general.architecture": "llama",
        "llama.context_length": 2048,
        "llama.rope.freq_base": 0.5,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.tokens": ArrayLength(2),
        "tokenizer.ggml.token_type": ArrayLength(3),
        "nested": ArrayLength(1),
    }


def test_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    begin_of_data = len(WHOLE) - 64
    for length in range(begin_of_data):
        with pytest.raises(GGUFError):
            read(tmp_path, WHOLE[:length])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"<html>", "not a GGUF file"),
        (gguf(version=1), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "announces"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "announces"),
        (gguf(struct.pack("<Q", 2**63) + b"key"), "truncated"),
        (gguf(entry("k", 99, b"")), "unknown value type 99"),
        (gguf(entry("k", 9, struct.pack("<IQ", 9, 1) * 50)), "nest too deep"),
        (gguf(entry("k", 9, struct.pack("<IQ", 10, 2**63))), "announces"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**24), "announces 16777216 key-values"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**24, 0), "announces 16777216 tensors"),
        (gguf(entry("k", 9, struct.pack("<IQ", 9, 2**24))), "more texts and arrays"),
        (gguf(entry("k", 9, struct.pack("<IQ", 8, 2**24))), "more texts and arrays"),
        (gguf(entry("general.alignment", 4, struct.pack("<I", 0))), "alignment"),
        (gguf(data=0), "truncated"),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(GGUFError, match=said):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("texts", "size", "said"),
    [(1, 2**26 + 1, "its texts have more than 67108864 bytes"), (8, 2**23, "its texts have more than")],
)
def test_texts_are_limited_in_sum(tmp_path: Path, texts: int, size: int, said: str) -> None:
    """The files have 64 MB each, so they are not built when the tests are collected."""
    with pytest.raises(GGUFError, match=said):
        read(tmp_path, gguf(*(entry(f"k{i}", 8, text("x" * size)) for i in range(texts))))


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_any_damage_is_an_error_or_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(WHOLE) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(GGUFError):
        read(tmp_path_factory.getbasetemp(), bytes(damaged))


def test_no_objects_are_kept_for_the_tokens_of_the_real_file(model: Path) -> None:
    """The reader makes none for the 49152 tokens and 48900 merges, which take 9 MB, and reads no weights."""
    tracemalloc.start()
    try:
        found = read_metadata(str(model))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20
    assert found["llama.context_length"] == 8192
    assert found["tokenizer.ggml.tokens"] == ArrayLength(49152)


def test_both_chat_templates_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    random_gguf.write(path, strings={"tokenizer.chat_template.tool_use": "tools"})
    found = read_model_files(str(path))
    assert (found.chat_template, found.tool_template) == (random_gguf.TEMPLATE, "tools")


# -- a file that may not be written, which the library would open for writing


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write every file, so not as root."""
    if os.geteuid():
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def readable() -> Iterator[Path]:
    """A directory that others may read, unlike tmp_path."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_a_file_that_may_not_be_written_is_copied_with_all_its_parts(readable: Path) -> None:
    names = [f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    for name in (*names, "m.gguf"):
        (readable / name).write_bytes(name.encode())
        (readable / name).chmod(0o444)
    with as_nobody():
        with writable(str(readable / names[0])) as path:
            folder = Path(path).parent
            assert sorted(file.name for file in folder.iterdir()) == names
            for name in names:
                with (folder / name).open("r+b") as file:
                    assert file.read() == name.encode()
        assert not folder.exists()
        with writable(str(readable / "m.gguf")) as path:
            assert [file.name for file in Path(path).parent.iterdir()] == ["m.gguf"]


def test_a_file_that_may_be_written_is_used_as_it_is(tmp_path: Path) -> None:
    for path in (tmp_path / "m.gguf", tmp_path):
        (tmp_path / "m.gguf").touch()
        with writable(str(path)) as used:
            assert used == str(path)


def test_no_room_for_the_copy_is_said(readable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (readable / "m.gguf").touch(mode=0o444)

    def no_space(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ovserve.kinds.text.worker.genai.options.shutil.copyfileobj", no_space)
    says = pytest.raises(LoadError, match="No space left on device; `ovserve pull --convert`")
    with as_nobody(), says, writable(str(readable / "m.gguf")):
        pass
