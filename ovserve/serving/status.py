"""How the state of a servable and the outcome of a reload are told. Made by `manager.py`; REST (GET
/v1/config), gRPC (GetModelStatus, RepositoryIndex) and metrics translate these two and know nothing else of a
state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

VERSION = 1  # of every graph, as in OVMS; clients that ask for another one find nothing


class VersionState(IntEnum):
    """tensorflow.serving.ModelVersionStatus.State; OVMS's status document writes the names."""

    START = 10  # listed, and its load has not begun
    LOADING = 20  # it cannot answer yet, or (with an error code) its last load or its engine has failed
    AVAILABLE = 30  # it answers; with an error code, a newer version could not be loaded
    UNLOADING = 40  # taken out of service; requests that run are finishing
    END = 50  # gone


@dataclass(frozen=True)
class ServableStatus:
    """`error_code` is a name of google.rpc.Code: OK, FAILED_PRECONDITION (a load failed) or UNAVAILABLE (the
    engine is being restarted). `reason` is for operators: it may hold paths; others get `without_details`.
    `since` is unix seconds of the last change of the servable, `revision` counts the loads that came into
    force under this name.
    """

    name: str
    state: VersionState
    error_code: str = "OK"
    reason: str = ""
    version: int = VERSION
    revision: int = 0
    since: int = 0

    @property
    def failed(self) -> bool:
        """It does not answer, and waiting alone will not change that."""
        return self.state is not VersionState.AVAILABLE and self.error_code == "FAILED_PRECONDITION"

    @property
    def without_details(self) -> ServableStatus:
        """The same in words that tell nothing of the machine: no paths, no lines, no library's words."""
        if self.error_code == "OK":
            return self
        if self.error_code == "UNAVAILABLE":
            return replace(self, reason="the engine is being restarted")
        if self.failed:
            return replace(self, reason="it could not be loaded, or its engine has failed")
        return replace(self, reason="the last change was not loaded")


@dataclass(frozen=True)
class ReloadResult:
    """Names by what became of them; a name that was left alone is in none. `failed` has the reasons: the
    version that was served before, if there was one, still is. `warnings` are the configuration's.
    """

    loaded: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.loaded or self.removed or self.failed)

    @property
    def outcome(self) -> str:
        """For counters: "failed", "changed" or "unchanged"."""
        return "failed" if self.failed else "changed" if self.changed else "unchanged"

    @property
    def errors(self) -> str:
        """One sentence per servable that failed; empty when none did."""
        return "; ".join(f"{name}: {reason}" for name, reason in sorted(self.failed.items()))
