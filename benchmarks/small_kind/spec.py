"""The spec of a small model. The server imports this, and never OpenVINO."""

from __future__ import annotations

from typing import ClassVar

from ovserve.engine.protocol.specs import Spec


class AddOneSpec(Spec, frozen=True):
    """`model_path` is an OpenVINO model with one input of ten f32."""

    kind: ClassVar[str] = "add_one"
    backend: ClassVar[str] = "benchmarks.small_kind.backend:AddOne"
    shared: ClassVar[bool] = True
