"""RouterCalculator: long questions and those about code go to the large model, which is output 1."""

from __future__ import annotations

import re

import msgspec

from ovserve.calculators.library import Context, RequestSwitch, calculator


class RouterOptions(msgspec.Struct, frozen=True):
    pattern: str
    max_characters: int = 1000


@calculator("RouterCalculator")
class Router(RequestSwitch):
    options_type = RouterOptions

    def choose(self, cc: Context, question: str) -> int:
        options = cc.options(RouterOptions)
        long = len(question) > options.max_characters
        return int(long or re.search(options.pattern, question, re.IGNORECASE) is not None)
