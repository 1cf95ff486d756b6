"""`stream_options` of chat and completions, which follow one rule."""

from __future__ import annotations

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.openai.sampling import SamplingFields


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # usage on every chunk, as vLLM does


class StreamFields(SamplingFields, kw_only=True):
    """Sampling fields plus stream_options."""

    stream_options: StreamOptions | None = None

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
