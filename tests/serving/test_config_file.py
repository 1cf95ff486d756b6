"""OVMS's config.json and its YAML twin: paths, faults with line and path, and what has no effect."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from ovserve.errors import LoadError
from ovserve.serving.config.file import ConfigFile, GraphsDirectory, Monitoring, check_subconfig
from ovserve.serving.settings import ServableSpec
from tests.conftest import refuse


def config(directory: Path, text: str, name: str = "config.json") -> ConfigFile:
    (directory / name).write_text(text)
    return ConfigFile(directory / name)


def graph(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "graph.pbtxt").write_text("")
    return directory


def only(file: ConfigFile) -> ServableSpec:
    (spec,) = file.read().specs
    return spec


# ---- paths


@pytest.mark.parametrize("section", ["model_config_list", "mediapipe_config_list"])
@pytest.mark.parametrize(
    ("keys", "base", "graph_file"),
    [
        ({}, "m", "m/graph.pbtxt"),
        ({"base_path": "graphs/one"}, "graphs/one", "graphs/one/graph.pbtxt"),
        ({"base_path": "/srv/one"}, "/srv/one", "/srv/one/graph.pbtxt"),
        ({"base_path": "../up"}, "../up", "../up/graph.pbtxt"),
        ({"graph_path": "other.pbtxt"}, "m", "m/other.pbtxt"),
        ({"base_path": "b", "graph_path": "/etc/g.pbtxt"}, "b", "/etc/g.pbtxt"),
    ],
)
def test_paths(tmp_path: Path, section: str, keys: dict[str, str], base: str, graph_file: str) -> None:
    entry = {"name": "m", **keys}
    item = {"config": entry} if section == "model_config_list" else entry
    spec = only(config(tmp_path, json.dumps({section: [item]})))
    assert (spec.name, spec.base, spec.graph) == ("m", tmp_path / base, tmp_path / graph_file)


def test_a_graph_in_the_version_folder_of_modelmesh(tmp_path: Path) -> None:
    graph(tmp_path / "m/1")
    file = config(tmp_path, '{"model_config_list": [{"config": {"name": "m"}}]}')
    assert only(file).graph == tmp_path / "m/1/graph.pbtxt"
    before = file.digest()
    graph(tmp_path / "m")
    assert only(file).graph == tmp_path / "m/graph.pbtxt", "the usual place wins"
    assert file.digest() != before
    (tmp_path / "m/1/config.json").write_text('{"model_type": "llama"}')  # of a model on the hub
    (tmp_path / "m/graph.pbtxt").unlink()
    assert only(file).subconfig is None
    (tmp_path / "m/1/config.json").write_text('{"model_config_list": [{"config": {"name": "x"}}]}')
    assert [spec.name for spec in file.read().specs] == ["m", "x"]
    graph(tmp_path / "n/1")
    (spec,) = config(tmp_path, '{"mediapipe_config_list": [{"name": "n"}]}').read().specs
    assert spec.graph == tmp_path / "n/graph.pbtxt", "in OVMS only model_config_list looks there"


def test_subconfig_is_named_or_found(tmp_path: Path) -> None:
    text = '{"mediapipe_config_list": [{"name": "m"}]}'
    assert only(config(tmp_path, text)).subconfig is None
    (graph(tmp_path / "m") / "subconfig.json").write_text(
        '{"model_config_list": [{"config": {"name": "x"}}]}'
    )
    found = config(tmp_path, text).read().specs[0].subconfig
    assert found == tmp_path / "m/subconfig.json"
    assert check_subconfig(found) == []
    served = config(tmp_path, text).read().specs
    assert [(spec.name, spec.plain) for spec in served] == [("m", False), ("x", True)]
    assert "no version" not in served[1].fault
    assert f"{tmp_path}/m/x does not exist" in served[1].fault
    named = only(config(tmp_path, '{"mediapipe_config_list": [{"name": "m", "subconfig": "s.json"}]}'))
    assert named.subconfig == tmp_path / "m/s.json"
    (tmp_path / "m/s.json").write_text('{"models": []}')
    with pytest.raises(
        LoadError, match=r"s\.json:1: the file: unknown key 'models'; known: model_config_list"
    ):
        check_subconfig(named.subconfig)


def test_of_two_entries_with_one_name_the_first_counts(tmp_path: Path) -> None:
    text = """{"model_config_list": [{"config": {"name": "m", "base_path": "a"}}],
               "mediapipe_config_list": [{"name": "m", "base_path": "b"}]}"""
    found = config(tmp_path, text).read()
    assert [spec.base for spec in found.specs] == [tmp_path / "a"]
    assert found.warnings == (f"{tmp_path}/config.json:2: 'm' is already defined; the first counts",)


def test_a_pipeline_is_a_name_that_cannot_be_served(tmp_path: Path) -> None:
    spec = only(config(tmp_path, '{"pipeline_config_list": [{"name": "dag", "inputs": []}]}'))
    assert (spec.name, "DAG pipeline" in spec.fault) == ("dag", True)


# ---- faults

FAULTS = [
    ('{\n "model_config_list": [\n  {"config": {"nmae": "m"}}]}', 3, "model_config_list[0].config: unknown key 'nmae' (did you mean name?)"),
    ('{\n "model_config_list": [\n  {"config": {"base_path": "m"}}]}', 3, "model_config_list[0].config: 'name' is required"),
    ('{\n\n"model_config_list": {}}', 3, 'model_config_list: expected a list, got an object; an example is [{"config": {"name": "m", "base_path": "m"}}]'),
    ('{"model_config_list": [\n{"config": {"name":\n 5}}]}', 3, "model_config_list[0].config.name: expected text, got 5"),
    ('{"model_config_list": [\n"m"]}', 2, "model_config_list[0]: expected an object, got 'm'"),
    ('{"model_config_list": [{"config": {"name": "m",\n "nireq": true}}]}', 2, "model_config_list[0].config.nireq: expected a whole number, got True"),
    ('{"monitoring":\n{"metrics": {"enable": true,\n"metrics_list": [1]}}}', 3, "monitoring.metrics.metrics_list[0]: expected text, got 1"),
    ('{"monitoring": {"metrics": {}}}', 1, "monitoring.metrics: 'enable' is required"),
    ('{"moniotring": {}}', 1, "the file: unknown key 'moniotring' (did you mean monitoring?)"),
    ('[]', 1, "the file: expected an object, got a list"),
    ('{\n"monitoring": {},\n"monitoring": {}}', 3, "the file: key 'monitoring' occurs twice, first in line 2"),
    ('{\n"model_config_list": [,]}', 2, "not JSON: Expecting value (column 23)"),
    ('{"model_config_list": []', 1, "not JSON: Expecting ',' delimiter (column 25)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "says"), FAULTS)
def test_a_fault_names_line_and_path(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        config(tmp_path, text).read()
    assert str(caught.value).split("\n")[0] == f"{tmp_path}/config.json:{line}: {says}"


def test_all_faults_are_told(tmp_path: Path) -> None:
    text = '{"model_config_list": [{"config": {"name": 1}},\n{"confg": {}}],\n"x": 1}'
    with pytest.raises(LoadError) as caught:
        config(tmp_path, text).read()
    assert [part.split(": ")[0].rpartition(":")[2] for part in str(caught.value).split("\n")] == [
        "1",
        "2",
        "2",
        "3",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model_config_list:\n- config: {nmae: m}\n", ":2: model_config_list[0].config: 'name' is required"),
        ("a: [1, 2\n", ":2: not YAML"),
        ("5: x\n", ":1: the file: a key must be text, got 5"),
        ("", "the file is empty"),
        ("a: !!python/object:os.system x\n", ":1: not YAML: could not determine a constructor"),
        ("x: " + "[" * 90 + "]" * 90, "nested more than 64 deep"),
    ],
)  # fmt: skip
def test_faults_of_yaml(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        config(tmp_path, text, "config.yaml").read()
    assert says in str(caught.value)


def test_yaml_says_the_same(tmp_path: Path) -> None:
    yaml = config(
        tmp_path,
        """
