"""The known dialects: the shipped ones and those of installed packages; chosen by name, by template or by the
options of a graph.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from types import ModuleType
from typing import Literal, TypeVar

import msgspec

from ovserve.errors import LoadError, described
from ovserve.llm.parsing.dialect import ReasoningDialect, ToolDialect
from ovserve.llm.parsing.reasoning import DIALECTS as REASONING
from ovserve.llm.parsing.tools import gemma4, pythonic, recipients, sections, tagged_json, tagged_xml

ENTRY_POINT_GROUP = "ovserve.parsers"
NONE = "none"

# The shipped tool dialects, in the order in which `detect` asks them. First those that share a marker with a
# better known dialect (GLM writes hermes3's tags, Seed qwen3coder's), then OVMS's own order, then the general
# ones.
TOOLS: tuple[type[ToolDialect], ...] = (
    tagged_xml.Glm45,
    tagged_xml.SeedOss,
    tagged_xml.DeepseekV32,
    tagged_xml.GigaChat35,
    sections.DeepseekV3,
    sections.DeepseekV31,
    sections.KimiK2,
    tagged_xml.KimiK3,
    sections.MiniMaxM3,
    tagged_xml.MiniMaxM2,
    tagged_xml.Step3,
    *tagged_json.ROWS,
    tagged_json.Apertus,
    pythonic.Olmo3,
    recipients.GptOss,
    recipients.Onyx,
    recipients.FunctionaryV32,
    gemma4.Gemma4,
    tagged_xml.Qwen3Coder,
    tagged_xml.MiniCpm5,
    pythonic.Lfm2,
    gemma4.Devstral,
    gemma4.Mistral,
    tagged_xml.FunctionaryV31,
    pythonic.Pythonic,
    tagged_json.Llama3,
    tagged_json.Qwen25Coder,
    tagged_json.Hermes3,
    tagged_json.Xlam,
)

D = TypeVar("D", ToolDialect, ReasoningDialect)


class Registry:
    """Maps names to dialects; rejects two of one kind with one name."""

    def __init__(self, dialects: Iterable[type[ToolDialect] | type[ReasoningDialect]] = ()) -> None:
        self._tools: dict[str, ToolDialect] = {}
        self._reasoning: dict[str, ReasoningDialect] = {}
        for dialect in dialects:
            self.add(dialect)

    def add(self, cls: type[ToolDialect] | type[ReasoningDialect]) -> None:
        if not isinstance(getattr(cls, "name", None), str) or cls.name == NONE:
            raise LoadError(f"parser {cls.__module__}.{cls.__qualname__} has no name")
        if issubclass(cls, ToolDialect):
            _register(self._tools, cls(), "tool")
        else:
            _register(self._reasoning, cls(), "reasoning")

    def add_entry_points(self) -> None:
        """Add third-party dialects, which detection tries before the shipped ones."""
        ours = dict(self._tools), dict(self._reasoning)
        for point in entry_points(group=ENTRY_POINT_GROUP):
            try:
                for cls in _classes(point.load()):
                    self.add(cls)
            except LoadError:
                raise
            except BaseException as error:
                fault = (
                    f"entry point {point.name!r} of {ENTRY_POINT_GROUP} cannot be loaded: {described(error)}"
                )
                raise LoadError(fault) from error
        self._tools = {k: v for k, v in self._tools.items() if k not in ours[0]} | ours[0]
        self._reasoning = {k: v for k, v in self._reasoning.items() if k not in ours[1]} | ours[1]

    @property
    def tool_names(self) -> list[str]:
        return sorted(self._tools)

    @property
    def reasoning_names(self) -> list[str]:
        return sorted(self._reasoning)

    def tool(self, name: str | None) -> ToolDialect | None:
        """Return the dialect; None for None, "" and "none". Raises LoadError with the known names for an
        unknown one."""
        return _get(self._tools, name, "tool")

    def reasoning(self, name: str | None) -> ReasoningDialect | None:
        return _get(self._reasoning, name, "reasoning")

    def frame(self, tool: ToolDialect | None, reasoning: ReasoningDialect | None) -> ToolDialect | None:
        """Return the dialect that reads the whole answer, if one of the two requires that."""
        if tool is not None and tool.framed:
            return tool
        return self._tools.get(reasoning.name) if reasoning is not None and reasoning.framed else None

    def detect(self, template: str, model: str = "") -> tuple[str | None, str | None]:
        """Return (tool parser, reasoning parser) for a template and the model's name; None if not
        detected."""
        dialect = next((d for d in self._tools.values() if _matches(d, template)), None)
        tool = self._variant(dialect, model.lower()).name if dialect is not None else None
        reasoning = next((d for d in self._reasoning.values() if _matches(d, template)), None)
        if reasoning is not None and reasoning.framed and reasoning.name != tool:
            reasoning = None  # it cannot be combined with another dialect's calls
        return tool, reasoning.name if reasoning is not None else None

    def _variant(self, default_dialect: ToolDialect, model: str) -> ToolDialect:
        """Return the dialect that extends this one for a model of this name, or this one."""
        for dialect in self._tools.values():
            if isinstance(dialect, type(default_dialect)) and any(part in model for part in dialect.models):
                return dialect
        return default_dialect


def _matches(dialect: ToolDialect | ReasoningDialect, template: str) -> bool:
    try:
        return dialect.matches(template)
    except BaseException as error:  # third-party code
        raise LoadError(f"parser {dialect.name!r}: matches() raised {described(error)}") from error


def _register(dialects: dict[str, D], dialect: D, kind: str) -> None:
    if dialect.name in dialects:
        there, here = type(dialects[dialect.name]), type(dialect)
        raise LoadError(
            f"{kind} parser {dialect.name!r} is defined twice: {there.__module__}.{there.__qualname__} "
            f"and {here.__module__}.{here.__qualname__}"
        )
    dialects[dialect.name] = dialect


def _get(dialects: Mapping[str, D], name: str | None, kind: str) -> D | None:
    if not name or name == NONE:
        return None
    if name not in dialects:
        near = difflib.get_close_matches(name, dialects, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise LoadError(
            f"{kind} parser {name!r} is not known{hint}; known: {NONE}, {', '.join(sorted(dialects))}"
        )
    return dialects[name]


def _classes(loaded: object) -> Iterable[type[ToolDialect] | type[ReasoningDialect]]:
    if isinstance(loaded, ModuleType):
        for value in vars(loaded).values():
            if isinstance(value, type) and value.__module__ == loaded.__name__ and "name" in vars(value):
                yield from _classes(value)
    elif isinstance(loaded, type) and issubclass(loaded, ToolDialect | ReasoningDialect):
        yield loaded
    else:
        raise LoadError(f"entry point of {ENTRY_POINT_GROUP}: {loaded!r} is not a parser")


@functools.cache
def default() -> Registry:
    """Return the shipped and the installed dialects; built once, at first use."""
    registry = Registry((*TOOLS, *REASONING))
    registry.add_entry_points()
    return registry


Source = Literal["graph", "template", "off", "unknown"]


class ParserChoice(msgspec.Struct, frozen=True):
    """Names of dialects, None for no parsing, and the source of each.

    The source is the graph's option, the chat template, the option `none`, or unknown, because the template
    shows no known dialect.
    """

    tool: str | None = None
    reasoning: str | None = None
    tool_from: Source = "unknown"
    reasoning_from: Source = "unknown"

    def __str__(self) -> str:
        return (
            f"tool parser {self.tool or NONE} ({_WORDS[self.tool_from]}), "
            f"reasoning parser {self.reasoning or NONE} ({_WORDS[self.reasoning_from]})"
        )


_WORDS: dict[Source, str] = {
    "graph": "set in the graph",
    "template": "found in the chat template",
    "off": "switched off in the graph",
    "unknown": "none found in the chat template",
}


def check_pair(tool: str, reasoning: str, registry: Registry | None = None) -> None:
    """Check the two options of a graph.

    Raises LoadError, whose `field` is the option, for an unknown name or for two that cannot read one answer.
    """
    parsers = registry or default()
    for name, find, field in (
        (tool, parsers.tool, "tool_parser"),
        (reasoning, parsers.reasoning, "reasoning_parser"),
    ):
        try:
            find(name)
        except LoadError as exc:
            raise LoadError(exc.reason, field=field) from None
    framed = parsers.reasoning(reasoning)
    if framed is not None and framed.framed and tool not in ("", NONE, reasoning):
        raise LoadError(
            f"{reasoning!r} reads the whole answer, calls included; it does not go with tool_parser {tool!r}",
            field="reasoning_parser",
        )


def choose(
    tool: str, reasoning: str, template: str | None, registry: Registry | None = None, *, model: str = ""
) -> ParserChoice:
    """Choose. `tool` and `reasoning` are the graph's options: "" for unset, or a name that `check_pair`
    accepted.

    `model` is the name of the model's file or directory, which may be more specific than the template.
    """
    parsers = registry or default()
    found_tool, found_reasoning = parsers.detect(template, model) if template else (None, None)
    tool_name, tool_from = _pick(tool, found_tool)
    name, source = _pick(reasoning, found_reasoning)
    if source in ("template", "unknown"):
        dialect, calls = parsers.reasoning(name), parsers.tool(tool_name)
        if calls is not None and calls.framed and tool_name in parsers.reasoning_names:
            name, source = tool_name, tool_from  # it reads the whole answer anyway
        elif dialect is not None and dialect.framed and tool_name not in (None, name):
            name, source = None, "unknown"
    return ParserChoice(tool_name, name, tool_from, source)


def _pick(option: str, name: str | None) -> tuple[str | None, Source]:
    if option == NONE:
        return None, "off"
    if option:
        return option, "graph"
    return name, "template" if name else "unknown"
