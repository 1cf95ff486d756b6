"""Groups of graphs that are loaded and unloaded together, and what their engines do.

Names are those of the configuration: `group_name`, or the graph's own. Graphs that share an engine are in one
group whatever they are called, because the engine is loaded for all of them or for none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ovserve.serving.engines import AnyEngine
from ovserve.serving.entry import Entry
from ovserve.serving.settings import IdleSettings
from ovserve.serving.spec import ServableSpec

PERMANENT = "permanent"


@dataclass(eq=False)
class Group:
    """`idle_seconds` after the last request it is unloaded; 0: never for that reason."""

    name: str
    engines: list[AnyEngine] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of its servables
    permanent: bool = False
    idle_seconds: float = 0.0

    @property
    def asleep(self) -> list[AnyEngine]:
        return [engine for engine in self.engines if engine.dormancy.asleep]

    @property
    def loaded(self) -> list[AnyEngine]:
        """Return the engines that have a process, or are about to have one again."""
        return [engine for engine in self.engines if not engine.dormancy.asleep]

    @property
    def has_requests(self) -> bool:
        """Return whether a request waits for an engine of it that is not loaded."""
        return any(engine.dormancy.waiting for engine in self.asleep)

    @property
    def urgent(self) -> bool:
        return any(engine.dormancy.urgent for engine in self.asleep)

    @property
    def settled(self) -> bool:
        """Return whether none of its engines is being loaded."""
        return all(engine.state.name in ("ready", "failed", "unloaded") for engine in self.engines)

    @property
    def failed(self) -> bool:
        return any(engine.state.name == "failed" for engine in self.engines)

    @property
    def busy(self) -> bool:
        """Return whether a process of it has work."""
        return any(engine.busy for engine in self.engines)

    @property
    def working(self) -> bool:
        """Return whether a request holds it, or waits for it."""
        return self.busy or any(e.expected or e.reserved or e.dormancy.waiting for e in self.engines)

    @property
    def last_used(self) -> float:
        """Return the time of the last request, `time.monotonic()`; -inf: never."""
        return max(engine.dormancy.last_used for engine in self.engines)

    @property
    def since(self) -> float:
        """Return when it was loaded."""
        return max(engine.dormancy.since for engine in self.engines)

    @property
    def idle_since(self) -> float:
        return max(self.last_used, self.since)

    @property
    def bytes(self) -> int:
        """Return the memory that it holds; an unloaded one: that it will hold."""
        return sum(
            # A shared process reports the memory of all its models.
            (0 if engine.spec.hosted else engine.memory_held) or engine.dormancy.bytes
            for engine in self.engines
        )


def groups_of(entries: Iterable[Entry], settings: IdleSettings) -> list[Group]:
    """Return the groups of all servables that have engines."""
    groups: dict[str, Group] = {}
    of_engine: dict[AnyEngine, Group] = {}
    for entry in entries:
        servable = entry.servable
        if servable is None or not servable.engines:
            continue
        name = group_name(entry.spec)
        group = groups.setdefault(name, Group(name))
        group.names.append(entry.name)
        group.permanent = group.permanent or name == PERMANENT
        group.idle_seconds = _longer(group, idle_seconds(entry.spec, settings))
        for engine in servable.engines.values():
            other = of_engine.setdefault(engine, group)
            if other is group:
                if engine not in group.engines:
                    group.engines.append(engine)
            else:
                group = _join(group, other, groups, of_engine)
    return [group for group in dict.fromkeys(groups.values()) if group.engines]


def _join(one: Group, other: Group, groups: dict[str, Group], of_engine: dict[AnyEngine, Group]) -> Group:
    """Return a group in the place of two that share an engine."""
    one.permanent = one.permanent or other.permanent
    one.idle_seconds = _longer(one, other.idle_seconds)
    one.names += other.names
    for engine in other.engines:
        if engine not in one.engines:
            one.engines.append(engine)
    for engine in one.engines:
        of_engine[engine] = one
    for name, group in groups.items():
        if group is other:
            groups[name] = one
    return one


def _longer(group: Group, seconds: float) -> float:
    """Return the longer of two idle times; 0 is the longest."""
    if len(group.names) <= 1:
        return seconds
    return max(group.idle_seconds, seconds) if group.idle_seconds and seconds else 0.0


def group_name(spec: ServableSpec) -> str:
    return spec.group or spec.name


def idle_seconds(spec: ServableSpec, settings: IdleSettings) -> float:
    """Return the idle time of a graph; an adapter has one of its own where nothing else is set."""
    if spec.idle_seconds is not None:
        return spec.idle_seconds
    if spec.adapter is not None and not settings.seconds:
        return settings.adapter_seconds
    return settings.seconds
