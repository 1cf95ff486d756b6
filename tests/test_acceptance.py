"""`make acceptance` needs a checkout of OVMS; its list of outcomes does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx

from scripts.acceptance import files, judge
from scripts.acceptance_checks import CHECKS, tensors
from scripts.acceptance_outcomes import ABSENT, CONFIGURATIONS, CPP, GRAPHS

SITE = cast(Any, None)


def test_every_file_of_the_checkout_has_an_outcome() -> None:
    assert (len(GRAPHS), len(CONFIGURATIONS)) == (80, 101)
    outcomes = {*GRAPHS.values(), *(one for each in CONFIGURATIONS.values() for one in each.values())}
    assert outcomes >= CHECKS.keys(), "a check without a graph"
    assert all(" " in one for one in outcomes - CHECKS.keys()), "a misspelt check"


def test_the_files_are_found_by_their_content(tmp_path: Path) -> None:
    for part in ("src/test", "src/custom_nodes", "demos/one"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "demos/one/graph.pbtxt").touch()
    (tmp_path / "demos/one/config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "src/test/any.json").write_text('{"mediapipe_config_list": []}')
    assert files(tmp_path) == (["src/test/any.json"], ["demos/one/graph.pbtxt"])


def test_what_does_not_load_or_is_not_expected_is_wrong() -> None:
    states = {
        "gone": ("LOADING", "no such model"),
        "loads": ("AVAILABLE", "OK"),
        "other": ("LOADING", "no such model"),
        "new": ("AVAILABLE", "OK"),
        "right": ("LOADING", f"'X' is not known; {CPP}"),
    }
    expected = {"gone": "x + 1", "absent": "x", "loads": CPP, "other": ABSENT, "right": CPP}
    wrong = dict(judge(SITE, states, expected))
    assert {name for name, why in wrong.items() if not why} == {"right"}
    assert wrong.keys() == {*states, "absent"}


def test_inputs_distinguish_models(monkeypatch: Any) -> None:
    """A model that adds 1 does not pass as one that adds 0, nor one that reads the same input twice as a sum."""
    ends = [{"name": name, "datatype": "FP32", "shape": [-1, 10]} for name in ("x", "y")]
    monkeypatch.setattr(httpx, "get", lambda url: httpx.Response(200, json={"inputs": ends}))

    def infer(url: str, json: dict[str, Any]) -> httpx.Response:
        x = json["inputs"][0]["data"]
        output = {"name": "out", "shape": [2, 10], "data": [2 * value for value in x]}
        return httpx.Response(200, json={"outputs": [output]})

    monkeypatch.setattr(httpx, "post", infer)
    site = cast(Any, type("Site", (), {"url": "http://127.0.0.1:9"}))
    assert tensors(lambda x, y: 2 * x)(site, "m") == ""
    assert tensors(lambda x, y: x + y)(site, "m")
    assert tensors(lambda x, y: 2 * x + 1)(site, "m")
