"""Every name ever served, and of plain models every version: which entry a request means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import ItemsView, Iterator, ValuesView

from ovserve.errors import ModelNotFound
from ovserve.serving.entry import Entry, Phase
from ovserve.serving.spec import ServableSpec
from ovserve.serving.status import ServableStatus

DEFAULT_VERSIONS = ("", "0")  # OVMS's 0, and none, mean the newest that answers


class Entries:
    """Entries by `ServableSpec.key`; none is ever removed."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._by_name: defaultdict[str, list[Entry]] = defaultdict(list)

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def values(self) -> ValuesView[Entry]:
        return self._entries.values()

    def items(self) -> ItemsView[str, Entry]:
        return self._entries.items()

    def begin(self, spec: ServableSpec, phase: Phase) -> None:
        entry = self._entries.get(spec.key)
        if entry is None:
            entry = self._entries[spec.key] = Entry(spec.name, spec)
            self._by_name[spec.name].append(entry)
        entry.begin(spec, phase)

    def clear(self) -> None:
        self._entries.clear()
        self._by_name.clear()

    def all_names(self) -> list[str]:
        """Return the names that are served, or meant to be."""
        return [name for name, entries in self._by_name.items() if any(e.listed for e in entries)]

    def servable_of(self, name: str) -> str:
        """Return the servable that a name means: its own, or that of a variant; else the name as it is."""
        if name in self._by_name:
            return name
        served = (e.servable for e in self._entries.values() if e.servable is not None)
        return next((s.name for s in served if name in s.variants), name)

    def of(self, name: str) -> list[Entry]:
        """Return the versions of a name, the oldest first; empty for an unknown name."""
        return sorted(self._by_name.get(name, ()), key=lambda entry: entry.spec.version)

    def entry(self, name: str) -> Entry:
        """Return the entry of a name that is served, or was. Raises ModelNotFound."""
        entry = self.find(name)
        if entry is None:
            raise ModelNotFound(f"model {name!r} is not known", param="model")
        return entry

    def statuses(self, name: str | None) -> list[ServableStatus]:
        """Return all statuses, or those of one name, by name and version. Raises ModelNotFound."""
        entries = self._entries.values() if name is None else self.of(name)
        if not entries and name is not None:
            raise ModelNotFound(f"model {name!r} is not known", param="model")
        return sorted((entry.status for entry in entries), key=lambda s: (s.name, s.version))

    def find(self, name: str, version: str = "") -> Entry | None:
        """Return the version that a request means; None for an unknown name.

        Without a version it is the newest that answers, else the newest there is. Raises ModelNotFound for a
        version that the name does not have.
        """
        entries = self._by_name.get(name)
        if not entries:
            return None
        if version not in DEFAULT_VERSIONS:
            versions = [entry for entry in entries if str(entry.spec.version) == version]
            if not versions:
                raise ModelNotFound(_other_versions(name, entries, version), param="model_version")
            entries = versions
        if len(entries) == 1:
            return entries[0]
        return max(entries, key=lambda e: (e.servable is not None, e.listed, e.spec.version))


def _other_versions(name: str, entries: list[Entry], version: str) -> str:
    listed = sorted(entry.spec.version for entry in entries if entry.listed)
    if len(listed) == 1:
        return f"model {name!r} has only version {listed[0]}, not {version[:80]!r}"
    return f"model {name!r} has versions {', '.join(map(str, listed)) or 'none'}, not {version!r}"
