"""docs/api.md is what the server's own tables say."""

from __future__ import annotations

import pytest

from scripts.api_docs import FILE, schema_text, text


def test_the_api_document_is_fresh() -> None:
    assert FILE.read_text() == text(), "run `make docs`"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "number [0, 1)"),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}, "integer [-2^63, 2^64-1]"),
        (
            {"type": "array", "items": {"type": "string"}, "maxItems": 16},
            "array of string ≤ 16",
        ),
        ({"anyOf": [{"type": "string"}, {"enum": [None, 1]}]}, "string or `null`, `1`"),
    ],
)
def test_ranges_in_words(schema: dict[str, object], says: str) -> None:
    assert schema_text(schema) == says
