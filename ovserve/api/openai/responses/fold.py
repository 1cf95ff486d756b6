"""ResponseFold: the response that its events add up to."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from ovserve.api.openai.common import encode
from ovserve.api.openai.responses import objects
from ovserve.errors import Internal


class _OpenItem:
    """The text of an item that still grows."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[objects.Logprob] = []

    def write_to(self, item: objects.OutputItem) -> None:
        text = "".join(self.texts)
        self.texts = [text]
        if (place := objects.text_place(item)) is not None:
            setattr(*place, text)
        if isinstance(item, objects.AgentsCall):
            name = "operation" if isinstance(item, objects.ApplyPatchCall) else "action"
            setattr(item, name, objects.action_of(str(item.__struct_config__.tag), text))
        if isinstance(item, objects.Message):
            item.content[0].logprobs = self.logprobs


class ResponseFold:
    """Begins with the first packet of a response, whose first event is ResponseCreated.

    `response` is up to date except for the texts of open items, which `snapshot` writes. Until the end its
    output has every item that was added; then retracted ones are left out.
    """

    def __init__(self, first: objects.ResponseEvents) -> None:
        created = first.events[0] if first.events else None
        if not isinstance(created, objects.ResponseCreated):
            raise Internal(f"a response began with {type(created).__name__}, expected ResponseCreated")
        # A copy, because the fold changes it and events are immutable.
        self.response: objects.Response = msgspec.structs.replace(created.response, output=[])
        self.input: objects.StoredInput | None = created.input
        self.usage: objects.Usage = first.usage
        self._open: dict[int, _OpenItem] = {}
        self._retracted: set[int] = set()
        self._reasoning: dict[int, str] = {}  # index of a message to the id of its reasoning item

    @property
    def ended(self) -> bool:
        return self.response.status in objects.TERMINAL

    def snapshot(self) -> bytes:
        """Return the response as it is now, in JSON."""
        for index, open_ in self._open.items():
            open_.write_to(self.response.output[index])
        return encode(self.response)

    def items(self) -> list[objects.OutputItem]:
        """Return the items so far, without those that were retracted."""
        return [
            self._as_reasoning(item, self._reasoning[i]) if i in self._reasoning else item
            for i, item in enumerate(self.response.output)
            if i not in self._retracted
        ]

    def end_early(
        self, status: objects.Status, error: objects.Failure | None = None
    ) -> list[objects.ResponseEvent]:
        """Return the events that end the response now; none if it has ended."""
        if self.ended:
            return []
        return [
            *(objects.ItemDone(index, "incomplete") for index in sorted(self._open)),
            objects.ResponseEnded(status, error=error),
        ]

    def add(self, packet: objects.ResponseEvents) -> None:
        self.usage = packet.usage
        for event in packet.events:
            self.apply(event)

    def apply(self, event: objects.ResponseEvent) -> None:
        """Add one event. Raises Internal for one that does not fit those before it."""
        match event:
            case objects.ItemDelta(index, text, logprobs):  # first, because nearly all events are deltas
                open_ = self._item(index)
                open_.texts.append(text)
                if logprobs:
                    open_.logprobs += logprobs
            case objects.ResponseCreated():
                pass  # read by the constructor
            case objects.GenerationStarted():
                self.response.status = "in_progress"
            case objects.ItemAdded():
                self._add(event)
            case objects.ItemDone(index, status):
                open_ = self._item(index)
                item = self.response.output[index]
                open_.write_to(item)
                del self._open[index]
                if not isinstance(item, objects.STATELESS):
                    item.status = status
            case objects.ArgumentsDone() | objects.ToolEnded():
                self._progress(event)
            case objects.ItemRetracted(index):
                self._retracted.add(index)
            case objects.ItemBecameReasoning(index, id_):
                self._reasoning[index] = id_
            case objects.ResponseEnded():
                self._end(event)

    def _item(self, index: int) -> _OpenItem:
        open_ = self._open.get(index)
        if open_ is None:
            raise Internal(f"an event for output item {index}, which is not open")
        return open_

    def _progress(self, event: objects.ArgumentsDone | objects.ToolEnded) -> None:
        item = self.response.output[event.index]
        if isinstance(event, objects.ArgumentsDone):
            self._item(event.index).write_to(item)
        elif isinstance(item, objects.McpListTools):
            item.tools, item.error = list(event.tools), event.error
        elif isinstance(item, objects.McpCall):
            item.output = event.output
            if event.error is not None:
                text = {"type": "text", "text": event.error}
                item.error = {"type": "mcp_tool_execution_error", "content": [text]}

    def _add(self, event: objects.ItemAdded) -> None:
        output = self.response.output
        if event.index != len(output):
            raise Internal(f"output item {event.index} was added after {len(output)} items")
        self._open[event.index] = _OpenItem()
        match event.kind:
            case "message":
                output.append(objects.Message(event.id, "in_progress", [objects.OutputText()]))
            case "reasoning":
                output.append(objects.Reasoning(event.id, "in_progress", [objects.SummaryText()]))
            case "function_call" | "custom_tool_call":
                type_ = objects.FunctionCall if event.kind == "function_call" else objects.CustomToolCall
                namespace = event.namespace or UNSET
                output.append(type_(event.id, "in_progress", event.call_id, event.name, namespace=namespace))
            case "mcp_list_tools":
                output.append(objects.McpListTools(event.id, event.namespace))
            case "mcp_call":
                call = objects.McpCall(event.id, "in_progress", event.namespace, event.name)
                call.approval_request_id = event.call_id or None
                output.append(call)
            case "mcp_approval_request":
                output.append(objects.McpApprovalRequest(event.id, event.namespace, event.name))
            case _:
                agents_call, empty = objects.AGENTS_CALLS[event.kind]
                output.append(agents_call(event.id, "in_progress", event.call_id, empty))

    def _end(self, event: objects.ResponseEnded) -> None:
        response = self.response
        response.status, response.usage = event.status, self.usage
        response.completed_at = event.completed_at
        response.incomplete_details, response.error = event.incomplete_details, event.error
        response.output = self.items()

    def _as_reasoning(self, item: objects.OutputItem, id_: str) -> objects.OutputItem:
        if not isinstance(item, objects.Message):
            return item
        return objects.Reasoning(id_, item.status, [objects.SummaryText(item.content[0].text.strip())])
