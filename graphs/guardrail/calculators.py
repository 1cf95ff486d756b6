"""PromptGuardCalculator: requests with certain words are rejected before the model sees them."""

from __future__ import annotations

import msgspec

from ovserve.calculators.library import Context, PromptCheck, calculator


class GuardOptions(msgspec.Struct, frozen=True):
    words: tuple[str, ...]
    message: str = "This is not a subject of this model."


@calculator("PromptGuardCalculator")
class PromptGuard(PromptCheck):
    options_type = GuardOptions

    def objection(self, cc: Context, text: str) -> str:
        options, lower = cc.options(GuardOptions), text.lower()
        return options.message if any(word in lower for word in options.words) else ""
