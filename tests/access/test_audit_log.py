"""--audit_log_path: who did what, over HTTP and gRPC, in a server with keys; rotated, and on a disk that is full."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from ovserve.access import AccessLog, RequestContext
from ovserve.access.access_log import AuditLog
from ovserve.access.keys import entry_text
from ovserve.protos import kserve_pb2
from tests.conftest import script_graph, start_server
from tests.ports import free_port

USER, ADMIN, WRONG = "key-of-a-user-0123", "key-of-an-admin-0123", "key-of-nobody-0123"
PROMPT, ANSWER = "tell-me-a-secret", "it-is-hidden"


def lines(path: Path) -> dict[str, dict[str, Any]]:
    return {(one := json.loads(line))["request_id"]: one for line in path.read_text().splitlines()}


def test_every_request_has_a_line_and_no_secret_is_in_it(tmp_path: Path) -> None:
    keys, audit, port = tmp_path / "keys.toml", tmp_path / "audit.jsonl", free_port()
    keys.write_text(entry_text("user", USER) + entry_text("boss", ADMIN) + "admin = true\n")
    flags = ["--api_keys_file", str(keys), "--audit_log_path", str(audit), "--grpc_port", str(port)]
    graph = script_graph(tmp_path / "g", json.dumps({"replies": [{"text": ANSWER}]}))
    server = start_server(graph, *flags, "--log_level", "ERROR", name="m")
    body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    try:
        with httpx.Client(base_url=server.url, timeout=230) as http:

            def ask(id_: str, key: str, method: str, path: str, **more: Any) -> int:
                headers = {"x-request-id": id_, "Authorization": f"Bearer {key}"}
                return http.request(method, path, headers=headers, **more).status_code

            assert ask("chat", USER, "POST", "/v3/chat/completions", json=body) == 200
            assert ask("refused", WRONG, "POST", "/v3/chat/completions", json=body) == 401
            assert ask("not-allowed", USER, "POST", "/v1/config/reload") == 403
            audit.rename(tmp_path / "audit.1")
            assert ask("reload", ADMIN, "POST", "/v1/config/reload") in (200, 201)
            assert ask("probe", USER, "GET", "/v2/health/ready") == 200
            assert ask("page", USER, "GET", "/console/") == 200
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelMetadata",
                request_serializer=kserve_pb2.ModelMetadataRequest.SerializeToString,
                response_deserializer=kserve_pb2.ModelMetadataResponse.FromString,
            )
            asked = kserve_pb2.ModelMetadataRequest(name="nothing")
            with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                call(asked, metadata=(("authorization", f"Bearer {USER}"),))
    finally:
        assert server.stop() == 0
    before, after = lines(tmp_path / "audit.1"), lines(audit)
    assert before.keys() == {"chat", "refused", "not-allowed"}
    chat, refused = before["chat"], before["refused"]
    assert (chat["key"], chat["admin"], chat["remote"], chat["model"]) == ("user", False, "127.0.0.1", "m")
    assert chat["generated_tokens"] > 0
    assert (refused["key"], refused["status"], refused["error"]) == ("", 401, "invalid_api_key")
    assert before["not-allowed"]["status"] == 403
    assert before["not-allowed"]["error"] == "permission_denied"
    [of_grpc] = (one for one in after.values() if one["method"] == "grpc")
    assert after.keys() == {"reload", of_grpc["request_id"]}
    assert (after["reload"]["key"], after["reload"]["admin"]) == ("boss", True)
    assert of_grpc["error"] == "model_not_found"
    assert of_grpc["remote"].startswith("ipv4:127.0.0.1:")
    for secret in (USER, ADMIN, WRONG, PROMPT, ANSWER):
        assert secret not in (tmp_path / "audit.1").read_text() + audit.read_text()


def test_a_full_disk_is_logged_once_and_ends_no_request(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog("/dev/full")
    access = AccessLog(audit.record)
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            access.log(
                RequestContext(),
                "GET",
                "/x",
                200,
                failed=False,
                quiet=False,
                request_id=str(number),
                headers={},
            )
    assert [record.name for record in caplog.records].count("ovserve.log") == 1
    assert "No space left" in caplog.text
    audit.close()
