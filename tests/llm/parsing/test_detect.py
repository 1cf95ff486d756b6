"""A template taken for another dialect's; a prompt whose open thinking is missed, or imagined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ovserve.llm.parsing import detect, implicit_reasoning_start

VECTORS = Path(__file__).parents[2] / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / name).read_text())
    return found


@pytest.mark.parametrize("vector", load("templates_detect.json"), ids=lambda v: v["name"])
def test_detect_vectors(vector: dict[str, Any]) -> None:
    assert detect(vector["template"]) == tuple(vector["expect"].values())


@pytest.mark.parametrize("vector", load("templates_implicit_reasoning.json"), ids=lambda v: v["name"])
def test_implicit_vectors(vector: dict[str, Any]) -> None:
    found = implicit_reasoning_start(vector["reasoning_parser"], vector["prompt_end"])
    assert found is vector["expect"]["implicit_reasoning_start"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<|channel|> <|start|> message.thinking", ("gptoss", "gptoss")),
        ("<|start|><|message|><|eom|><|eot|>", ("onyx", "onyx")),
        ("<|tool_call>call: <|channel>thought", ("gemma4", "gemma4")),
        ("<tool_call> </tool_call> <function= <parameter= </parameter>", ("qwen3coder", None)),
        ("<tool_call> </tool_call> <function= <parameter= </parameter> <think>", ("qwen3coder", "qwen3")),
        ('<param name="', ("minicpm5", "minicpm5")),
        ("<|tool_call_start|>", ("lfm2", None)),
        ("<|tool_list_start|>[ <|tool_response_start|>", ("lfm2", None)),
        ("keep_past_thinking message.thinking", ("lfm2", "lfm2")),
        ("functools[", ("phi4", None)),
        ("[TOOL_CALLS] [ARGS]", ("devstral", None)),
        ("[TOOL_CALLS] [ARGS] [THINK]", ("devstral", "magistral")),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", ("mistral", None)),
        ("<tool_call> </tool_call>", ("hermes3", None)),
        ("<tool_call> </tool_call> <think>", ("hermes3", "qwen3")),
        ("{{ content.split('</think>')[-1] }}", (None, "qwen3")),
        # OVMS takes these for something else, or for nothing.
        ("<tool_call> </tool_call> <arg_key> <think> </think>", ("glm45", "glm45")),
        ("<seed:tool_call> <function= <parameter= </parameter> <seed:think>", ("seed_oss", "seed_oss")),
        ("<｜tool▁calls▁begin｜> ```json content.split('</think>') </think>", ("deepseek_v3", "deepseek_r1")),
        ("<｜tool▁calls▁begin｜> <｜tool▁sep｜>", ("deepseek_v31", None)),
        ("<｜tool▁calls▁begin｜> <think> </think>", ("deepseek_v31", "qwen3")),
        ("<｜DSML｜function_calls>", ("deepseek_v32", None)),
        ("<|role_sep|> <|message_sep|> '<｜GCML｜tool_calls>' <think>", ("gigachat35", "qwen3")),
        ("<|tool_calls_section_begin|>", ("kimi_k2", None)),
        ("{{ '<|open|>' + tag }} <|sep|> open_tag('think')", ("kimi_k3", "kimi_k3")),
        ("{% set ns = ']<]minimax[>[' %} '<tool_call>' <mm:think> </mm:think>", ("minimax_m3", "minimax_m3")),
        ("<minimax:tool_call> </think>", ("minimax_m2", "deepseek_r1")),
        ("<|tool_call|>[", ("granite", None)),
        ("<|start_of_role|> <|tool_call|> <think> <response>", ("granite", "granite")),
        ("<|tool_call|> <|/tool_call|>", ("phi4", None)),
        ("<|action_start|>", ("internlm", None)),
        ("<tool_calls>", ("hunyuan", None)),
        ("<tool_calls> <|bom|>", ("jamba", None)),
        ("<tool_calls> <thinking>", ("apriel", "apriel")),
        ("<TOOLCALL>", ("nemotron_nano_v2", None)),
        ("<function_calls>", ("olmo3", None)),
        ("<|START_ACTION|> <|START_THINKING|>", ("command_r7b", "command_r7b")),
        ("<|tools_prefix|>", ("apertus", None)),
        ("<steptml:invoke", ("step3", None)),
        ("<|python_start|>", ("pythonic", None)),
        ("<function=name></function> <|python_tag|>", ("functionary_v31", None)),
        ("<|start_header_id|> {{ '>>>all\\n' + message['content'] }}", ("functionary_v32", None)),
        ("'function call' <|role_sep|>\\n <|message_sep|>\\n\\n", ("gigachat3", None)),
        ("'function call' <|role_sep|> <|message_sep|> <|function_call|>", ("gigachat31", None)),
        ('<|start_header_id|> {"name": f, "parameters": ...}', ("llama3", None)),
    ],
)
def test_detect(template: str, expected: tuple[str | None, str | None]) -> None:
    assert detect(template) == expected


def test_gemmas_closed_empty_thought_is_not_an_open_one() -> None:
    assert not implicit_reasoning_start("gemma4", "<|turn>model\n<|channel>thought\n<channel|>")


def test_seeds_budget_reflection_is_thinking() -> None:
    assert implicit_reasoning_start("seed_oss", "assistant\n<seed:think><seed:cot_budget_reflect>")


@pytest.mark.parametrize("name", [None, "", "none"])
def test_no_reasoning_parser_finds_no_start(name: str | None) -> None:
    assert not implicit_reasoning_start(name, "<think>")
