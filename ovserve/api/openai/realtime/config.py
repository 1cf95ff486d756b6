"""The configuration of a session and of a response: merged with what an event holds, checked, and shown.

An update changes the fields that it has, nested ones too. The result is checked as a whole before it counts,
so a rejected update changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec
from msgspec import field

from ovserve.api.openai.tools import function_tool, tool_policy
from ovserve.errors import InvalidArgument, shortened
from ovserve.llm.audio import Keywords, Prompt
from ovserve.llm.request import ToolPolicy

MAX_OUTPUT_TOKENS = 4096  # of a response; OpenAI's bound
# Objects that an event replaces and does not merge into.
REPLACED = frozenset(("tool_choice", "prompt", "tracing", "metadata", "reasoning", "truncation", "voice"))
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<field>[^`]*)`")

Millis = Annotated[int, msgspec.Meta(ge=0, le=600_000)]
Modalities = list[Literal["text", "audio"]]
MaxTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]
Part = dict[str, Any]
S = TypeVar("S", bound="Checked")


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a configuration."""


class Pcm(Checked, frozen=True, tag_field="type", tag="audio/pcm"):
    rate: Literal[24000] = 24000


class MuLaw(Checked, frozen=True, tag_field="type", tag="audio/pcmu"):
    pass


class ALaw(Checked, frozen=True, tag_field="type", tag="audio/pcma"):
    pass


Format = Pcm | MuLaw | ALaw


def bytes_a_second(format_: Format) -> int:
    """Return the bytes of a second: 16 bits at 24 kHz, or 8 at 8 kHz."""
    return 48_000 if isinstance(format_, Pcm) else 8_000


class ServerVad(Checked, frozen=True, tag_field="type", tag="server_vad"):
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Millis = 300
    silence_duration_ms: Millis = 500
    idle_timeout_ms: Annotated[int, msgspec.Meta(ge=1000, le=600_000)] | None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(Checked, frozen=True, tag_field="type", tag="semantic_vad"):
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


class TranscriptionConfig(Checked, frozen=True):
    model: str | None = None
    language: str | None = None
    languages: list[str] | None = None  # without effect, as `delay`: shown as null
    prompt: Prompt | None = None
    keywords: Keywords | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class NoiseReduction(Checked, frozen=True):
    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class AudioInput(Checked, frozen=True):
    format: Format = field(default_factory=Pcm)
    transcription: TranscriptionConfig | None = None
    noise_reduction: NoiseReduction | None = None
    turn_detection: ServerVad | SemanticVad | None = field(default_factory=ServerVad)


class VoiceId(Checked, frozen=True):
    id: str


class AudioOutput(Checked, frozen=True):
    format: Format = field(default_factory=Pcm)
    voice: str | VoiceId = ""
    speed: Annotated[float, msgspec.Meta(ge=0.25, le=1.5)] = 1.0


class Audio(Checked, frozen=True):
    input: AudioInput = field(default_factory=AudioInput)
    output: AudioOutput = field(default_factory=AudioOutput)


class Generation(Checked, frozen=True):
    """The settings of a response, which holds to the values with which it began."""

    output_modalities: Modalities = field(default_factory=lambda: ["audio"])
    instructions: str = ""
    audio: Audio = field(default_factory=Audio)
    tools: list[Part] = field(default_factory=list)
    tool_choice: str | Part = "auto"
    max_output_tokens: MaxTokens = "inf"
    prompt: Part | None = None
    reasoning: Part | None = None
    parallel_tool_calls: bool = True

    def policy(self, where: str = "session") -> ToolPolicy | None:
        """Return the client's tools. Raises InvalidArgument."""
        tools = [_tool(tool, f"{where}.tools[{i}]") for i, tool in enumerate(self.tools)]
        choice = None if self.tool_choice == "auto" or not tools else self.tool_choice
        try:
            return tool_policy(tools, choice, self.parallel_tool_calls)
        except InvalidArgument as error:
            raise EventError(f"{where}.{error.message}", f"{where}.{error.param}") from None

    @property
    def speaks(self) -> bool:
        return self.output_modalities == ["audio"]

    @property
    def max_tokens(self) -> int:
        return MAX_OUTPUT_TOKENS if self.max_output_tokens == "inf" else self.max_output_tokens


class RetentionRatio(Checked, frozen=True):
    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)]
    token_limits: Part | None = None


