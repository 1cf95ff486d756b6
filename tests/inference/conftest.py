"""One server of plain models, shared by the tests of this folder that do not change what it serves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Server, start_process
from tests.ports import free_port

FORMATS = "onnx", "pb", "tflite", "pd"  # of the versions of the model `formats`; Paddle's has two files


@dataclass
class Site:
    server: Server
    root: Path
    grpc: str

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def infer(self, model: str, *inputs: dict[str, Any], **body: Any) -> httpx.Response:
        return httpx.post(
            f"{self.url}/v2/models/{model}/infer", json={"inputs": list(inputs), **body}, timeout=30
        )

    def states(self, model: str) -> dict[str, tuple[str, str]]:
        """State and message of each version."""
        found = httpx.get(f"{self.url}/v1/config").json()[model]["model_version_status"]
        return {v["version"]: (v["state"], v["status"]["error_message"]) for v in found}


def start_site(root: Path, entries: list[dict[str, Any]], *flags: str) -> Site:
    (root / "config.json").write_text(
        json.dumps({"model_config_list": [{"config": entry} for entry in entries]})
    )
    port = free_port()
    server = start_process(
        "--config_path", str(root / "config.json"), "--grpc_port", str(port), "--metrics_enable", *flags
    )
    return Site(server, root, f"127.0.0.1:{port}")


@pytest.fixture(scope="package")
def site(plain_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    os.symlink(plain_models, root / "models")
    entries: list[dict[str, Any]] = [
        {"name": name, "base_path": f"models/{name}"}
        for name in ("dummy", "two", "passthrough", "passthrough_string", "product", "types")
    ]
    entries.append({"name": "org/dummy", "base_path": "models/dummy"})
    entries.append({"name": "rows", "base_path": "models/dummy_fp64", "batch_size": "1:4", "nireq": 1})
    entries.append({"name": "image", "base_path": "models/increment_1x3x4x5", "layout": "NHWC:NCHW"})
    entries.append({**entries[-1], "name": "range", "shape": "(1,4:8,-1,3)"})
    entries.append({"name": "rgb", "base_path": "models/increment_1x3x4x5", "color_format": "RGB"})
    for version, suffix in enumerate(FORMATS, 1):
        (root / f"formats/{version}").mkdir(parents=True)
        for file in (plain_models / "formats").glob(f"dummy.{suffix}*"):
            shutil.copy(file, root / f"formats/{version}")
    entries.append({"name": "formats", "base_path": "formats", "model_version_policy": {"all": {}}})
    entries.append({"name": "wrong", "base_path": "models/dummy", "shape": {"z": "(1,10)"}})
    entries.append({"name": "absent", "base_path": "models/none", "nireq": 2})
    made = start_site(root, entries)
    yield made
    made.server.stop()
