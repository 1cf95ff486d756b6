"""Load a .gguf file that this process may not write.

- What the library does: it opens .gguf files for reading and writing, though it only reads them. A file of
  another user, or on a read-only file system, is "Failed to open ... with gguf_open". Containers usually have
  such files: /mnt/models of KServe, a claim that is mounted read-only, an image with models.
- The way around: the library gets a copy. It has no name on the disk, so it is gone with the process.
- Seen: tests/engine/test_gguf.py, and https://github.com/antirez/gguf-tools/issues/18, read on 2026-11-23.
  Versions: OpenVINO GenAI 2026.4.1.
- It can go when the library opens .gguf files for reading alone.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ovserve.errors import LoadError

PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
CHUNK = 16 << 20


@contextmanager
def writable(path: str) -> Iterator[str]:
    """Yield what the library is to open: `path`, or where that may not be written, a copy for as long as this
    lasts. Raises LoadError if there is no room for the copy."""
    if not path.endswith(".gguf") or os.access(path, os.W_OK) or not os.access(path, os.R_OK):
        yield path
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ovserve-gguf-")))
        try:
            for part in _parts(Path(path)):
                copy = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                with part.open("rb") as source:
                    shutil.copyfileobj(source, copy, CHUNK)
                copy.flush()
                (folder / part.name).symlink_to(f"/proc/self/fd/{copy.fileno()}")
        except OSError as error:
            raise LoadError(
                f"the library needs a .gguf file that it may write, and a copy in {folder.parent} failed: "
                f"{error.strerror}; `ovserve pull --convert` makes a form that is only read",
                file=path,
            ) from error
        print(f"{path} may not be written: a copy in {folder.parent} is read", file=sys.stderr)  # noqa: T201  the log
        yield str(folder / Path(path).name)


def _parts(path: Path) -> list[Path]:
    """Return the files of a model that was split, as the library looks for them next to the first."""
    if not PART.search(path.name):
        return [path]
    return sorted(path.parent.glob(PART.sub("-*.gguf", path.name)))
