"""The assistant's tools: methods that the model may call. Add your own; the graph loads them at a reload.

Types of parameters and docstrings are what the model sees, so they are written for it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from ovserve.calculators.library import ServerTools, tool
from ovserve.graph import calculator

OPERATORS: Mapping[type[Any], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
LONGEST = 200  # characters of an expression

Expression = Annotated[str, msgspec.Meta(description="numbers with + - * / and parentheses: (3 + 4) * 12")]


@calculator("AssistantToolsCalculator")
class AssistantTools(ServerTools):
    @tool
    async def current_time(self) -> str:
        """Return the current date, weekday and time."""
        return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M")

    @tool
    async def calculate(self, expression: Expression) -> str:
        """Calculate the value of an arithmetic expression exactly."""
        if len(expression) > LONGEST:
            raise ValueError(f"expected at most {LONGEST} characters")
        return f"{_value(ast.parse(expression, mode='eval').body):.12g}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.BinOp(left, kind, right) if type(kind) in OPERATORS:
            return OPERATORS[type(kind)](_value(left), _value(right))
        case ast.UnaryOp(kind, operand) if type(kind) in OPERATORS:
            return OPERATORS[type(kind)](_value(operand))
    raise ValueError(f"only numbers and + - * / are supported, got {ast.unparse(node)}")
