"""Writes ovserve/protos/*_pb2.py and *.pyi from proto/; for `make proto`. `--check` fails on a difference.

Needs the `proto` group of pyproject.toml. That group wants its own virtualenv: the protoc it pins is an old
one on purpose (generated code runs on its own protobuf release and newer, never older), and grpcio-tools of
that age refuses the protobuf 7 that the server itself may use.

What protoc writes is changed in one point: descriptors go to `ovserve.protos.pool`, not to protobuf's
process-wide pool. Our message names are MediaPipe's, so in the shared pool `import mediapipe` beside us would
be a name clash.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
import tempfile
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent
PACKAGE = Path("ovserve/protos")
TARGET = PROTO_ROOT.parent / PACKAGE

POOL_IMPORT = "from google.protobuf import descriptor_pool as _descriptor_pool\n"
PRIVATE_IMPORT = "from ovserve.protos.pool import POOL as _POOL\n"
POOL_USE = "_descriptor_pool.Default()"
DIGEST = "# sha256 of the source: "


def main() -> int:
    """0 when the checked-in code is (now) right, 1 when `--check` found a difference."""
    arguments = argparse.ArgumentParser(description="generate ovserve/protos from proto/")
    arguments.add_argument("--check", action="store_true", help="write nothing; fail if the code differs")
    check: bool = arguments.parse_args().check
    wanted = generate()
    present = {path.name: path.read_text("utf-8") for path in TARGET.glob("*_pb2.py*")}
    if not check:
        for name in present.keys() - wanted.keys():
            (TARGET / name).unlink()
        for name, text in wanted.items():
            (TARGET / name).write_text(text, "utf-8", newline="\n")
        return 0
    differing = sorted(name for name in present | wanted if present.get(name) != wanted.get(name))
    for name in differing:
        before, after = present.get(name, ""), wanted.get(name, "")
        sys.stderr.writelines(
            difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, "generated", n=1)
        )
    if differing:
        sys.stderr.write(f"\nstale: {', '.join(differing)}; run `make proto`\n")
    return 1 if differing else 0


def generate() -> dict[str, str]:
    """File name to text, for every module and stub."""
    try:
        from grpc_tools import protoc
    except ImportError:
        sys.exit("grpcio-tools is not installed here; use `make proto`, which has a virtualenv for it")
    sources = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    with tempfile.TemporaryDirectory() as folder:
        command = ["protoc", f"-I{PROTO_ROOT}", f"-I{well_known}", f"--python_out={folder}"]
        command += [f"--plugin=protoc-gen-mypy={plugin}", f"--mypy_out=quiet:{folder}"]
        if protoc.main([*command, *map(str, sources)]) != 0:
            sys.exit("protoc failed")
        texts = {path.name: path.read_text("utf-8") for path in (Path(folder) / PACKAGE).iterdir()}
    for source in sources:
        module = f"{source.stem}_pb2.py"
        texts[module] = DIGEST + digest(source) + "\n" + make_private(module, texts[module])
    return texts


def digest(source: Path) -> str:
    """Lets a test notice a stale module without protoc; line endings do not count."""
    return hashlib.sha256(source.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def make_private(name: str, text: str) -> str:
    if text.count(POOL_IMPORT) != 1 or text.count(POOL_USE) != 1:
        sys.exit(f"{name}: this protoc writes the pool differently; adapt make_private()")
    return text.replace(POOL_IMPORT, PRIVATE_IMPORT).replace(POOL_USE, "_POOL")


if __name__ == "__main__":
    sys.exit(main())
