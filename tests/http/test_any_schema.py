"""Any JSON for a schema, garbage and odd ones, against the real engine: a valid instance, or a 400; and the
engine lives."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.breadth import examples
from tests.conftest import Server
from tests.odd_schemas import SCHEMAS

IGNORED = "x-ovserve-ignored-params"


def ask(server: Server, schema: Any, seed: int) -> httpx.Response:
    body = {
        "model": "smollm2", "prompt": "{", "max_tokens": 25, "temperature": 1.5, "seed": seed,
        "guided_json": schema,
    }  # fmt: skip
    return httpx.post(f"{server.v3}/completions", content=json.dumps(body).encode(), timeout=230)


@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # some schemas are large
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 9))
def test_a_valid_instance_or_a_400(server: Server, schema: Any, seed: int) -> None:
    engine = server.engine_pid()
    answer = ask(server, schema, seed)
    assert server.engine_pid() == engine, schema
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
        return
    assert answer.status_code == 200, (schema, answer.text)
    [choice] = answer.json()["choices"]
    if choice["finish_reason"] == "length" or schema is None:  # null is absent
        return
    instance = json.loads(choice["text"])
    try:
        judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    except ValueError:
        return  # no JSON schema at all, though the compiler makes something of it
    assert judge.is_valid(instance) or answer.headers.get(IGNORED), (schema, instance)