# comments are what YAML is for
model_config_list:
  - config: {name: one, base_path: graphs/one}
mediapipe_config_list:
  - name: two
monitoring:
  metrics: {enable: yes, metrics_list: [ovms_requests_success]}
""",
        "config.yml",
    )
    text = {
        "model_config_list": [{"config": {"name": "one", "base_path": "graphs/one"}}],
        "mediapipe_config_list": [{"name": "two"}],
        "monitoring": {"metrics": {"enable": True, "metrics_list": ["ovms_requests_success"]}},
    }
    same = config(tmp_path, json.dumps(text, indent="\t"))
    assert yaml.read().specs == same.read().specs
    assert yaml.monitoring() == same.monitoring() == Monitoring(True, ("ovms_requests_success",))
    assert config(tmp_path, "{}").monitoring() == Monitoring(None, None)


def test_bom_and_scalars_of_json(tmp_path: Path) -> None:
    text = (
        '\ufeff{"model_config_list": [{"config": {"name": "m\\u00e9\\/n", "shape": 1e3, "batch_size": "0"}}]}'
    )
    assert only(config(tmp_path, text)).name == "m\u00e9/n"


# ---- what has no effect is told


def test_options_of_models_are_told_with_their_line(tmp_path: Path) -> None:
    text = """{"model_config_list": [{"config": {"name": "m", "batch_size": "auto",
      "plugin_config": {"NUM_STREAMS": 1}, "custom_loader_options": {}}}],
      "custom_loader_config_list": [], "custom_node_library_config_list": [{"name": "l"}]}"""
    file = config(tmp_path, text)
    of_model = [(w.split(":")[1], w.split(": ")[1].split(" ")[0]) for w in file.read().warnings]
    assert of_model == [("3", "custom_node_library_config_list")], "an entry with such keys is a plain model"
    graph(tmp_path / "m")
    told = [(w.split(":")[1], w.split(": ")[1].split(" ")[0]) for w in file.read().warnings]
    assert told == [
        ("1", "model_config_list[0].config.batch_size"),
        ("2", "model_config_list[0].config.plugin_config"),
        ("3", "custom_node_library_config_list"),
    ]


# ---- the file changes


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "none.json")
    with pytest.raises(LoadError, match=r"none\.json: cannot be read: No such file"):
        file.read()
    assert "No such file" in file.digest()


def test_the_digest_follows_content_not_times(tmp_path: Path) -> None:
    file = config(tmp_path, "{}")
    before = file.digest()
    os.utime(file.path, (1, 1))
    assert file.digest() == before
    config(tmp_path, '{"monitoring": {"metrics": {"enable": true}}}')
    assert file.digest() != before


def test_a_directory_of_graphs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        graph(tmp_path / name)
    (tmp_path / "models").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("")
    repository = GraphsDirectory(tmp_path)
    found = repository.read()
    assert [(s.name, s.graph) for s in found.specs] == [
        ("a", tmp_path / "a/graph.pbtxt"),
        ("b", tmp_path / "b/graph.pbtxt"),
    ]
    lacks = "has no graph.pbtxt, no folder named by a version (1, 2, ...) and no model"
    assert found.warnings == (f"not served: {tmp_path}/models {lacks}",)
    before = repository.digest()
    graph(tmp_path / "models")
    assert repository.digest() != before
    with pytest.raises(LoadError, match="nowhere: cannot be read"):
        GraphsDirectory(tmp_path / "nowhere").read()


@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_of_a_json_file_is_what_json_says(tmp_path: Path, ascii_only: bool) -> None:
    """As in rasa #1564: json.dump writes a character beyond U+FFFF as two halves, which YAML keeps apart."""
    rest = {chr(code) for code in (0x7F, 0x80, 0x85, 0x9F, 0xA0, 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}
    for text in ("m\N{GRINNING FACE}", "\U00020000 \U0010ffff", *(f"a{char}b" for char in rest), "a/b\\"):
        entry = {"name": text, "base_path": text}
        content = json.dumps(
            {"mediapipe_config_list": [entry, {"name": "second"}]}, indent=1, ensure_ascii=ascii_only
        )
        first, second = config(tmp_path, content).read().specs
        assert (first.name, first.base) == (text, tmp_path / text)
        assert second.origin.endswith(f":{content[: content.index('second')].count(chr(10))}")


@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_what_no_path_can_hold_is_no_text(tmp_path: Path, name: str) -> None:
    """Half a character, and the null character."""
    text = '{"mediapipe_config_list": [\n{"name": "m", "base_path": "a\\u0000b"}]}'
    with pytest.raises(LoadError, match=rf"{name}:2: not (JSON|YAML): text with the null character"):
        config(tmp_path, text, name).read()
    for text in (
        '{"mediapipe_config_list": [\n{"name": "\\ud800"}]}',
        '{"mediapipe_config_list":\n {"\\udfff": 1}}',
    ):
        with pytest.raises(LoadError, match=rf"{name}:2: not (JSON|YAML): .*surrogates"):
            config(tmp_path, text, name).read()


# ---- paths that the system refuses


def test_what_one_entry_may_not_read_leaves_the_others(
    tmp_path: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in kserve #1607: files of a volume belong to another user than the server's."""
    graph(tmp_path / "a")
    (tmp_path / "b/1").mkdir(parents=True)
    refuse(monkeypatch, tmp_path / "b")
    for keys in (
        {},
        {"graph_path": "g.pbtxt"},
        {"shape": "auto"},
        {"base_path": "b/1"},
        {"base_path": "x" * 300},
    ):
        for section in ("model_config_list", "mediapipe_config_list"):
            with subtests.test(section, keys=keys):
                if "shape" in keys and section == "mediapipe_config_list":
                    continue
                listed = [{"name": "a"}, {"name": "b", **keys}]
                entries = (
                    [{"config": entry} for entry in listed] if section == "model_config_list" else listed
                )
                file = config(tmp_path, json.dumps({section: entries}))
                faults = {spec.name: spec.fault for spec in file.read().specs}
                assert faults["a"] == ""
                assert re.search("cannot be read: (Permission denied|File name too long)", faults["b"]), (
                    faults
                )
                assert file.digest() == file.digest()


def test_a_folder_that_may_not_be_read_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lost+found, at the root of each volume of Kubernetes, is no servable."""
    for name in ("a", "b", "lost+found"):
        graph(tmp_path / name)
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/2").mkdir(parents=True)
    (tmp_path / "m/1/m.onnx").touch()
    for name in ("b", "lost+found", "m/2"):
        refuse(monkeypatch, tmp_path / name)
    content = GraphsDirectory(tmp_path).read()
    faults = [(spec.name, spec.version, spec.fault.rpartition(": ")[2]) for spec in content.specs]
    denied = "Permission denied"
    assert faults == [("a", 1, ""), ("b", 1, denied), ("m", 1, ""), ("m", 2, denied)]
    assert content.warnings == ()


def test_storage_that_has_gone_is_no_fault_of_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph(tmp_path / "a")
    refuse(monkeypatch, tmp_path / "a", errno.ESTALE)
    with pytest.raises(OSError, match="Stale file handle"):
        GraphsDirectory(tmp_path).read()


# ---- plain models


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"shape": "(1,x)"}, "shape: expected one as (1,3,200:500,-1), or auto, got '(1,x)'"),
        ({"shape": {"b": "1;10"}}, "shape of 'b': expected one as"),
        ({"shape": [1, 10]}, "shape: expected text, or an object of text by tensor"),
        (
            {"batch_size": "many"},
            "batch_size: expected a number, -1, a range such as 1:8 or auto, got 'many'",
        ),
        ({"batch_size": True}, "batch_size: expected a number"),
        ({"nireq": -1}, "nireq: expected 0 to 100000, got -1"),
        ({"plugin_config": {"A": [1]}}, "plugin_config.A: expected a string, number or boolean, got [1]"),
        (
            {"plugin_config": {"DEVICE_PROPERTIES": {"CPU": 1}}},
            "plugin_config.DEVICE_PROPERTIES: expected devices with properties, got {'CPU': 1}",
        ),
        (
            {"plugin_config": {"NUM_STREAMS": 1, "CPU_THROUGHPUT_STREAMS": 2}},
            "plugin_config.CPU_THROUGHPUT_STREAMS: means NUM_STREAMS, which is given already",
        ),
        ({"color_format": "HSV"}, "color_format: expected BGR or RGB, got 'HSV'"),
        ({"fixed_shapes": 1}, "fixed_shapes: expected true or false, got 1"),
        ({"dynamic_batching": {}}, 'dynamic_batching: expected an object as {"max_batch_size": 8'),
        ({"dynamic_batching": {"max_batch_size": 1}}, "max_batch_size: expected 2 to 1024, got 1"),
        (
            {"dynamic_batching": {"max_batch_size": 8, "max_queue_delay_microseconds": -1}},
            "max_queue_delay_microseconds: expected 0 to 1000000, got -1",
        ),
        ({"model_version_policy": {"latest": {"num_versions": 0}}}, "model_version_policy: expected one as"),
        ({"model_version_policy": {"specific": {"versions": []}}}, "model_version_policy: expected one as"),
        (
            {"model_version_policy": {"latest": {}, "all": {}}},
            "expected exactly one of latest, specific and all",
        ),
    ],
)
def test_wrong_options_of_a_plain_model_are_its_fault_alone(tmp_path: Path, keys: object, said: str) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    graph(tmp_path / "g")
    text = json.dumps({"model_config_list": [{"config": {"name": "m", **keys}}, {"config": {"name": "g"}}]})  # type: ignore[dict-item]
    wrong, right = config(tmp_path, text).read().specs
    assert said in wrong.fault
    assert not right.fault


@pytest.mark.parametrize("shape", ["auto", "(1,3,200:500,-1)", "1,10", "[ 1 , 10 ]", "()", "(-1)"])
def test_versions_and_options_of_a_plain_model(tmp_path: Path, shape: str) -> None:
    for version in ("1", "2", "10", "07", "-1", "x"):
        (tmp_path / "m" / version).mkdir(parents=True)
        (tmp_path / "m" / version / "model.onnx").touch()
    entry = {"name": "m", "shape": shape, "batch_size": 0, "nireq": 2, "model_version_policy": {"latest": {"num_versions": 2}}}  # fmt: skip
    file = config(tmp_path, json.dumps({"model_config_list": [{"config": entry}]}))
    specs = file.read().specs
    there = [(7, tmp_path / "m/07", ""), (10, tmp_path / "m/10", "")]
    assert [(s.version, s.base, s.fault) for s in specs] == there
    model = specs[0].model
    assert model is not None
    assert (model.shapes, model.nireq, model.batch_size) == ((("", shape),), 2, "")
    before = file.digest()
    (tmp_path / "m/11").mkdir()
    assert file.digest() != before
    specs = file.read().specs
    assert [(s.version, s.base, s.fault) for s in specs[:2]] == there, "the new one is not whole"
    assert "has no model file" in specs[2].fault


def test_the_idle_time_of_the_file_is_that_of_entries_without_one(tmp_path: Path) -> None:
    """OVMS 2026.4 writes it at top level."""
    entries = [{"config": {"name": "a"}}, {"config": {"name": "b", "idle_unload_timeout_seconds": 5}}]
    file = config(tmp_path, json.dumps({"idle_unload_timeout_seconds": 60, "model_config_list": entries}))
    found = file.read()
    assert [(spec.name, spec.idle_seconds) for spec in found.specs] == [("a", 60), ("b", 5)]
    assert not found.warnings


def test_a_list_that_is_an_object_is_shown_as_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        config(tmp_path, json.dumps({"model_config_list": {"config": {"name": "m"}}})).read()
    said = 'expected a list, got an object; an example is [{"config": {"name": "m", "base_path": "m"}}]'
    assert said in str(caught.value)
    with pytest.raises(LoadError, match=r'an example is \[\{"name": "m"\}\]'):
        config(tmp_path, json.dumps({"mediapipe_config_list": {"name": "m"}})).read()
