"""What `ovserve deploy ray` sends, computed without Ray: rollouts, options, YAML, merged answers,
sessions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ovserve.cli.commands import build_parser
from ovserve.cli.deploy import plan_of
from ovserve.deploy.ray import merged
from ovserve.deploy.ray.merged import METRIC, ByQueue, requests_in
from ovserve.deploy.ray.passthrough import session_of
from ovserve.deploy.ray.plan import DEPLOYMENTS, ENVIRONMENT, HAPROXY, PYTHON, Plan, to_yaml
from ovserve.deploy.ray.rollout import pack, parse, unpack
from ovserve.errors import InvalidArgument, LoadError
from ovserve.serving.config.file import ConfigFile
from tests.conftest import script_graph


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of a graph with a subconfig and a plain model, with relative paths."""
    graph = script_graph(tmp_path / "graphs/talk", "{}")
    (graph / "subconfig.json").write_text(
        json.dumps({"model_config_list": [{"config": {"name": "helper", "base_path": "parts/helper"}}]})
    )
    for plain in (tmp_path / "plain/1", graph / "parts/helper/1"):
        plain.mkdir(parents=True)
        (plain / "model.xml").write_text("<net/>")
        (plain / "model.bin").write_text("")
    document = {
        "model_config_list": [{"config": {"name": "plain", "base_path": "plain", "nireq": 2}}],
        "mediapipe_config_list": [{"name": "talk", "base_path": "graphs/talk"}],
        "monitoring": {"metrics": {"enable": True}},
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    return tmp_path / "config.json"


def plan(*flags: str) -> Plan:
    return plan_of(build_parser(["deploy"]).parse_args(["deploy", "ray", *flags]))


def test_what_is_unpacked_elsewhere_is_what_was_packed(config: Path, tmp_path: Path) -> None:
    sent = json.loads(json.dumps(pack(ConfigFile(config), "[[key]]")))
    unpack(parse(sent), tmp_path / "there", "own")
    there = ConfigFile(tmp_path / "there/config.json")
    here = {spec.key: spec for spec in ConfigFile(config).read().specs}
    found = {spec.key: spec for spec in there.read().specs}
    assert found.keys() == here.keys() == {"talk", "plain\x001", "helper\x001"}
    for key, spec in found.items():
        assert spec.base == here[key].base, "models and code are where they were"
    assert found["talk"].graph.read_text() == here["talk"].graph.read_text()
    assert found["plain\x001"].model == here["plain\x001"].model
    assert there.monitoring() == ConfigFile(config).monitoring()
    assert (tmp_path / "there/keys.toml").read_text() == "[[key]]\nown"
    assert (tmp_path / "there/keys.toml").stat().st_mode & 0o077 == 0
    assert pack(ConfigFile(config), "[[key]]") == sent, "a second time is no change"


def test_changed_code_and_models_are_a_change_and_are_not_sent(config: Path) -> None:
    before = pack(ConfigFile(config))
    (config.parent / "graphs/talk/calculators.py").write_text("SECRET = 1\n")
    after = pack(ConfigFile(config))
    assert before != after
    assert "SECRET" not in json.dumps(after)
    (config.parent / "plain/1/model.bin").write_text("trained more")
    assert pack(ConfigFile(config)) != after


@pytest.mark.parametrize(
    ("user_config", "message"),
    [
        ({}, "graphs"),
        ({"graphs": []}, "at least one"),
        ({"graphs": [{"name": 3}]}, "name"),
        ({"graphs": [{"name": "a", "grahp": ""}]}, "grahp"),
        ([], "user_config"),
        (None, "user_config"),
    ],
)
def test_a_wrong_user_config_names_the_field(user_config: object, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        parse(user_config)


def test_only_what_replicas_are_made_of_makes_a_version(tmp_path: Path) -> None:
    talk = script_graph(tmp_path / "talk", "{}")
    first = plan("--model_path", str(talk))
    assert first.deployment()["num_replicas"] == 1
    (talk / "graph.pbtxt").write_text((talk / "graph.pbtxt").read_text() + "\n# changed\n")
    changed = plan("--model_path", str(talk), "--replicas", "3")
    assert changed.user_config != first.user_config
    assert changed.version == first.version
    assert plan("--model_path", str(talk), "--max_queue", "3").version != first.version
    assert first.options == {"response_store": "off"}


def test_the_data_planes_differ_in_where_requests_wait(tmp_path: Path) -> None:
    talk = str(script_graph(tmp_path / "talk", "{}"))
    python = plan("--model_path", talk, "--max_replicas", "3").deployment()
    assert python["max_ongoing_requests"] == 32
    scaling = python["autoscaling_config"]
    assert scaling["target_ongoing_requests"] == 24
    assert scaling["metrics_interval_s"] < scaling["look_back_period_s"], "else Ray warns"
    haproxy = plan("--model_path", talk, "--max_replicas", "3", "--data_plane", HAPROXY).deployment()
    assert haproxy["max_ongoing_requests"] > 10_000
    assert haproxy["autoscaling_config"]["policy"]["policy_kwargs"] == {"target_requests": 24}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--min_replicas", "3", "--max_replicas", "2"], "min_replicas 3"),
        (["--graphs_dir", "nowhere"], "nowhere"),
        (["--api_keys_file", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_wrong_flag_is_named(tmp_path: Path, flags: list[str], message: str) -> None:
    served = [] if "--graphs_dir" in flags else ["--model_path", str(script_graph(tmp_path / "talk", "{}"))]
    with pytest.raises((InvalidArgument, LoadError), match=message):
        plan(*served, *flags)


def test_a_graph_that_would_not_be_served_is_not_deployed(tmp_path: Path) -> None:
    talk = script_graph(tmp_path / "talk", "{}")
    (talk / "graph.pbtxt").write_text("node { calculator: 'NoSuchCalculator' }")
    with pytest.raises(LoadError, match=r"not deployed: talk: .*NoSuchCalculator"):
        plan("--model_path", str(talk))


def test_the_yaml_is_the_plan_and_can_be_read_by_people(tmp_path: Path) -> None:
    made = plan("--model_path", str(script_graph(tmp_path / "talk", "{}")), "--name", "mine")
    text = to_yaml(made.document("127.0.0.1", 8000), made.data_plane)
    read = yaml.safe_load(text)
    assert read == json.loads(json.dumps(made.document("127.0.0.1", 8000)))
    assert read["applications"][0]["name"] == "mine"
    assert "\n          node {\n" in text, "a graph is lines, not one quoted string"
    head = text.splitlines()[1]
    assert all(f"{name}={value}" in head for name, value in ENVIRONMENT[PYTHON].items())


def test_another_affinity_has_another_name(tmp_path: Path) -> None:
    """A proxy of Serve keeps the router that it made for a name."""
    graph = str(script_graph(tmp_path / "talk", "{}"))
    names = set()
    for affinity in DEPLOYMENTS:
        (application,) = plan("--model_path", graph, "--affinity", affinity).document("", 0)["applications"]
        names.add(application["deployments"][0]["name"])
    assert names == set(DEPLOYMENTS.values())
    assert len(names) == 2


def test_merged_metrics_are_one_page() -> None:
    page = '# HELP a_total Text.\n# TYPE a_total counter\na_total{name="x"} 1\n# TYPE b gauge\nb 2\n'
    text = merged.metrics({"r1": page, "r2": page})
    assert text.splitlines() == [
        "# HELP a_total Text.",
        "# TYPE a_total counter",
        'a_total{name="x",replica="r1"} 1',
        'a_total{name="x",replica="r2"} 1',
        "# TYPE b gauge",
        'b{replica="r1"} 2',
        'b{replica="r2"} 2',
    ]


def test_scaling_counts_what_runs_and_what_waits() -> None:
    page = 'ovserve_requests_running{name="a b"} 2\novserve_requests_waiting{name="a"} 3.0\nother{x="1"} 9\n'
    assert requests_in(page) == 5
    context = SimpleNamespace(aggregated_metrics={METRIC: {"r1": 5.0, "r2": 20.0}}, target_num_replicas=2)
    assert ByQueue(12)(context)[0] == 3
    assert ByQueue(12)(SimpleNamespace(aggregated_metrics={}, target_num_replicas=2))[0] == 2


def state(name: str, state: str = "AVAILABLE", code: str = "OK", message: str = "OK") -> dict[str, object]:
    status = {"error_code": code, "error_message": message}
    return {name: {"model_version_status": [{"version": "1", "state": state, "status": status}]}}


def test_merged_states_show_the_worst() -> None:
    bad = state("m", "LOADING", "FAILED_PRECONDITION", "no such file")
    [version] = json.loads(merged.states({"r1": state("m"), "r2": bad}, {}))["m"]["model_version_status"]
    assert (version["state"], version["status"]["error_message"]) == ("LOADING", "replica r2: no such file")
    assert merged.failures(bad) == ["m: no such file"]
    assert not merged.loading(bad)
    assert merged.loading(state("m", "LOADING"))
    absent = json.loads(merged.states({"r1": state("m"), "r2": {}}, {"r2": "old"}))
    assert absent["m"]["model_version_status"][0]["status"]["error_message"] == (
        "not on replica r2; replica r2: old"
    )


def turns(*contents: str, model: str = "m") -> bytes:
    messages = [{"role": "user", "content": text} for text in contents]
    return json.dumps({"messages": messages, "model": model, "stream": True}).encode()


def test_turns_of_a_conversation_have_one_session() -> None:
    first = session_of(turns("be kind", "hi"))
    assert first == session_of(turns("be kind", "hi", "hello", "more"))
    assert first != session_of(turns("be kind", "bye"))
    assert first != session_of(turns("be kind", "hi", model="other"))
    responses = json.dumps({"model": "m", "input": "hi", "instructions": "be kind"}).encode()
    assert (
        len({session_of(b) for b in (first.encode(), responses, b'{"prompt": "x"}', b'{"a"', b"\xff")}) == 5
    )
    assert session_of(b"") == ""
    assert session_of(b"[1]") == session_of(b"[1]")
