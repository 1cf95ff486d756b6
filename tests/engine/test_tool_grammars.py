"""A required call, in every dialect there is, written under the dialect's grammar and read by its own parser.

Written by chance, which takes every branch of a grammar in its turn; and, slowly, by the real engine with a
model that was trained on none of them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ovserve.engine.protocol.messages import Add, Compiled, StepItem
from ovserve.engine.protocol.specs import TextSpec
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.llm.grammar.constraint import Constraint, structural_tag
from ovserve.llm.grammar.guidance import guided
from ovserve.llm.output import FoldedChoice, ToolCall
from ovserve.llm.parsing.registry import default
from ovserve.llm.request import Sampling, ToolPolicy
from tests.breadth import examples
from tests.engine.walks import Walks
from tests.llm.parsing.cuts import completion, packets

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
def engine(model: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(model.parent)))


def answers(
    engine: GenAIEngine, constraints: dict[str, Constraint], **sampling: Any
) -> dict[str, tuple[str, str | None]]:
    """Text and finish reason by name; all are answered side by side."""
    names = list(constraints)
    for i, name in enumerate(names):
        engine.grammars.compile(-1 - i, structural_tag(constraints[name].format))
    words = []
    while len(words) < len(names):
        words += engine.grammars.compiled()
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


def read(
    dialect: str, text: str, *, cut: bool, reasoning: str | None = None, inside: bool = False
) -> FoldedChoice:
    return completion(packets([text], dialect, reasoning, list(TOOLS), implicit=inside, cut_off=cut))


def check_arguments(call: ToolCall) -> None:
    schema = SCHEMA if call.name == "get_weather" else {"type": "object", "maxProperties": 0}
    jsonschema_rs.validate(schema, json.loads(call.arguments))


# ---- by chance


@pytest.fixture(scope="module")
def walks(model_path: str) -> Walks:
    return Walks(model_path)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_whatever_the_grammar_allows_is_calls_only(walks: Walks, dialect: str) -> None:
    for seed in range(examples(1)):
        text, ended = walks.anything(forced(REQUIRED, dialect), seed)
        answer = read(dialect, text, cut=not ended)
        assert answer.tool_calls, text
        assert not ended or not answer.content, text
        for call in answer.tool_calls if ended else answer.tool_calls[:-1]:
            check_arguments(call)
        text, ended = walks.anything(forced(NAMED, dialect), seed)
        answer = read(dialect, text, cut=False)
        assert ended, text
        assert [call.name for call in answer.tool_calls] == ["get_weather"], text
        check_arguments(answer.tool_calls[0])
        assert not answer.content, text


AUTO = ToolPolicy(TOOLS, "auto", ("get_weather", "get_time"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_in_auto_text_is_free_and_a_call_that_begins_is_held(walks: Walks, dialect: str) -> None:
    """What a model writes under `required` it may write in `auto`, beside any text; but not with other
    arguments."""
    made = guided(AUTO, None, tool=dialect, reasoning=None, inside_reasoning=False, guide_auto=True)
    assert made is not None
    call, ended = walks.anything(forced(NAMED, dialect), 1)
    assert ended
    wrong = call.replace("Oslo", "Ohio").replace("Rome", "Ruhr")
    assert wrong != call
    texts = ["It rains. [1] {2} <b>(3)</b>", call, wrong]
    walks.learn(texts)
    assert [walks.tries(made, text) == text for text in texts] == [True, True, False]


# ---- thinking first, never inside

# A tool dialect that goes with the thinking one; hermes3 where models differ.
WITH = {name: name for name in set(default().reasoning_names) & set(default().tool_names)}
WITH |= {"deepseek_r1": "deepseek_v3", "magistral": "devstral"}
THOUGHT = "Oslo or Rome? I call it."


@pytest.fixture(scope="module")
def thinking(walks: Walks) -> dict[str, dict[str, str]]:
    """By reasoning dialect, answers by what they are; the walks have learnt all of them."""
    made: dict[str, dict[str, str]] = {}
    for name in default().reasoning_names:
        dialect, tool = default().reasoning(name), WITH.get(name, "hermes3")
        assert dialect is not None
        call, ended = walks.anything(forced(NAMED, tool), 1)
        assert ended
        start, end, gap = dialect.starts[0], dialect.ends[0], dialect.after or "\n\n"
        start += f"{dialect.label}\n" if dialect.label else ""
        made[name] = {
            "call": call,
            "thinks first": f"{start}{THOUGHT}{end}{gap}{call}",
            "goes on thinking": f"{THOUGHT}{end}{gap}{call}",
            "thinks of a call": f"{start}{THOUGHT} {call[:-4]} no{end}{gap}{call}",
            "only thinks": f"{start}{THOUGHT}{end}",
            "never ends thinking": f"{THOUGHT} {call}",
            "thinks and talks": f"{start}{THOUGHT}{end}{gap}Sunny.",
        }
    walks.learn(text for texts in made.values() for text in texts.values())
    return made


@pytest.mark.parametrize("name", default().reasoning_names)
def test_thinking_comes_first_and_is_free_and_a_call_follows(
    walks: Walks, thinking: dict[str, dict[str, str]], name: str
) -> None:
    tool, texts, dialect = WITH.get(name, "hermes3"), thinking[name], default().reasoning(name)
    assert dialect is not None
    for inside in (False, True):
        if inside and dialect.framed:
            continue  # a prompt that ends inside a message of it was never seen
        begun = inside or dialect.always
        grammar = guided(NAMED, None, tool=tool, reasoning=name, inside_reasoning=inside)
        assert grammar is not None
        good = {"goes on thinking"} if begun else {"call", "thinks first", "thinks of a call"}
        if any(text in texts["call"] for text in dialect.foreign):
            good -= {"thinks of a call"}  # it would be one
        for what, text in texts.items():
            if begun and what in ("thinks first", "thinks of a call"):
                continue  # a second start tag is thinking like any other text
            accepted = walks.tries(grammar, text) == text
            assert accepted == (what in good), (what, text)
            if accepted:
                answer = read(tool, text, cut=False, reasoning=name, inside=inside)
                assert [call.name for call in answer.tool_calls] == ["get_weather"], text
                assert not answer.content, text
                assert answer.reasoning.startswith("" if what == "call" else THOUGHT), answer


# ---- by the real engine


@pytest.fixture(scope="module")
def named(engine: GenAIEngine) -> dict[str, tuple[str, str | None]]:
    return answers(engine, {dialect: forced(NAMED, dialect) for dialect in DIALECTS})


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_named_function_is_called_once(named: dict[str, tuple[str, str | None]], dialect: str) -> None:
    text, finish = named[dialect]
    answer = read(dialect, text, cut=finish == "length")
    assert finish == "stop", text
    assert [call.name for call in answer.tool_calls] == ["get_weather"], text
    check_arguments(answer.tool_calls[0])
    assert not answer.content, text


@pytest.fixture(scope="module")
def required(engine: GenAIEngine) -> dict[str, tuple[str, str | None]]:
    return answers(engine, {dialect: forced(REQUIRED, dialect) for dialect in DIALECTS}, max_tokens=90)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_required_is_calls_only(required: dict[str, tuple[str, str | None]], dialect: str) -> None:
    """Of two functions, as many calls as the model likes; cut or not, every whole one is right."""
    text, finish = required[dialect]
    answer = read(dialect, text, cut=finish == "length")
    assert answer.tool_calls, text
    assert finish == "length" or not answer.content, text
    for call in answer.tool_calls if finish == "stop" else answer.tool_calls[:-1]:
        check_arguments(call)


@pytest.mark.slow
def test_the_engine_thinks_first(engine: GenAIEngine) -> None:
    """The prompt has opened the thinking, so the answer begins inside; and one that has closed it."""
    made = guided(NAMED, None, tool="hermes3", reasoning="qwen3", inside_reasoning=True)
    closed = guided(NAMED, None, tool="hermes3", reasoning="qwen3", inside_reasoning=False)
    assert made is not None
    assert closed is not None
    texts = answers(engine, {"inside": made, "closed": closed}, max_tokens=60)
    assert "<tool_call>" not in texts["inside"][0].partition("</think>")[0]
    text, finish = texts["closed"]
    answer = read("hermes3", text, cut=finish == "length", reasoning="qwen3")
    assert answer.tool_calls or answer.reasoning
