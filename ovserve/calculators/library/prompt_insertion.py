"""PromptInsertion: text that goes into the prompt, between the conversation and its rendering.

    @calculator("TodayCalculator")
    class Today(PromptInsertion):
        def insert(self, cc: Context, question: str) -> str:
            return f"Today is {date.today()}."

| port | type | |
|---|---|---|
| input `CONVERSATION` | `GenerateRequest` | from ConversationCalculator or another such node |
| output `CONVERSATION` | `GenerateRequest` | to PromptRendererCalculator or another such node |
| side packet `LLM_NODE_RESOURCES` | `LlmResources` | the model that answers |

The text goes to the end of the system message, which is made if there is none; before a plain prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ovserve.calculators.library.messages import question, with_system_text
from ovserve.graph import Calculator, Context, Input, Output, SidePacket
from ovserve.graph.overrides import awaited, must_override
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.request import GenerateRequest


class PromptInsertion(Calculator):
    """Base of nodes that insert text. Override `insert`."""

    runs_on = "loop"

    before = Input("CONVERSATION", GenerateRequest)
    after = Output("CONVERSATION", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    @must_override
    def insert(self, cc: Context, question: str) -> str | Awaitable[str]:
        """Return the text for a question: the last user message, or the prompt. "" inserts nothing."""
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        request = cc[self.before]
        if request is not None:
            llm = cc[self.llm]
            text = await awaited(self.insert(cc, await question(llm, request)))
            cc.send(self.after, await with_system_text(llm, request, text) if text else request)
