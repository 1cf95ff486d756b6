"""GenerateRequest is the narrow waist: what generates, and apart from it what only writers read."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import ovserve
from ovserve.llm.request import GenerateRequest, Presentation

PACKAGE = Path(ovserve.__file__).parent
ENGINE_SIDE = [
    path
    for folder in (
        "engine",
        "sandbox",
        "llm",
        *(f"kinds/{p.name}/worker" for p in (PACKAGE / "kinds").iterdir()),
    )
    for path in sorted((PACKAGE / folder).rglob("*.py"))
    if "admission" not in path.parts
]
ONLY_PRESENTATION = {field.name for field in msgspec.structs.fields(Presentation)}


def test_engine_side_code_never_reads_how_a_request_is_shown() -> None:
    readers = [
        str(path.relative_to(PACKAGE))
        for path in ENGINE_SIDE
        if "presentation" in path.read_text()
        and any(
            isinstance(node, ast.Attribute) and node.attr == "presentation"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert readers == []


def test_no_field_is_on_both_sides() -> None:
    assert not ONLY_PRESENTATION & {field.name for field in msgspec.structs.fields(GenerateRequest)}


def test_a_presentation_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Presentation().stream = True  # type: ignore[misc]
