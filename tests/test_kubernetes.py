"""examples/deploy for Kubernetes, without a cluster: every object is valid, its flags exist, its times fit, and its
pods meet "restricted". What only kubectl and helm can show is skipped without them.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ovserve.cli.commands import build_parser
from ovserve.graph import Registry
from ovserve.http.app import build_app
from ovserve.http.connections import RestLimits
from ovserve.http.middleware import OPEN
from ovserve.http.routes.describe import routes_of
from ovserve.services.monitoring.families import FAMILIES
from ovserve.serving.manager import Manager
from scripts.kserve_manifests import FILES as RUNTIMES
from tests.conftest import ROOT
from tests.test_deploy import CONTAINER, DEPLOY, settings

VERSION = "1.34"
ENGINE_SECONDS = 10  # of EngineSettings.stop_grace
IMAGE = dict(re.findall(r"\b(OVSERVE_\w+)=(\S+)", CONTAINER.partition("USER")[2]))
FILES = sorted(
    path
    for folder in ("kubernetes", "kserve")
    for path in (DEPLOY / folder).rglob("*.yaml")
    if not path.name.endswith(("kustomization.yaml", "-values.yaml", "init-container.yaml"))
)
OVERLAYS = ["base", *(f"overlays/{path.name}" for path in sorted((DEPLOY / "kubernetes/overlays").iterdir()))]
VALUES: list[dict[str, Any]] = [
    {},
    {
        "graphs": {"chat": 'node { calculator: "X" }\n', "other": "node {}"},
        "keysSecret": "",
        "modelsClaim": "models",
        **{name: {"enabled": True} for name in ("autoscaling", "podMonitor", "inferencePool")},
        "options": {"max_queue": 64, "log_level": "DEBUG"},
    },
    {"pullFirst": True, "autoscaling": {"enabled": True, "by": "hpa", "minReplicas": 0}},
]
# The fields that are used of kinds which are not Kubernetes' own, as the documentation of these projects has them:
# KEDA 2.18, Prometheus operator, Gateway API 1.3 and its inference extension 1.6. No validator has judged them.
# KServe's package judges its own kinds (`make kserve`), except those for language models.
FIELDS: dict[str, set[str]] = {
    "LLMInferenceService": {"baseRefs.name", "model.name", "model.uri", "replicas"}
    | {f"router.{name}" for name in ("gateway", "route", "scheduler")},
    "LLMInferenceServiceConfig": {"template"},
    "InferencePool": {"selector.matchLabels", "targetPorts.number", "endpointPickerRef.name"}
    | {"endpointPickerRef.port.number", "endpointPickerRef.failureMode"},
    "PodMonitor": {"selector.matchLabels"}
    | {f"podMetricsEndpoints.{n}" for n in ("port", "path", "interval")},
    "HTTPRoute": {"parentRefs.name", "rules.matches.path.type", "rules.matches.path.value"}
    | {f"rules.backendRefs.{name}" for name in ("group", "kind", "name")}
    | {f"rules.timeouts.{name}" for name in ("request", "backendRequest")},
    "ScaledObject": {"scaleTargetRef.name", "minReplicaCount", "maxReplicaCount", "pollingInterval"}
    | {"cooldownPeriod", "triggers.type", "triggers.metricType", "triggers.metadata"}
    | {f"advanced.horizontalPodAutoscalerConfig.behavior.{way}" for way in ("scaleUp", "scaleDown")},
}


RUNTIME_POD = ("containers", "volumes")  # what KServe's runtimes share with a pod
LLM_POD = ("terminationGracePeriodSeconds", "securityContext")


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def paths(value: Any, known: set[str], path: str = "") -> set[str]:
    """Return the paths of all leaves; what is below a known one belongs to it."""
    if path in known:
        return {path}
    if isinstance(value, list):
        return set().union(*(paths(one, known, path) for one in value))
    if isinstance(value, dict):
        return set().union(*(paths(one, known, f"{path}.{key}".lstrip(".")) for key, one in value.items()))
    return {path}


def check(objects: list[dict[str, Any]]) -> None:
    """Fail on the first object that a cluster would not accept, or accept with a field that it drops."""
    for one in objects:
        if one["kind"] == "Template":
            assert one.keys() == {"apiVersion", "kind", "metadata", "objects"}
            check(one["objects"])
        elif known := FIELDS.get(one["kind"]):
            assert paths(one["spec"], known) <= known, one["kind"]
        elif not one["apiVersion"].startswith("serving.kserve.io/"):
            kubernetes_validate.validate(one, VERSION, strict=True)
        spec = pod_of(one)
        if one["kind"] in ("ClusterServingRuntime", "ServingRuntime", "LLMInferenceServiceConfig"):
            of_pod = {key: spec[key] for key in (*LLM_POD, *RUNTIME_POD) if key in spec}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": of_pod}
            kubernetes_validate.validate(pod, VERSION, strict=True)
        for container in spec.get("containers", ()):
            check_pod(spec, container)
        for container in spec.get("initContainers", ()):
            check_pull(spec, container)


def pod_of(one: dict[str, Any]) -> dict[str, Any]:
    """Return what an object says of its pods; empty if it makes none."""
    spec: dict[str, Any] = one.get("spec", {})
    if one["kind"] in ("Deployment", "LLMInferenceServiceConfig"):
        return dict(spec["template"].get("spec", spec["template"]))
    return spec if "containers" in spec else {}


def check_security(pod: dict[str, Any], container: dict[str, Any]) -> None:
    security = pod.get("securityContext", {}) | container["securityContext"]
    assert security["runAsNonRoot"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "runAsUser" not in security, "OpenShift gives any"


def check_pull(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """The init container pulls what the server looks for, to where the server looks for it."""
    check_security(pod, container)
    pulled = build_parser().parse_args(container["args"])
    assert pulled.command == "pull"
    [server] = pod["containers"]
    made = settings(server["args"], {})
    assert pulled.source_model == made.source_model
    assert container["image"] == server["image"]
    assert str(pulled.model_repository_path) == made.model_repository_path
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {"/models", "/tmp"}
    assert mounts.items() <= {(mount["mountPath"], mount["name"]) for mount in server["volumeMounts"]}


def check_pod(pod: dict[str, Any], container: dict[str, Any]) -> None:
    check_security(pod, container)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod["volumes"]}
    environ = IMAGE | {one["name"]: one["value"] for one in container["env"]}
    argv = [re.sub(r"{{.*?}}", "chat", argument) for argument in container["args"]]
    made = settings(argv, {name: value for name, value in environ.items() if value})
    writes = [made.cache_dir, *([made.model_repository_path] if made.source_model or made.graphs_dir else [])]
    writes += [made.response_store_path] if made.response_store == "on" else []
    for path in ("/tmp/x", *writes):
        assert any(Path(path).is_relative_to(mount) for mount in mounts), f"{path} is read-only"
    if made.api_keys_file:
        assert str(Path(made.api_keys_file).parent) in mounts
    check_ports(container, made.rest_port)
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    if grace := pod.get("terminationGracePeriodSeconds"):
        assert sleep + made.shutdown_timeout + ENGINE_SECONDS < grace
    else:
        assert sleep + made.shutdown_timeout + ENGINE_SECONDS < 90, "the InferenceService has it"


@functools.cache
def served() -> frozenset[str]:
    app = build_app(Manager(Registry(())), RestLimits(1, 1))
    return frozenset(p.pattern.replace("\\", "") for method, p in routes_of(app) if method == "GET")


def check_ports(container: dict[str, Any], rest_port: int) -> None:
    ports = {port.get("name", port["containerPort"]): port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in served() & set(OPEN)
        assert ports[asked["port"]] == rest_port
    assert container["livenessProbe"]["httpGet"]["path"].endswith("/live"), (
        "a restart of its engine is no reason"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_object_is_valid_and_its_pods_can_run(path: Path) -> None:
    check(documents(path.read_text()))


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_runtime_has_its_other_forms(name: str) -> None:
    made = (DEPLOY / "kserve" / name).read_text()
    assert made == RUNTIMES[name](), "run `make kserve-manifests`"


def test_the_autoscalers_metric_is_the_one_of_the_adapter_and_of_the_server() -> None:
    folder = DEPLOY / "kubernetes/overlays/hpa"
    [autoscaler] = documents((folder / "hpa.yaml").read_text())
    [metric] = autoscaler["spec"]["metrics"]
    [values] = documents((folder / "adapter-values.yaml").read_text())
    [rule] = values["rules"]["custom"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]
    series = rule["seriesQuery"].partition("{")[0]
    assert any(family.vllm == series for family in FAMILIES)
    [scaled] = documents((DEPLOY / "kubernetes/overlays/keda/scaledobject.yaml").read_text())
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == autoscaler["spec"]["behavior"]


def test_the_services_leave_time_to_stop() -> None:
    for name in ("inferenceservice", "inferenceservice-hf"):
        [one] = documents((DEPLOY / f"kserve/{name}.yaml").read_text())
        assert one["spec"]["predictor"]["terminationGracePeriodSeconds"] == 90
        assert one["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"


@pytest.mark.parametrize(
    "argv",
    [
        # kserve-openvino, kserve-ovms of Open Data Hub, and the model of the hub in OVMS's documentation
        ["--model_path=/mnt/models", "--port=9000", "--rest_port=8080", "--file_system_poll_wait_seconds=0"],
        ["--model_path=/mnt/models", "--port=8001", "--rest_port=8888", "--metrics_enable"],
        [
            "--model_path=/mnt/models",
            "--task=text_generation",
            "--tool_parser=hermes3",
            "--target_device=CPU",
        ],
        ["--model_path=/mnt/models", "--reasoning_parser=qwen3", "--log_level=DEBUG"],
        [
            "--source_model=OpenVINO/Qwen3-8B-int4-ov",
            "--model_repository_path=/tmp",
            "--task=text_generation",
        ],
    ],
)
def test_the_arguments_of_ovmss_runtimes_are_accepted(argv: list[str]) -> None:
    made = settings(["serve", "--model_name=m", *argv], {})
    assert made.model_name == "m"


def tool(name: str) -> str:
    """Return the path of helm or kubectl, or skip."""
    found = shutil.which(name, path=str(ROOT / ".tools")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing; `make deploy-tools` fetches it")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=230)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_builds_each_overlay(overlay: str) -> None:
    made = documents(run(tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes" / overlay)))
    check(made)
    [deployment] = [one for one in made if one["kind"] == "Deployment"]
    scaled = overlay in ("overlays/keda", "overlays/hpa")
    assert ("replicas" in deployment["spec"]) != scaled, "the autoscaler owns the number"
    first = pod_of(deployment).get("initContainers", [])
    assert len(first) == (overlay == "overlays/init-pull")
    assert {one["image"] for one in first} <= {"ovserve:latest"}


@pytest.mark.parametrize("values", VALUES, ids=["defaults", "everything", "pulled-first-with-hpa"])
def test_the_chart_renders_what_a_cluster_accepts(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    made = documents(run(tool("helm"), "template", "chat", str(DEPLOY / "helm/ovserve"), "-f", str(file)))
    if "graphs" in values:
        for one in made:
            if one["kind"] == "Deployment":
                arguments = one["spec"]["template"]["spec"]["containers"][0]["args"]
                assert "--graphs_dir=/graphs" in arguments
            if one["kind"] == "ConfigMap":
                assert one["data"]["chat"] == values["graphs"]["chat"]
    check(made)
    kinds = {one["kind"] for one in made}
    assert kinds >= {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"}
    assert (kinds >= {"ScaledObject", "PodMonitor", "InferencePool", "ConfigMap"}) == ("graphs" in values)
    assert ("HorizontalPodAutoscaler" in kinds) == ("pullFirst" in values)
    [deployment] = [one for one in made if one["kind"] == "Deployment"]
    assert ("initContainers" in pod_of(deployment)) == ("pullFirst" in values)
    for one in made:
        if one["kind"] == "HorizontalPodAutoscaler":
            assert one["spec"]["minReplicas"] == 1


def test_the_chart_rejects_unknown_values() -> None:
    command = (tool("helm"), "template", "chat", str(DEPLOY / "helm/ovserve"), "--set", "repicas=3")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=230)
    assert done.returncode != 0
    assert "repicas" in done.stderr
