"""MaskPiiCalculator: addresses and numbers of persons become the name of their kind, such as [email]."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ovserve.calculators.library import Context, TextMap, calculator

PATTERNS = {
    "email": r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,3}",
    "card": r"\b\d(?:[ -]?\d){12,18}\b",
    "phone": r"(?:\+\d{1,3}[ -]?)?\b\d{3}[ -]\d{3,4}(?:[ -]\d{2,4}){0,2}\b",
}


class MaskOptions(msgspec.Struct, frozen=True):
    kinds: tuple[Literal["email", "card", "phone"], ...] = ("email", "card", "phone")


@calculator("MaskPiiCalculator")
class MaskPii(TextMap):
    options_type = MaskOptions
    window = 320  # the longest address

    def open(self, cc: Context) -> None:
        self.pattern = re.compile("|".join(f"(?P<{k}>{PATTERNS[k]})" for k in cc.options(MaskOptions).kinds))

    def replace(self, match: str) -> str:
        found = self.pattern.fullmatch(match) if self.pattern else None
        return f"[{found.lastgroup if found else 'masked'}]"
