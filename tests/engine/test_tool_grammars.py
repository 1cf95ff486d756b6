"""A required call, in every dialect there is: the real engine writes it under the dialect's grammar, with a
model that was trained on none of them, and the dialect's own parser reads it."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema_rs
import pytest

from ovserve.engine.genai import GenAIEngine
from ovserve.engine.messages import Add, Compiled, EngineSpec, StepItem
from ovserve.llm.constraint import Constraint, structural_tag
from ovserve.llm.guidance import guided
from ovserve.llm.parsing import default, fold, make_parser
from ovserve.llm.request import Sampling
from ovserve.llm.tooling import ToolPolicy

PROMPT = "<|im_start|>user\nWhat is the weather in Oslo and Rome?<|im_end|>\n<|im_start|>assistant\n"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "wind": {"type": "boolean"},
    },
    "required": ["city", "days"],
}  # fmt: skip
TOOLS: Any = (
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get_time"}},
)
NAMED = ToolPolicy(TOOLS, "required", ("get_weather",), parallel=False)
REQUIRED = ToolPolicy(TOOLS, "required", ("get_weather", "get_time"))
DIALECTS = sorted(default().tool_names)


@pytest.fixture(scope="module")
def engine(model_path: str) -> GenAIEngine:
    return GenAIEngine(EngineSpec(model_path))


def answers(
    engine: GenAIEngine, constraints: dict[str, Constraint], **sampling: Any
) -> dict[str, tuple[str, str | None]]:
    """Text and finish reason by name; all are answered side by side."""
    names = list(constraints)
    for i, name in enumerate(names):
        engine.compile(-1 - i, structural_tag(constraints[name].format))
    words = []
    while len(words) < len(names):
        words += engine.compiled()
        time.sleep(0.001)
    for word in words:
        assert isinstance(word, Compiled), (names[-1 - word.id], word)
    for i, name in enumerate(names):
        wanted = Sampling(
            **{"max_tokens": 480, "temperature": 0.7, "seed": 3, "constraint": constraints[name], **sampling}
        )
        engine.add(Add(1 + i, PROMPT, False, wanted))
    texts = dict.fromkeys(names, "")
    finished: dict[str, str | None] = {}
    while engine.live():
        engine.step()
        for item in engine.collect():
            assert isinstance(item, StepItem)
            texts[names[item.id - 1]] += item.text
            finished[names[item.id - 1]] = item.finish_reason
    return {name: (texts[name], finished[name]) for name in names}


def forced(policy: ToolPolicy, dialect: str) -> Constraint:
    made = guided(policy, None, tool=dialect, reasoning=None, inside_reasoning=False)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def named(engine: GenAIEngine) -> dict[str, tuple[str, str | None]]:
    return answers(engine, {dialect: forced(NAMED, dialect) for dialect in DIALECTS})


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_named_function_is_called_once(named: dict[str, tuple[str, str | None]], dialect: str) -> None:
    text, finish = named[dialect]
    parser = make_parser(dialect, None, TOOLS, False)
    answer = fold([*parser.feed(text), *parser.finish(finish == "length")])
    assert finish == "stop", text
    assert [call.name for call in answer.tool_calls] == ["get_weather"], text
    jsonschema_rs.validate(SCHEMA, json.loads(answer.tool_calls[0].arguments))
    assert not answer.content, text


@pytest.fixture(scope="module")
def required(engine: GenAIEngine) -> dict[str, tuple[str, str | None]]:
    return answers(engine, {dialect: forced(REQUIRED, dialect) for dialect in DIALECTS}, max_tokens=90)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_required_is_calls_only(required: dict[str, tuple[str, str | None]], dialect: str) -> None:
    """Of two functions, as many calls as the model likes; cut or not, every whole one is right."""
    text, finish = required[dialect]
    parser = make_parser(dialect, None, TOOLS, False)
    answer = fold([*parser.feed(text), *parser.finish(finish == "length")])
    whole = answer.tool_calls if finish == "stop" else answer.tool_calls[:-1]
    assert answer.tool_calls, text
    assert finish == "length" or not answer.content, text
    for call in whole:
        schema = SCHEMA if call.name == "get_weather" else {"type": "object", "maxProperties": 0}
        jsonschema_rs.validate(schema, json.loads(call.arguments))


def test_thinking_goes_first_and_is_free(engine: GenAIEngine) -> None:
    """The prompt has opened the thinking, so the answer begins inside and the call comes after its end."""
    made = guided(NAMED, None, tool="hermes3", reasoning="qwen3", inside_reasoning=True)
    assert made is not None
    prompt = PROMPT + "<think>\nI call the function.</think>"
    closed = guided(NAMED, None, tool="hermes3", reasoning="qwen3", inside_reasoning=False)
    assert closed is not None
    texts = answers(engine, {"inside": made, "closed": closed}, max_tokens=60)
    assert "<tool_call>" not in texts["inside"][0].partition("</think>")[0]
    assert prompt.endswith("</think>")
    text, finish = texts["closed"]
    parser = make_parser("hermes3", "qwen3", TOOLS, False)
    answer = fold([*parser.feed(text), *parser.finish(finish == "length")])
    assert answer.tool_calls or answer.reasoning
