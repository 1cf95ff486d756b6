"""Build the grammar of an answer from the request's tools and constraint, once the prompt is known.

    tool_choice required, or a function   only calls
    auto, with strict functions           free text; a started call must match the schemas of strict ones
    auto, with enable_tool_guided_generation of the graph: to those of all functions
    response_format with tools            one call, or the answer in its format

A reasoning model may reason first, or continue the reasoning that the prompt has opened. The grammar
applies to the text after it, never inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ovserve.errors import UnsupportedParameter
from ovserve.llm.grammar.constraint import (
    Constraint,
    Format,
    any_text,
    constrain,
    either,
    literal,
    regex,
    sequence,
    tag,
    tags,
    triggered,
    within_limit,
)
from ovserve.llm.parsing import registry
from ovserve.llm.parsing.dialect import ReasoningDialect, ToolDialect
from ovserve.llm.parsing.guide import Guide
from ovserve.llm.request import ToolPolicy

Schemas = Mapping[str, Mapping[str, Any]]

PARAM = "tool_choice"
ANYTHING: Mapping[str, Any] = {"type": "object"}
GAP = "[ \\n]{0,3}"  # between reasoning and answer


def guided(
    policy: ToolPolicy | None,
    constraint: Constraint | None,
    *,
    tool: str | None,
    reasoning: str | None,
    inside_reasoning: bool,
    reasoning_closed: bool = False,
    guide_auto: bool = False,
) -> Constraint | None:
    """Return the constraint of the whole answer; None if it is free. `tool` and `reasoning` are dialects'
    names.

    Raises UnsupportedParameter when a call is required and the dialect has no grammar.
    """
    parsers = registry.default()
    thinking = parsers.reasoning(reasoning)
    calls = _calls(policy, parsers.tool(tool), guide_auto, answer=constraint)
    if calls is None and constraint is None:
        return None
    if calls is not None and (constraint is None or (policy and policy.choice == "required")):
        form, param = calls, PARAM
    else:
        assert constraint is not None, "one of the two is there"
        form, param = _answer(constraint, thinking), constraint.param
        if calls is not None:
            form = either([calls, form])
    return constrain(_after_thinking(form, thinking, inside_reasoning, reasoning_closed), param)


def _calls(
    policy: ToolPolicy | None, dialect: ToolDialect | None, guide_auto: bool, *, answer: Constraint | None
) -> Format | None:
    if policy is None or not policy.calls:
        return None
    guide = dialect.guide if dialect is not None else None
    strict = policy.strict
    if policy.choice == "required":
        if guide is None:
            raise UnsupportedParameter(
                "tool_choice: this model's tool parser has no grammar to force a call with; use auto",
                param=PARAM,
            )
        return _forced(guide, policy.schemas, strict, one=not policy.parallel)
    if guide is None:
        return None
    held = frozenset(name for name in policy.names if guide_auto or name in strict)
    schemas = {name: schema if name in held else ANYTHING for name, schema in policy.schemas.items()}
    if answer is not None:
        return _forced(guide, schemas, strict, one=True)
    if not held:
        return None
    if guide.inside:  # the parser drops an extra call; the end of the list is free text here
        calls = (
            form
            for name, schema in schemas.items()
            for form in guide.calls_inside(name, schema, exact=name in strict)
        )
        begun = within_limit(calls, "tools")
        return triggered([form["begin"] for form in begun], begun, only_one=False)
    one = guide.single or not policy.parallel
    blocks = guide.block != ("", "")
    begun = [_forced(guide, schemas, strict, one=one)] if blocks else _each(guide, schemas, strict)
    return triggered([guide.trigger], begun, only_one=one)


def _each(guide: Guide, schemas: Schemas, strict: frozenset[str]) -> list[Format]:
    calls = (guide.call(name, schema, exact=name in strict) for name, schema in schemas.items())
    return within_limit(calls, "tools")


def _forced(guide: Guide, schemas: Schemas, strict: frozenset[str], *, one: bool) -> Format:
    """Return the format of one call, or of consecutive calls. It is bounded with `one`, see
    constraint.either."""
    each = _each(guide, schemas, strict)
    only = one or guide.single
    inner = either(each) if only else tags(each, guide.separator)
    begin, end = guide.block
    return tag(begin, inner, end) if begin or end else inner


def _answer(constraint: Constraint, thinking: ReasoningDialect | None) -> Format:
    form: Format = msgspec.json.decode(constraint.format)
    return sequence(literal(thinking.answer), form) if thinking is not None and thinking.answer else form


def _after_thinking(form: Format, dialect: ReasoningDialect | None, inside: bool, closed: bool) -> Format:
    if dialect is None or not dialect.ends:
        return form
    follows = [literal(dialect.after)] if dialect.after else [regex(GAP)]
    if inside or (dialect.always and not closed):
        return sequence(_thought("", dialect), *follows, form)
    start = dialect.starts[0] + (f"{dialect.label}\n" if dialect.label else "")
    return either([sequence(_thought(start, dialect), *follows, form), form])


def _thought(start: str, dialect: ReasoningDialect) -> Format:
    return {**tag(start, any_text(dialect.foreign), ""), "end": list(dialect.ends)}
