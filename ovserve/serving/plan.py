"""Plan what must be done to get from the current servables to the desired ones; pure.

| served now                        | wanted        | files          | plan                             |
|-----------------------------------|---------------|----------------|----------------------------------|
| no, or removed                    | yes           |                | load                             |
| no, taken out by an unload        | yes           |                | nothing; load if `retry`         |
| yes                               | no            |                | remove                           |
| yes                               | yes           | as loaded      | nothing                          |
| yes, the last change has failed   | yes           | as loaded      | clear the error                  |
| yes, the last change has failed   | yes           | as that failed | nothing; load if `retry`         |
| failed, nothing is served         | yes           | as that failed | nothing; load if `retry`         |
| either, the failure is transient  | yes           | as that failed | load                             |
| either                            | yes           | another        | load                             |

`retry` is true when a person or a program requested the reload. The watcher does not retry what has failed
before its files change: a model that takes a minute to fail would be loaded forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ovserve.serving.fingerprint import Fingerprint
from ovserve.serving.spec import ServableSpec

Desired = tuple[ServableSpec, Fingerprint]  # with the digests of at least the models seen before


@dataclass(frozen=True)
class Current:
    """One name: what is current, and what was tried last (the same unless that failed)."""

    active: Desired | None = None
    attempted: Desired | None = None
    unloaded: bool = False  # by request; its files are still wanted
    transient: bool = False  # the last load failed, and may succeed with the same files

    @property
    def failed(self) -> bool:
        return self.attempted is not None and self.attempted != self.active


@dataclass(frozen=True)
class Plan:
    load: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    clear_error: tuple[str, ...] = ()  # names whose failed change was taken back

    def __bool__(self) -> bool:
        return bool(self.load or self.remove or self.clear_error)


def diff(current: Mapping[str, Current], desired: Mapping[str, Desired], *, retry: bool) -> Plan:
    load: list[str] = []
    clear_error: list[str] = []
    for name, want in desired.items():
        now = current.get(name)
        if now is not None and now.unloaded:
            load += [name] if retry else []
        elif now is not None and _same(want, now.active):
            clear_error += [name] if now.failed else []
        elif retry or now is None or now.transient or not _same(want, now.attempted):
            load.append(name)
    there = (n for n, k in current.items() if k.active or k.attempted or k.unloaded)
    return Plan(tuple(load), tuple(n for n in there if n not in desired), tuple(clear_error))


def _same(want: Desired, active: Desired | None) -> bool:
    return active is not None and want[0] == active[0] and want[1].covers(active[1])
