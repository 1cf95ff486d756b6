"""PromptCheck: rejects a request for what its prompt says, before a model sees it.

    @calculator("NoSecretsCalculator")
    class NoSecrets(PromptCheck):
        def objection(self, cc: Context, text: str) -> str:
            return "Keys are not for this model." if "BEGIN PRIVATE KEY" in text else ""

| port | type | |
|---|---|---|
| input `CONVERSATION` | `GenerateRequest` | from ConversationCalculator |
| output `CONVERSATION` | `GenerateRequest` | the same request |
| side packet `LLM_NODE_RESOURCES` | `LlmResources` | the model that answers |

A rejected request is a 400 with `code: content_filter`, and counts as the node's event `rejected`.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ovserve.calculators.library.messages import prompt_text
from ovserve.errors import ContentFiltered
from ovserve.graph import Calculator, Context, Input, Output, SidePacket
from ovserve.graph.overrides import awaited, must_override
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.request import GenerateRequest


class PromptCheck(Calculator):
    """Base of checks. Override `objection`."""

    runs_on = "loop"

    given = Input("CONVERSATION", GenerateRequest)
    passed = Output("CONVERSATION", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    @must_override
    def objection(self, cc: Context, text: str) -> str | Awaitable[str]:
        """Return why the request is rejected, for the client; "" if it is not. `text` is all messages."""
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        request = cc[self.given]
        if request is None:
            return
        if why := await awaited(self.objection(cc, await prompt_text(cc[self.llm], request))):
            cc.count("rejected")
            param = request.conversation.param if request.conversation is not None else "prompt"
            raise ContentFiltered(why, param=param)
        cc.send(self.passed, request)
