"""The import of openvino without its converter of models, in a process of its own as an engine is one."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENGINE = "import sys, ovserve.kinds.text.worker.genai, openvino\n"
LATER = """
assert "openvino.tools.ovc" not in sys.modules
assert not hasattr(openvino, "convert_models")
convert = openvino.convert_model
assert convert is openvino.convert_model
from openvino.tools.ovc import convert_model
assert convert is convert_model
"""
EARLIER = "import openvino\nassert 'convert_model' in vars(openvino)\n"
STILL = "from openvino import convert_model\nassert convert_model is vars(openvino)['convert_model']\n"


@pytest.mark.parametrize(
    "code",
    [ENGINE + LATER, EARLIER + ENGINE + STILL, ENGINE + STILL],
    ids=["asked for later", "openvino imported before", "imported by name"],
)
def test_the_converter_is_imported_when_it_is_used(code: str) -> None:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
