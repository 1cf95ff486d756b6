"""Base of TextMap and TextFilter: a pattern, and a window of text that is held back."""

from __future__ import annotations

import re

from ovserve.graph import Calculator, Contract, Node


class Matcher(Calculator):
    """Looks for matches in an answer. A node that could not match anything fails instead of letting all pass.

    Known by the class alone it is a load error. What `open` sets is checked in each request.
    """

    pattern: re.Pattern[str] | None = None
    window: int = 64  # characters; at least as long as a match with what the pattern looks at around it

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        if fault := cls.fault(cls, opened=cls.open is Calculator.open):
            raise node.error(fault, "calculator")
        return super().get_contract(node)

    @classmethod
    def needs_pattern(cls) -> bool:
        """Return whether the matches are those of `pattern`."""
        return True

    @classmethod
    def fault(cls, node: Matcher | type[Matcher], opened: bool) -> str:
        """Return why `node`, a calculator or its class, cannot match anything; "" if it can.

        `opened`: no `open` will set the pattern any more.
        """
        if opened and node.pattern is None and cls.needs_pattern():
            return f"{cls.__name__} has no pattern: set it in the class or in open()"
        if not isinstance(node.window, int) or node.window < 1:
            return f"{cls.__name__}.window: expected at least 1 character, got {node.window!r}"
        return ""

    def check(self) -> None:
        """Raise ValueError if nothing would be matched."""
        if fault := self.fault(self, opened=True):
            raise ValueError(fault)
