"""Write tests/vectors/gguf/: what llama.cpp makes of the small models that the tests write.

    python -m scripts.gguf_vectors HEADERS LIBRARIES

HEADERS: directories with llama.h and ggml.h, joined by a colon, such as `include:ggml/include` of llama.cpp's
source; LIBRARIES: the directory with libllama, libggml and libggml-base of the same version. Needs g++.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.engine.gguf_cases import (
    CASES,
    IDS,
    LENGTH,
    LOGITS,
    SHOWN,
    TEXTS,
    TOKENS,
    VOCABULARIES,
    write_vocabulary,
)
from tests.engine.random_gguf import write

SOURCE = Path(__file__).with_name("llama_cpp_answers.cpp")


def build(headers: str, libraries: str, target: Path) -> None:
    includes = [f"-I{place}" for place in headers.split(":")]
    linked = ["-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{Path(libraries).absolute()}"]
    subprocess.run(["g++", "-O1", "-o", target, SOURCE, *includes, f"-L{libraries}", *linked], check=True)


def main() -> None:
    headers, libraries = sys.argv[1:3]
    environment = os.environ | {"GGML_BACKENDS": libraries}
    with tempfile.TemporaryDirectory() as scratch:
        program, model = Path(scratch) / "answers", Path(scratch) / "m.gguf"
        build(headers, libraries, program)
        logits = {}
        for name, case in CASES.items():
            write(model, **case)
            command: list[str | Path] = [program, model, "logits", ",".join(map(str, IDS)), str(LENGTH)]
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            logits[name] = np.frombuffer(done.stdout, np.float32).reshape(len(IDS), -1)[SHOWN]
        tokens = {}
        for name in VOCABULARIES:
            write_vocabulary(model, name)
            texts = "".join(f"{text}\0" for text in TEXTS).encode()
            done = subprocess.run(
                [program, model, "tokens", "1"],
                env=environment,
                check=True,
                input=texts,
                stdout=subprocess.PIPE,
            )
            tokens[name] = [json.loads(line) for line in done.stdout.splitlines()]
    LOGITS.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(LOGITS, allow_pickle=False, **logits)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(rows)}" for name, rows in tokens.items())
    TOKENS.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
