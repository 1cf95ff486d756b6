"""RetrievalCalculator: passages of a text file that fit the question go into the prompt, numbered."""

from __future__ import annotations

from typing import Annotated

import msgspec
from passages import Index

from ovserve.calculators.library import Context, LoadContext, Output, PromptInsertion, calculator


class RetrievalOptions(msgspec.Struct, frozen=True):
    text_path: str
    passages: Annotated[int, msgspec.Meta(ge=1)] = 2


@calculator("RetrievalCalculator")
class Retrieval(PromptInsertion):
    options_type = RetrievalOptions
    sources = Output("TEXT", str)

    @classmethod
    def load(cls, lc: LoadContext) -> Index:
        return Index(lc.path(lc.options(RetrievalOptions).text_path))

    def insert(self, cc: Context, question: str) -> str:
        found = cc.state.search(question, cc.options(RetrievalOptions).passages)
        if not found:
            return ""
        cc.send(self.sources, "\n\nSources: " + ", ".join(f"[{i}] {p.place}" for i, p in enumerate(found, 1)))
        listed = "\n".join(f"[{i}] {p.text}" for i, p in enumerate(found, 1))
        return f"Answer from these sources, and name their numbers:\n{listed}"
