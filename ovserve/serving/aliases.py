"""Other names for servables, from --model_alias: clients ask for names that are built into them.

An alias stands for NAME, or for the only servable there is. With `*` it is a pattern; a servable's own name
always comes first, then aliases in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ovserve.errors import InvalidArgument

ANY = "*"


@dataclass(frozen=True)
class Aliases:
    """Pairs of alias and name; an empty name is that of the only servable."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Aliases:
        """Parse ALIAS and ALIAS=NAME, separated by commas. Raises InvalidArgument."""
        pairs = []
        for item in filter(None, (part.strip() for part in text.split(","))):
            alias, equals, name = (part.strip() for part in item.partition("="))
            if not alias or (equals and not name):
                raise InvalidArgument(f"--model_alias: expected ALIAS or ALIAS=NAME, got {item!r}")
            pairs.append((alias, name))
        return cls(tuple(pairs))

    def target(self, name: str, names: Callable[[], Collection[str]]) -> str:
        """Return the servable that a name means, of those in `names()`; the name itself if no alias fits."""
        if not self.pairs or name in (served := names()):
            return name
        only = next(iter(served)) if len(served) == 1 else ""
        for alias, target in self.pairs:
            if (target or only) and fnmatchcase(name, alias.replace("[", "[[]").replace("?", "[?]")):
                return target or only
        return name

    def faults(self, served: Collection[str]) -> list[str]:
        """Return a sentence for each alias that means nothing while these are served."""
        messages = []
        for alias, name in self.pairs:
            if name and name not in served:
                messages.append(f"--model_alias: {alias}={name}: {name!r} is not served")
            elif not name and len(served) > 1:
                many = f"{len(served)} graphs are served, so it means none of them; write {alias}=NAME"
                messages.append(f"--model_alias: {alias}: {many}")
        return messages

    def listed(self, served: Collection[str]) -> list[tuple[str, str]]:
        """Return the aliases that are plain names, with what each means."""
        plain = [alias for alias, _ in self.pairs if ANY not in alias and alias not in served]
        targets = ((alias, self.target(alias, lambda: served)) for alias in dict.fromkeys(plain))
        return [(alias, name) for alias, name in targets if name in served]
