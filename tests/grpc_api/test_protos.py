"""Our messages are the public ones: every field of ours is in tritonclient's under the same number and type."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from ovserve.protos import kserve_pb2
from ovserve.protos import model_config_pb2 as our_config_pb2
from ovserve.protos import tensorflow_serving_pb2 as tfs

# KServe's Python server gives these two messages, empty at Triton, fields of its own.
OURS = {"RepositoryModelLoadResponse", "RepositoryModelUnloadResponse"}


def shape(message: Descriptor) -> dict[str, tuple[int, int, bool, str]]:
    """Field name to number, type, repeated or not, and the type's name."""
    return {
        f.name: (f.number, f.type, f.is_repeated, f.message_type.full_name if f.message_type else "")
        for f in message.fields
    }


def nested(message: Descriptor) -> list[Descriptor]:
    return [message, *(d for n in message.nested_types for d in nested(n))]


@pytest.mark.parametrize(("ours", "theirs"), [(kserve_pb2, service_pb2), (our_config_pb2, model_config_pb2)])
def test_the_messages_are_tritons(ours: object, theirs: object) -> None:
    known = theirs.DESCRIPTOR.message_types_by_name  # type: ignore[attr-defined]
    for name, top in ours.DESCRIPTOR.message_types_by_name.items():  # type: ignore[attr-defined]
        if name in OURS:
            continue
        found = {d.full_name: shape(d) for d in nested(known[name])}
        for message in nested(top):
            for field, what in shape(message).items():
                assert found[message.full_name][field] == what, f"{message.full_name}.{field}"


def test_the_service_is_tritons() -> None:
    name = "GRPCInferenceService"
    ours, theirs = (
        {
            m.name: (m.input_type.full_name, m.output_type.full_name, m.client_streaming, m.server_streaming)
            for m in pb.DESCRIPTOR.services_by_name[name].methods
        }
        for pb in (kserve_pb2, service_pb2)
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        ("ModelSpec", "version", 2),
        ("ModelSpec", "version_label", 4),
        ("StatusProto", "error_message", 2),
        ("ModelVersionStatus", "status", 3),
        ("ModelConfig", "base_path", 2),
        ("ModelConfig", "model_platform", 4),
        ("ModelConfig", "model_version_policy", 7),
        ("ReloadConfigRequest", "metric_names", 2),
        ("ModelServerConfig", "custom_model_config", 2),
    ],
)
def test_numbers_of_tensorflow_serving(message: str, field: str, number: int) -> None:
    assert tfs.DESCRIPTOR.message_types_by_name[message].fields_by_name[field].number == number
