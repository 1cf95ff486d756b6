"""Index, load, unload and reload over gRPC: Triton's with its own client, TensorFlow Serving's and KServe's by
messages compiled from public field numbers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc.aio as triton
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ovserve.access import Guard
from ovserve.protos import tensorflow_serving_pb2 as tfs
from tests.conftest import script_graph
from tests.grpc_api.conftest import TENSORS, Folder, Running, running
from tests.grpc_api.test_infer import refused, tensor
from tests.grpc_api.test_stream import message, stream_call

ONE = json.dumps({"replies": [{"text": "one"}]})


def add(folder: Path, name: str) -> Path:
    shutil.copytree(TENSORS, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / name


def break_(graph: Path) -> None:
    path = graph / "graph.pbtxt"
    path.write_text(path.read_text().replace("AddTensorsCalculator", "NoSuchCalculator"))


def mend(graph: Path) -> None:
    path = graph / "graph.pbtxt"
    path.write_text(path.read_text().replace("NoSuchCalculator", "AddTensorsCalculator"))


async def index(client: triton.InferenceServerClient) -> dict[str, tuple[str, str]]:
    found = await client.get_model_repository_index(as_json=True)
    return {m["name"]: (m["state"], m.get("reason", "")) for m in found.get("models", [])}


async def test_triton_index_load_and_unload(tmp_path: Path) -> None:
    x = add(tmp_path, "x")
    async with (
        running(repository=Folder(tmp_path)) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        assert await index(client) == {"x": ("READY", "")}
        y = add(tmp_path, "y")
        break_(y)
        error = await refused(client.load_model("y"))
        assert error.status() == "StatusCode.FAILED_PRECONDITION"
        assert "NoSuchCalculator" in error.message()
        state, reason = (await index(client))["y"]
        assert state == "UNAVAILABLE"
        assert "NoSuchCalculator" in reason
        assert not await client.is_model_ready("y")

        mend(y)
        await client.load_model("y")
        assert await client.is_model_ready("y")
        ready = await client.get_model_repository_index(as_json=True)
        assert [m["state"] for m in ready["models"]] == ["READY", "READY"]

        break_(x)  # what is served stays when its successor does not load
        assert (await refused(client.load_model("x"))).status() == "StatusCode.FAILED_PRECONDITION"
        assert await client.is_model_ready("x")
        state, reason = (await index(client))["x"]
        assert state == "READY"
        assert "NoSuchCalculator" in reason

        await client.unload_model("x")
        assert (await index(client))["x"] == ("UNAVAILABLE", "unloaded on request")
        assert (await refused(client.infer("x", [tensor("a", [1])]))).status() == "StatusCode.NOT_FOUND"
        assert (await refused(client.unload_model("x"))).status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize(
    ("name", "more", "status", "text"),
    [
        ("nobody", {}, "NOT_FOUND", "model 'nobody' is not"),
        ("", {}, "INVALID_ARGUMENT", "model_name: required"),
        ("x", {"config": "{}"}, "INVALID_ARGUMENT", "parameters.config: a graph is configured in"),
        ("x", {"config": "{}", "files": {"file:1/a": b"b"}}, "INVALID_ARGUMENT", "parameters."),
    ],
)
async def test_what_load_refuses(
    tmp_path: Path, name: str, more: dict[str, Any], status: str, text: str
) -> None:
    add(tmp_path, "x")
    async with (
        running(repository=Folder(tmp_path)) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        error = await refused(client.load_model(name, **more))
        assert error.status() == f"StatusCode.{status}"
        assert text in error.message()


async def test_an_unload_cuts_no_stream(tmp_path: Path) -> None:
    script_graph(
        tmp_path / "x", json.dumps({"replies": [{"text": "word ", "repeat": 40}], "step_seconds": 0.01})
    )
    async with running(repository=Folder(tmp_path)) as server, server.channel() as channel:
        call = stream_call(channel)
        asked = message("1")
        asked.model_name = "x"
        await call.write(asked)
        await call.read()
        async with triton.InferenceServerClient(server.address) as client:
            await client.unload_model("x")
        await call.done_writing()
        last = b""
        while (response := await call.read()) is not grpc.aio.EOF:
            assert not response.error_message
            last = response.infer_response.raw_output_contents[0][4:]
        assert json.loads(last)["choices"][0]["finish_reason"] == "stop"


# -- TensorFlow Serving


def model_service(channel: grpc.aio.Channel, method: str, request: Any, answer: Any) -> Any:
    return channel.unary_unary(
        f"/tensorflow.serving.ModelService/{method}",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=answer.FromString,
    )(request)


async def reload_config(server: Running, **graphs: Path | str) -> tuple[str, str]:
    """Status name and message; without graphs the configuration is read again."""
    request = tfs.ReloadConfigRequest()
    for name, path in graphs.items():
        request.config.model_config_list.config.add(
            name=name, base_path=str(path), model_platform="tensorflow"
        )
    async with server.channel() as channel:
        response = await model_service(
            channel, "HandleReloadConfigRequest", request, tfs.ReloadConfigResponse
        )
    field = response.status.DESCRIPTOR.fields_by_name["error_code"]
    return field.enum_type.values_by_number[response.status.error_code].name, response.status.error_message


async def status(server: Running, name: str, **spec: Any) -> tuple[str, str]:
    request = tfs.GetModelStatusRequest(model_spec=tfs.ModelSpec(name=name, **spec))
    async with server.channel() as channel:
        response = await model_service(channel, "GetModelStatus", request, tfs.GetModelStatusResponse)
    (row,) = response.model_version_status
    assert row.version == 1
    return tfs.ModelVersionStatus.State.Name(row.state), row.status.error_message


async def test_reload_of_the_configuration(tmp_path: Path) -> None:
    x = add(tmp_path, "x")
    async with running(repository=Folder(tmp_path)) as server:
        add(tmp_path, "y")
        assert await reload_config(server) == ("OK", "")
        assert await status(server, "y") == ("AVAILABLE", "OK")
        shutil.rmtree(tmp_path / "y")
        break_(x)
        code, text = await reload_config(server)
        assert code == "FAILED_PRECONDITION"
        assert text.startswith("not loaded: x: ")
        assert "NoSuchCalculator" in text
        state, reason = await status(server, "x")
        assert (state, "NoSuchCalculator" in reason) == ("AVAILABLE", True)
        assert (await status(server, "y"))[0] == "END"


async def test_a_list_replaces_the_set(tmp_path: Path) -> None:
    x = add(tmp_path, "x")
    async with running(x) as server:
        assert await reload_config(server, other=x) == ("OK", "")
        assert await status(server, "other") == ("AVAILABLE", "OK")
        assert (await status(server, "m"))[0] == "END"


async def test_what_a_list_is_refused_for(tmp_path: Path) -> None:
    x = add(tmp_path, "x")
    async with running(x) as server:
        assert await reload_config(server, m="") == ("INVALID_ARGUMENT", "config[0].base_path: required")
        code, text = await reload_config(server, m=tmp_path / "nothing")
        assert (code, "nothing/graph.pbtxt does not exist" in text) == ("FAILED_PRECONDITION", True)
        for change, said in (
            (lambda c: c.model_config_list.SetInParent(), "config: the list is empty"),
            (lambda c: c.custom_model_config.SetInParent(), "config.custom_model_config"),
            (
                lambda c: c.model_config_list.config.add(
                    name="m", base_path="x"
                ).model_version_policy.specific.versions.append(2),
                "config[0].model_version_policy: a graph has only version 1",
            ),
        ):
            request = tfs.ReloadConfigRequest()
            change(request.config)
            async with server.channel() as channel:
                response = await model_service(
                    channel, "HandleReloadConfigRequest", request, tfs.ReloadConfigResponse
                )
            assert response.status.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            assert response.status.error_message.startswith(said)
        assert (await status(server, "m"))[0] == "AVAILABLE"


async def test_status_of_what_is_not_there(tmp_path: Path) -> None:
    async with running(TENSORS) as server:
        for spec in ({"name": "n"}, {"name": "m", "version": {"value": 2}}):
            with pytest.raises(grpc.RpcError) as caught:
                await status(server, **spec)
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND


# -- KServe's Python client: the same methods, other messages


def kserve_messages() -> Iterator[Any]:
    file = descriptor_pb2.FileDescriptorProto(name="kserve_python.proto", package="inference")
    for call, done in (("Load", "isLoaded"), ("Unload", "isUnloaded")):
        request = file.message_type.add(name=f"RepositoryModel{call}Request")
        answer = file.message_type.add(name=f"RepositoryModel{call}Response")
        for made in (request, answer):
            made.field.add(name="model_name", number=1, type=9, label=1)
        answer.field.add(name=done, number=2, type=8, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    for call in ("Load", "Unload"):
        for part in ("Request", "Response"):
            yield message_factory.GetMessageClass(
                pool.FindMessageTypeByName(f"inference.RepositoryModel{call}{part}")
            )


async def test_kserves_messages_are_told_from_tritons(tmp_path: Path) -> None:
    add(tmp_path, "x")
    load, loaded, unload, unloaded = kserve_messages()
    async with running(repository=Folder(tmp_path)) as server, server.channel() as channel:
        for name, request, answer in (
            ("RepositoryModelUnload", unload, unloaded),
            ("RepositoryModelLoad", load, loaded),
        ):
            response = await channel.unary_unary(
                f"/inference.GRPCInferenceService/{name}",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=answer.FromString,
            )(request(model_name="x"))
            assert response.model_name == "x"
            assert response.isUnloaded if name.endswith("Unload") else response.isLoaded
        assert await status(server, "x") == ("AVAILABLE", "OK")


# -- the rest of Triton's


async def test_metadata_config_and_statistics(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "llm", ONE)
    async with running(graph, TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        about = await client.get_server_metadata()
        assert about.name == "ovserve"
        assert {"model_repository", "statistics", "model_configuration"} <= set(about.extensions)
        llm = await client.get_model_metadata("m", as_json=True)
        assert llm["inputs"] == [{"name": "http", "datatype": "BYTES", "shape": ["1"]}]
        assert llm["outputs"] == [{"name": "reply", "datatype": "BYTES", "shape": ["1"]}]
        tensors = await client.get_model_metadata(TENSORS.name)
        assert [(e.name, e.datatype) for e in tensors.inputs] == [("a", "INVALID"), ("b", "INVALID")]
        config = (await client.get_model_config("m")).config
        assert (config.name, config.input[0].data_type) == ("m", 13)
        assert config.model_transaction_policy.decoupled
        await client.infer(TENSORS.name, [tensor("a", [1]), tensor("b", [1])])
        await refused(client.infer(TENSORS.name, [tensor("a", [1])]))
        (row,) = (await client.get_inference_statistics(TENSORS.name)).model_stats
        assert (row.inference_stats.success.count, row.inference_stats.fail.count) == (1, 1)
        assert row.inference_stats.success.ns > 0
        assert len((await client.get_inference_statistics()).model_stats) == 2


async def test_log_settings() -> None:
    before = logging.getLogger().level
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        try:
            now = await client.update_log_settings({"log_verbose_level": 1})
            assert now.settings["log_verbose_level"].uint32_param == 1
            assert logging.getLogger().level == logging.DEBUG
            now = await client.update_log_settings({"log_verbose_level": 0, "log_info": False})
            assert not now.settings["log_info"].bool_param
            assert logging.getLogger().level == logging.WARNING
            for settings, said in (
                ({"log_file": "x"}, "fixed at start"),
                ({"log_error": False}, "always logged"),
            ):
                error = await refused(client.update_log_settings(settings))
                assert said in error.message()
            assert (await client.get_log_settings()).settings["log_warning"].bool_param
        finally:
            logging.getLogger().setLevel(before)


async def test_what_is_not_here_says_so() -> None:
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        for call in (
            client.get_system_shared_memory_status(),
            client.register_system_shared_memory("r", "k", 8),
            client.get_cuda_shared_memory_status(),
            client.get_trace_settings(),
        ):
            assert (await refused(call)).status() == "StatusCode.UNIMPLEMENTED"


async def test_keys(tmp_path: Path) -> None:
    async with (
        running(TENSORS, guard=Guard("secret")) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        both = [tensor("a", [1]), tensor("b", [1])]
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert (await refused(client.infer("m", both))).status() == "StatusCode.UNAUTHENTICATED"
        assert (await refused(client.unload_model("m"))).status() == "StatusCode.UNAUTHENTICATED"
        right = {"authorization": "Bearer secret"}
        assert (await client.infer("m", both, headers=right)).as_numpy("sum").tolist() == [2]
        await client.unload_model("m", headers=right)


async def test_a_key_without_the_right_may_not_change_what_is_served(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\nname = "reader"\nhash = "sha256:{hashlib.sha256(b"k").hexdigest()}"\n')
    async with (
        running(TENSORS, guard=Guard(keys_file=keys)) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        right = {"authorization": "Bearer k"}
        assert await client.is_model_ready("m", headers=right)
        error = await refused(client.unload_model("m", headers=right))
        assert error.status() == "StatusCode.PERMISSION_DENIED"
