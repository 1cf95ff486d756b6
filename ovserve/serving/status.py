"""The state of a servable and the outcome of a reload.

REST (GET /v1/config), gRPC (GetModelStatus, RepositoryIndex) and metrics translate these two, and have no
other source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

GRAPH_VERSION = 1  # of every graph, as in OVMS; another version is not found


class VersionState(IntEnum):
    """States of tensorflow.serving.ModelVersionStatus.State; OVMS's status document writes the names."""

    START = 10  # listed, and its load has not begun
    LOADING = 20  # it cannot answer yet, or (with an error code) its last load or its engine has failed
    AVAILABLE = 30  # it answers; with an error code, a newer version could not be loaded
    UNLOADING = 40  # taken out of service; running requests finish
    END = 50  # ended


@dataclass(frozen=True)
class ServableStatus:
    """The state of one servable.

    `error_code` is a name of google.rpc.Code: OK, FAILED_PRECONDITION (a load failed) or UNAVAILABLE (the
    engine is being restarted). `reason` is for operators and may hold paths; other users get
    `without_details`. `since` is the Unix time in seconds of the last change. `revision` counts the
    successful loads under this name.
    """

    name: str
    state: VersionState
    error_code: str = "OK"
    reason: str = ""
    version: int = GRAPH_VERSION
    revision: int = 0
    since: int = 0
    plain: bool = False  # a version of a plain model
    engines: str = ""  # "loaded", "loading" or "unloaded": of a graph with engines that answers

    @property
    def failed(self) -> bool:
        """Return whether it does not answer, and waiting alone will not change that."""
        return self.state is not VersionState.AVAILABLE and self.error_code == "FAILED_PRECONDITION"

    @property
    def state_detail(self) -> str:
        """Return "unloaded" or "loading" for a graph that answers once its engines are loaded; else ""."""
        return self.engines if self.state is VersionState.AVAILABLE and self.engines != "loaded" else ""

    @property
    def without_details(self) -> ServableStatus:
        """Return the status with a reason that reveals nothing of the machine: no paths, lines or library
        messages."""
        if self.error_code == "OK":
            return self
        if self.error_code == "UNAVAILABLE":
            return replace(self, reason="the engine is being restarted")
        if self.failed:
            return replace(self, reason="it could not be loaded, or its engine has failed")
        return replace(self, reason="the last change was not loaded")


@dataclass(frozen=True)
class ReloadResult:
    """Names by outcome; an unchanged name is in none. `failed` has the reasons: the
    previous version, if there was one, is still served. `warnings` are the configuration's.
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
        """Return the outcome for counters: "failed", "changed" or "unchanged"."""
        return "failed" if self.failed else "changed" if self.changed else "unchanged"

    @property
    def errors(self) -> str:
        """Return one sentence per servable that failed; empty when none did."""
        return "; ".join(f"{name}: {reason}" for name, reason in sorted(self.failed.items()))