class SessionConfig(Generation, frozen=True):
    type: Literal["realtime"] = "realtime"
    model: str = ""
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None
    tracing: Literal["auto"] | Part | None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio = "auto"


class TranscriptionAudio(Checked, frozen=True):
    input: AudioInput = field(default_factory=AudioInput)


class TranscriptionSession(Checked, frozen=True):
    type: Literal["transcription"] = "transcription"
    audio: TranscriptionAudio = field(default_factory=TranscriptionAudio)
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None


AnyConfig = SessionConfig | TranscriptionSession


class ResponseConfig(Generation, frozen=True):
    """The values of `response.create` over those of the session."""

    conversation: Literal["auto", "none"] = "auto"
    input: list[Part] | None = None
    metadata: dict[str, str] | None = None


class Abilities(msgspec.Struct, frozen=True):
    """The abilities of the graph of a session, by the nodes that it has."""

    model: str
    hears: bool = False  # it has a node that transcribes
    detects: bool = False  # and one for voice activity
    speaks: bool = False
    voice: Callable[[str], str] = lambda name: name  # raises InvalidArgument
    default_voice: str = ""
    language: Callable[[str], str] = lambda code: code  # raises InvalidArgument
    lacks_tools: str | None = None  # why the model cannot be given tools
    thinks: bool = True
    answers_early: bool = False  # in a pause, before the turn has ended


def initial_config(abilities: Abilities) -> AnyConfig:
    """Return the configuration of a session that has sent no update."""
    heard = AudioInput() if abilities.detects else AudioInput(turn_detection=None)
    if not abilities.thinks:
        return TranscriptionSession(
            audio=TranscriptionAudio(
                input=msgspec.structs.replace(heard, transcription=TranscriptionConfig())
            )
        )
    return SessionConfig(
        model=abilities.model,
        output_modalities=["audio"] if abilities.speaks else ["text"],
        audio=Audio(input=heard, output=AudioOutput(voice=abilities.default_voice)),
    )


def updated(config: AnyConfig, changes: Mapping[str, Any], abilities: Abilities) -> AnyConfig:
    """Return the configuration after `session.update`. Raises InvalidArgument naming the field."""
    changes = dict(changes)
    kind = changes.get("type", config.type)
    if kind not in ("realtime", "transcription"):
        raise EventError.expected("session.type", "realtime or transcription", kind)
    if kind == "realtime" and not abilities.thinks:
        raise EventError.at("session.type", "this graph only transcribes: expected transcription")
    if kind == "transcription":
        if not abilities.hears:
            raise EventError.at("session.type", "this graph has no node that transcribes")
        if changes.get("model") == abilities.model:
            del changes["model"]  # by which a request for a short-lived key names the graph
        base = config if isinstance(config, TranscriptionSession) else TranscriptionSession()
        transcription = _converted(base, changes, TranscriptionSession, TranscriptionSession(), "session")
        heard = _heard(transcription.audio.input, abilities)
        if heard.transcription is None:
            heard = msgspec.structs.replace(heard, transcription=TranscriptionConfig())
        return msgspec.structs.replace(transcription, audio=TranscriptionAudio(input=heard))
    start = initial_config(abilities)
    base_ = config if isinstance(config, SessionConfig) else start
    session = _converted(base_, changes, SessionConfig, start, "session")
    if session.model not in (abilities.model, ""):
        raise EventError.at(
            "session.model",
            f"this session is of {abilities.model!r} and cannot change to {shortened(session.model)!r}",
        )
    audio = msgspec.structs.replace(session.audio, input=_heard(session.audio.input, abilities))
    session = msgspec.structs.replace(session, model=abilities.model, audio=audio)
    return _generation(session, abilities, "session")


def response_config(
    session: SessionConfig, changes: Mapping[str, Any], abilities: Abilities
) -> ResponseConfig:
    """Return the values of one response. Raises InvalidArgument naming the field."""
    names = Generation.__struct_fields__
    base = ResponseConfig(**{name: getattr(session, name) for name in names})
    config = _converted(base, changes, ResponseConfig, base, "response")
    return _generation(config, abilities, "response")


G = TypeVar("G", bound=Generation)


