"""RequestParser in two steps, for nodes that change a conversation before the chat template renders it.

| calculator | input | output |
|---|---|---|
| ConversationCalculator | `DECODED` `DecodedRequest` | `CONVERSATION` `GenerateRequest` |
| PromptRendererCalculator | `CONVERSATION` `GenerateRequest` | `GENERATE` `GenerateRequest` |

Both take the side packet `LLM_NODE_RESOURCES`. A request on `CONVERSATION` has a `conversation`, or `prompts`
where the client sent a prompt.
"""

from __future__ import annotations

from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.kinds.text.http_frontend import DecodedRequest
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.request import GenerateRequest


@calculator("ConversationCalculator")
class ConversationNode(Calculator):
    runs_on = "loop"

    decoded = Input("DECODED", DecodedRequest)
    conversation = Output("CONVERSATION", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def process(self, cc: Context) -> None:
        request = cc[self.decoded]
        if request is not None:
            cc.send(self.conversation, await request.to_request(cc[self.llm]))


@calculator("PromptRendererCalculator")
class PromptRenderer(Calculator):
    runs_on = "loop"

    conversation = Input("CONVERSATION", GenerateRequest)
    generate = Output("GENERATE", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def process(self, cc: Context) -> None:
        request = cc[self.conversation]
        if request is not None:
            cc.send(self.generate, await cc[self.llm].rendered(request))
