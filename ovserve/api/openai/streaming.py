"""`stream_options` of chat and completions, which follow one rule."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ovserve.api.openai.describe.operation import doc
from ovserve.api.openai.sampling import SamplingFields
from ovserve.errors import InvalidArgument


class StreamOptions(msgspec.Struct):
    include_usage: Annotated[bool | None, doc("one more chunk at the end: no choices, usage")] = None
    continuous_usage_stats: Annotated[bool | None, doc("usage on every chunk, as vLLM does")] = None


class StreamFields(SamplingFields, kw_only=True):
    """Sampling fields plus stream_options."""

    stream_options: Annotated[StreamOptions | None, doc("only with stream: true")] = None

    @property
    def include_usage(self) -> bool:
        options = self.stream_options
        return bool(options and (options.include_usage or options.continuous_usage_stats))

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


def check_stream_options(fields: StreamFields) -> None:
    """Raises InvalidArgument."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidArgument("stream_options: only allowed with stream: true", param="stream_options")