def _generation(config: G, abilities: Abilities, where: str) -> G:
    if config.output_modalities not in (["text"], ["audio"]):
        raise EventError.at(
            f"{where}.output_modalities", f"expected ['text'] or ['audio'], got {config.output_modalities}"
        )
    if config.speaks and not abilities.speaks:
        raise EventError.at(
            f"{where}.output_modalities", "this graph has no node that speaks: expected ['text']"
        )
    policy = config.policy(where)
    if policy is not None and policy.calls and abilities.lacks_tools:
        raise EventError.at(f"{where}.tools", abilities.lacks_tools)
    tools = [{"type": "function", **_tool(tool, where)["function"]} for tool in config.tools]
    voice = config.audio.output.voice
    name = voice.id if isinstance(voice, VoiceId) else voice
    voice = abilities.default_voice
    if abilities.speaks and name:
        voice = _lookup(abilities.voice, name, f"{where}.audio.output.voice")
    output = msgspec.structs.replace(config.audio.output, voice=voice)
    audio = msgspec.structs.replace(config.audio, output=output)
    return msgspec.structs.replace(config, tools=tools, audio=audio)


def _heard(heard: AudioInput, abilities: Abilities) -> AudioInput:
    """Return the settings as they count: what has no effect is absent. A graph may detect no turns."""
    transcription = heard.transcription
    if transcription is not None:
        if transcription.language and abilities.hears:
            _lookup(abilities.language, transcription.language, "session.audio.input.transcription.language")
        transcription = msgspec.structs.replace(transcription, languages=None, delay=None)
    heard = msgspec.structs.replace(heard, noise_reduction=None, transcription=transcription)
    return heard if abilities.detects else msgspec.structs.replace(heard, turn_detection=None)


def _lookup(find: Callable[[str], str], name: str, param: str) -> str:
    """Return what the model has of that name. Raises EventError naming the field."""
    try:
        return find(name)
    except InvalidArgument as error:
        raise EventError(error.message.replace(param.rpartition(".")[2], param, 1), param) from None


def _tool(tool: Part, where: str) -> Part:
    if tool.get("type") == "mcp":
        raise EventError.at(f"{where}.type", "tools of MCP servers are not supported; functions are")
    return function_tool(tool, where)


def _converted(base: Checked, changes: Mapping[str, Any], kind: type[S], initial: Checked, where: str) -> S:
    """Return `base` with the fields of `changes`. A null where none is allowed restores the first value."""
    merged = _merged(msgspec.to_builtins(base), changes, msgspec.to_builtins(initial))
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        path = match["path"] if (match := _PATH.search(text)) else ""
        reason = _PATH.sub("", text)
        if unknown := _UNKNOWN.search(reason):
            path = f"{path}.{unknown['field']}" if path else unknown["field"]
            reason = "unknown field"
        raise EventError.at(f"{where}.{path}" if path else where, reason) from None


NULLABLE = frozenset(
    (
        *("transcription", "turn_detection", "noise_reduction", "prompt", "reasoning", "tracing", "include"),
        *("metadata", "input", "idle_timeout_ms", "language", "languages", "model", "token_limits"),
        *("keywords", "delay", "strength"),
    )
)


def _merged(old: Any, changes: Mapping[str, Any], initial: Any) -> dict[str, Any]:
    merged = dict(old)
    for name, value in changes.items():
        before = merged.get(name)
        first = initial.get(name) if isinstance(initial, dict) else None
        if value is None and (name not in NULLABLE or (name == "model" and isinstance(before, str))):
            merged[name] = first
        elif isinstance(value, dict) and name not in REPLACED and _same_kind(value, before):
            merged[name] = _merged(before or {}, value, first or {})
        else:
            merged[name] = value
    return {name: value for name, value in merged.items() if value is not None or name in NULLABLE}


def _same_kind(value: Mapping[str, Any], before: Any) -> bool:
    """Return whether an object is merged into the one before: it has no `type`, or the same."""
    return isinstance(before, dict) and value.get("type", before.get("type")) == before.get("type")


class EventError(InvalidArgument):
    """A mistake of a client event, with the code of its `error` event."""

    def __init__(self, message: str, param: str | None = None, event_code: str = "invalid_value") -> None:
        super().__init__(message, param=param)
        self.event_code = event_code

    @classmethod
    def at(cls, param: str, what: str, event_code: str = "invalid_value") -> Self:
        return cls(f"{param}: {what}", param, event_code)
