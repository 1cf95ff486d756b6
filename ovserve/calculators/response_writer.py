"""ResponseWriterCalculator: the way out. Parsed deltas become server-sent events, or one folded JSON body."""

from __future__ import annotations

from collections.abc import Iterable

from ovserve.calculators.endpoints import ENDPOINTS
from ovserve.calculators.payload import HttpResponse
from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest

IGNORED_HEADER = "x-ovserve-ignored-params"
HEADER_LENGTH = 2000  # characters; proxies take 4 to 8 KB for all headers, and a body may have 20,000 fields
CLAMPED_HEADER = "x-ovserve-clamped"


class ResponseBuilder:
    """The answer to one request, packet by packet."""

    def __init__(self, request: GenerateRequest) -> None:
        self._shown = request.presentation
        self._writer = ENDPOINTS[request.presentation.endpoint].writer(request)
        self._folded = Completion()
        self._headers = ignored_header(request.presentation.ignored_params)
        self._started = False

    def feed(self, parsed: Parsed) -> HttpResponse | bytes | None:
        """The packet to send for this delta, if any."""
        asked = self._shown.requested_max_tokens
        if parsed.prompt_tokens and asked is not None and parsed.max_tokens < asked:
            self._headers[CLAMPED_HEADER] = f"max_tokens={parsed.max_tokens}"
        if not self._shown.stream:
            self._folded.add(parsed)
            if not parsed.last:
                return None
            return HttpResponse(self._writer.whole(self._folded), headers=self._headers)
        chunk = self._writer.chunk(parsed)
        if self._started:
            return chunk or None
        self._started = True
        return HttpResponse(chunk, "text/event-stream", self._headers, more=True)


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The header that reports what had no effect; none when all had. Past HEADER_LENGTH it counts."""
    texts = [_header_text(name) for name in names]
    listed = ",".join(texts)
    if len(listed) > HEADER_LENGTH:
        kept = listed[: HEADER_LENGTH + 1].rpartition(",")[0]
        listed = f"{kept},... and {len(texts) - kept.count(',') - 1} more"
    return {IGNORED_HEADER: listed} if listed else {}


def _header_text(name: str) -> str:
    """A body's field name may hold anything; a header may not."""
    return "".join(c if " " < c < "\x7f" and c != "," else "?" for c in name[:64])


@calculator("ResponseWriterCalculator")
class ResponseWriter(Calculator):
    request = Input("GENERATE", GenerateRequest)
    parsed = Input("PARSED", Parsed)
    http: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)

    def open(self, cc: Context) -> None:
        self.reply: ResponseBuilder | None = None

    def process(self, cc: Context) -> None:
        request, parsed = cc[self.request], cc[self.parsed]
        if request is not None:
            self.reply = ResponseBuilder(request)
        if parsed is not None:
            assert self.reply is not None, "GENERATE comes at the first timestamp"
            packet = self.reply.feed(parsed)
            if packet is not None:
                cc.send(self.http, packet)
