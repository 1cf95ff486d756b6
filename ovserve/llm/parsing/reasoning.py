"""The forms in which models mark their reasoning: the shipped dialects, in the order of `detect`.

A row is a `ReasoningDialect` with its tags and the sign by which a chat template shows it. The particular
stands before the general: many models write the tags of qwen3. A model whose calls are read by a tool dialect
of the same name has its source there.
"""

# ruff: noqa: RUF001 - the bars are DeepSeek's own characters
from __future__ import annotations

from functools import partial

from ovserve.llm.parsing.dialect import ReasoningDialect, Sign, all_of, any_of, row
from ovserve.llm.parsing.tools.pythonic import Lfm2
from ovserve.llm.parsing.tools.tagged_xml import KIMI_K3_FRAME

_row = partial(row, ReasoningDialect)

# The tag, or the idiom by which templates cut old reasoning out of history.
_has_think = any_of("<think>", "content.split('</think>')")


def _shows_r1(template: str) -> bool:
    """V3.1 and later are hybrid: their prompt opens the reasoning, or closes it at once."""
    r1 = all_of("<｜tool▁calls▁begin｜>", "```json")(template) or "<minimax:tool_call>" in template
    return "</think>" in template and r1


def _shows_granite(template: str) -> bool:
    phrases = all_of("my thought process", "my response")
    return phrases(template) or all_of("<|start_of_role|>", "<think>")(template)


def _always(name: str, sign: Sign | None) -> type[ReasoningDialect]:
    """The answer begins inside the reasoning; a `<think>` that the model repeats is dropped."""
    return _row(name, sign, always=True, erase=("<｜end▁of▁sentence｜>",))


DIALECTS: tuple[type[ReasoningDialect], ...] = (
    # OpenAI gpt-oss: reasoning is the analysis channel; tools/recipients.py reads the whole answer.
    _row(
        "gptoss",
        all_of("<|channel|>"),
        framed=True,
        starts=("<|channel|>analysis<|message|>",),
        ends=("<|end|>",),
        after="<|start|>assistant",
        answer="<|channel|>final<|message|>",
        foreign=("<|start|>", "<|channel|>", "<|return|>", "<|call|>"),
    ),
    # Reasoning is what the model says to itself; tools/recipients.py reads the whole answer.
    _row(
        "onyx",
        all_of("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        framed=True,
        starts=("to=self<|message|>",),
        ends=("<|eom|>",),
        after="<|start|>assistant",
        answer=" to=user<|message|>",
        foreign=("<|start|>", "<|eot|>"),
    ),
    # Google Gemma 4. The word belongs to the tag; without it the text is reasoning all the same. With
    # reasoning off the template writes an empty thought itself, which is closed and so opens nothing.
    _row(
        "gemma4",
        any_of("<|tool_call>call:", "<|channel>thought"),
        starts=("<|channel>",),
        ends=("<channel|>",),
        label="thought",
        erase=("<turn|>", "<|tool_response>", "<eos>"),
    ),
    # GLM 4.5, 4.6, 4.7.
    _row(
        "glm45",
        lambda template: "<arg_key>" in template and any_of("<think>", "</think>")(template),
        erase=("<|user|>", "<|observation|>", "<|endoftext|>"),
    ),
    # ByteDance Seed-OSS. A budget of 0 also opens a reflection inside the reasoning.
    _row(
        "seed_oss",
        all_of("<seed:think>"),
        starts=("<seed:think>",),
        ends=("</seed:think>",),
        inner="<seed:cot_budget_reflect>",
        erase=("<seed:eos>",),
    ),
    # MiniMax M3.
    _row("minimax_m3", all_of("<mm:think>"), starts=("<mm:think>",), ends=("</mm:think>",), erase=("[e~[",)),
    # Kimi K3: the answer stands in tags as well.
    _row(
        "kimi_k3",
        all_of("<|open|>", "<|sep|>"),
        starts=("<|open|>think<|sep|>",),
        ends=("<|close|>think<|sep|>",),
        erase=KIMI_K3_FRAME,
        after="<|open|>response<|sep|>",
    ),
    # DeepSeek R1 and its distills, MiniMax M2. Hybrid models, whose prompt decides, are qwen3.
    _always("deepseek_r1", _shows_r1),
    # Cohere Command R7B and A: the answer stands in tags as well.
    _row(
        "command_r7b",
        all_of("<|START_THINKING|>"),
        starts=("<|START_THINKING|>",),
        ends=("<|END_THINKING|>",),
        erase=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"),
    ),
    # Swiss AI Apertus.
    _row(
        "apertus",
        all_of("<|inner_prefix|>"),
        starts=("<|inner_prefix|>",),
        ends=("<|inner_suffix|>",),
        erase=("<|assistant_end|>",),
    ),
    # ServiceNow Apriel 1.5: tags, or steps under a phrase, up to `[BEGIN FINAL RESPONSE]`.
    _row(
        "apriel",
        all_of("<thinking>", "<tool_calls>"),
        starts=("<thinking>", "<think>", "Here are my reasoning steps:"),
        ends=("</thinking>", "</think>", "[BEGIN FINAL RESPONSE]"),
        erase=("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]", "<|end|>"),
    ),
    # Mistral's Magistral and Ministral reasoning models.
    _row("magistral", all_of("[THINK]"), starts=("[THINK]",), ends=("[/THINK]",), erase=("</s>",)),
    # IBM Granite: reasoning and answer begin with phrases (3.2) or stand in tags (3.3).
    _row(
        "granite",
        _shows_granite,
        starts=("Here is my thought process:", "Here's my thought process:", "<think>"),
        ends=("Here is my response:", "Here's my response:", "</think>"),
        erase=("<response>", "</response>", "<|end_of_text|>"),
    ),
    # Baidu ERNIE 4.5 reasoning models: the answer stands in `<response>`.
    _row("ernie45", all_of("<response>", "</think>"), erase=("<response>", "</response>", "</s>")),
    # Tencent Hunyuan A13B and small models: the answer stands in `<answer>`.
    _row("hunyuan", all_of("<answer>", "</think>"), erase=("<answer>", "</answer>")),
    # MiniCPM5: the start may be missing.
    _row(
        "minicpm5",
        all_of('<param name="'),
        start_optional=True,
        erase=("<s>", "</s>", "<|im_end|>"),
    ),
    # Liquid LFM2.5 reasoning models. The template hands old reasoning back as `message.thinking`.
    _row(
        "lfm2",
        lambda template: "message.thinking" in template and Lfm2().matches(template),
        erase=("<|im_end|>",),
    ),
    # Qwen3, QwQ, and all other models that write these tags. A template may open the reasoning in the prompt;
    # then the answer begins inside.
    _row("qwen3", _has_think),
    # Names that vLLM and SGLang have for models whose reasoning is that of qwen3 or deepseek_r1.
    *(_row(name, None) for name in ("deepseek_v3", "deepseek_v31", "kimi_k2", "nemotron_nano_v2", "olmo3")),
    *(_always(name, None) for name in ("minimax_m2", "step3")),
)
