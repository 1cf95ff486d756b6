"""What `ovserve serve SOURCE` serves: from paths, names and OVMS's flags to a repository."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.cli import main
from ovserve.errors import InvalidArgument, LoadError, NotFound, OvserveError
from ovserve.graph import Registry
from ovserve.pull import graph_file, record
from ovserve.pull.graph_text import graph_text
from ovserve.pull.run import Wanted, convert_for_serving
from ovserve.pull.source import SHORT_NAMES
from ovserve.server.settings import Settings
from ovserve.server.source import Served, resolve
from ovserve.serving.config.file import ConfigFile, GraphsDirectory
from ovserve.serving.fingerprint import Fingerprints
from ovserve.serving.loader import check, model_paths
from tests.conftest import ROOT, script_graph
from tests.engine import random_gguf

SCRIPT = '{"default": {"text": "hello"}}'
GENAI = {"engine": "genai"}  # which reads a .gguf file as it is


def served(options: Mapping[str, Any] | None = None, **settings: Any) -> Served:
    return resolve(Settings(**settings), options or {}, lambda text: pytest.fail(f"nothing to pull: {text}"))


def spec(found: Served) -> Any:
    (one,) = found.repository.read().specs
    return one


def options_of(found: Served) -> Any:
    """The options of the engine, checked as a server would."""
    checked = check(spec(found), Registry(MODULES))
    checked.graph.close()
    (engine,) = checked.engine_specs.values()
    return engine


def test_a_gguf_file_gets_a_graph_in_memory(model: Path) -> None:
    found = served({**GENAI, "cache_size": 2}, source_model=str(model))
    assert found.only == model.stem
    engine = options_of(found)
    assert Path(engine.model_path).samefile(model)
    assert engine.cache_size == 2
    assert "generic_tool_prompt: true" in spec(found).text
    assert model_paths(spec(found)) == (str(model),)


@pytest.mark.parametrize("options", [{}, {"max_num_seqs": 3}], ids=str)
def test_a_gguf_file_is_converted_once_for_the_paged_engine(options: dict[str, Any], tmp_path: Path) -> None:
    file = random_gguf.write(tmp_path / "tiny.gguf", kind=random_gguf.F16)
    settings = Settings(source_model=str(file), model_repository_path=str(tmp_path / "r"))
    said: list[str] = []
    found = resolve(settings, options, said.append)
    engine = options_of(found)
    assert (found.only, engine.model_path, engine.decoding) == ("tiny", f"{tmp_path}/r/tiny", "paged")
    assert any("converting tiny.gguf" in text for text in said)
    said.clear()
    resolve(settings, options, said.append)
    assert not any("converting" in text for text in said)
    for other in {"engine": "genai"}, {"pipeline_type": "LM"}:
        assert options_of(resolve(settings, {**options, **other}, pytest.fail)).model_path == str(file)


def test_another_model_in_the_place_of_a_conversion_stays(tmp_path: Path) -> None:
    file = random_gguf.write(tmp_path / "tiny.gguf", kind=random_gguf.F16)
    (tmp_path / "r/tiny").mkdir(parents=True)
    mine = tmp_path / "r/tiny/openvino_model.xml"
    mine.write_text("mine")
    settings = Settings(source_model=str(file), model_repository_path=str(tmp_path / "r"))
    engine = options_of(resolve(settings, {}, lambda text: None))
    assert engine.model_path == f"{tmp_path}/r/tiny-converted"
    (tmp_path / "r/tiny-converted/pull.json").unlink()  # so this is another model's too
    with pytest.raises(InvalidArgument, match=r"would be converted to .*/r/tiny or .*, which hold other"):
        resolve(settings, {}, lambda text: None)
    assert mine.read_text() == "mine"


def test_a_file_next_to_its_conversion_is_not_converted_again(tmp_path: Path) -> None:
    directory = tmp_path / "r/tiny"
    file = random_gguf.write(tmp_path / "tiny.gguf", kind=random_gguf.F16)
    convert_for_serving(file, tmp_path / "r", lambda text: None)
    kept = Path(shutil.copy(file, directory))  # as `pull` keeps it with --weight-format auto
    os.utime(kept, (0, 0))
    assert convert_for_serving(kept, tmp_path / "other", pytest.fail) == directory
    os.utime(kept)  # it was changed since
    assert convert_for_serving(kept, tmp_path / "other", lambda text: None) == tmp_path / "other/tiny"


def test_the_name_is_the_one_given(model: Path) -> None:
    assert served(GENAI, model_path=str(model), model_name="chat").only == "chat"


def test_a_model_directory_without_a_graph(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.gguf").symlink_to(model)
    found = served(GENAI, source_model=str(tmp_path / "mine"))
    assert found.only == "mine"
    assert Path(options_of(found).model_path).samefile(model)


def test_code_beside_a_model_is_not_run(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(model)
    (tmp_path / "calculators.py").write_text("raise SystemExit('it was run')")
    options_of(served(GENAI, source_model=str(tmp_path)))


def test_a_graph_directory_and_its_file(tmp_path: Path) -> None:
    directory = script_graph(tmp_path / "talk", SCRIPT)
    for path in (directory, directory / "graph.pbtxt"):
        found = served(source_model=str(path))
        assert (found.only, spec(found).base, spec(found).text) == ("talk", directory, "")


def test_a_graph_in_the_folder_of_version_1(tmp_path: Path) -> None:
    script_graph(tmp_path / "talk/1", SCRIPT)
    found = served(source_model=str(tmp_path / "talk"))
    assert (found.only, spec(found).base) == ("talk", tmp_path / "talk/1")


def test_versions_of_a_tensor_model_are_left_to_the_loader(tmp_path: Path) -> None:
    (tmp_path / "net/1").mkdir(parents=True)
    found = served(source_model=str(tmp_path / "net"))
    with pytest.raises(LoadError, match="has no model file"):
        check(spec(found), Registry(MODULES))


def test_options_replace_a_graph_that_has_its_model_beside_it(model: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "graphs/single_node/graph.pbtxt", tmp_path)
    (tmp_path / "a.gguf").symlink_to(model)
    found = served({"max_num_seqs": 3}, model_path=str(tmp_path))
    assert options_of(found).max_num_seqs == 3
    assert "--max_num_seqs" in found.notices[0]


def pulled(directory: Path, model: Path, options: Mapping[str, Any]) -> Path:
    """A directory as `ovserve pull` leaves it."""
    (directory / "a.gguf").symlink_to(model)
    digest = graph_file.write(directory, graph_text(options, "./a.gguf", explicit=True))
    record.write(directory, record.Record(graph=digest))
    return directory


WRITTEN = {
    "engine": "genai",
    "max_num_batched_tokens": 1024,
    "plugin_config": '{"KV_CACHE_PRECISION": "bf16"}',
}


def test_options_keep_the_others_that_pull_wrote(model: Path, tmp_path: Path) -> None:
    directory = pulled(tmp_path, model, {**WRITTEN, "pipeline_type": "LM_CB", "enable_prefix_caching": False})
    found = served({"max_num_seqs": 3}, model_path=str(directory))
    engine = options_of(found)
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.enable_prefix_caching) == (
        3,
        1024,
        False,
    )
    assert json.loads(engine.properties)["KV_CACHE_PRECISION"] == "bf16"
    assert all(text in spec(found).text for text in ("pipeline_type: LM_CB", 'engine: "genai"'))
    assert "is used with --max_num_seqs" in found.notices[0]


def test_a_draft_and_a_model_elsewhere_are_kept(model: Path, tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "mine").mkdir()
    text = graph_text({}, str(model.absolute()), str(tmp_path / "draft"), explicit=True)
    (tmp_path / "mine/graph.pbtxt").write_text(text)
    digest = record.digest(tmp_path / "mine/graph.pbtxt")
    record.write(tmp_path / "mine", record.Record(graph=digest))
    found = served({"max_num_seqs": 3}, source_model=str(tmp_path / "mine"))
    assert f'draft_models_path: "{tmp_path / "draft"}"' in spec(found).text
    assert f'models_path: "{model.absolute()}"' in spec(found).text
    assert found.only == "mine"


def test_an_option_wins_over_what_pull_wrote(model: Path, tmp_path: Path) -> None:
    directory = pulled(tmp_path, model, WRITTEN)
    found = served({"kv_cache_precision": "u8", "max_num_batched_tokens": 64}, model_path=str(directory))
    engine = options_of(found)
    assert engine.max_num_batched_tokens == 64
    assert json.loads(engine.properties)["KV_CACHE_PRECISION"] == "u8"


def test_an_engine_that_does_not_go_with_an_option_is_left_out(model: Path, tmp_path: Path) -> None:
    directory = pulled(tmp_path, model, {})
    text = (directory / "graph.pbtxt").read_text().replace("max_num_seqs", 'engine: "paged", max_num_seqs')
    (directory / "graph.pbtxt").write_text(text)
    record.write(directory, record.Record(graph=record.digest(directory / "graph.pbtxt")))
    assert 'engine: "paged"' in spec(served({"max_num_seqs": 3}, model_path=str(directory))).text
    found = served({"pipeline_type": "LM"}, model_path=str(directory))
    assert "engine:" not in spec(found).text
    assert "pipeline_type: LM" in spec(found).text


def test_a_graph_that_was_changed_since_pull_wrote_it_is_replaced(model: Path, tmp_path: Path) -> None:
    directory = pulled(tmp_path, model, WRITTEN)
    with (directory / "graph.pbtxt").open("a") as file:
        file.write("# mine\n")
    found = served({"max_num_seqs": 3}, model_path=str(directory))
    assert "1024" not in spec(found).text
    assert "is not used" in found.notices[0]


def test_options_for_a_graph_without_a_model_are_an_error(tmp_path: Path) -> None:
    directory = script_graph(tmp_path / "talk", SCRIPT)
    with pytest.raises(InvalidArgument, match="--cache_size: .*graph of its own"):
        served({"cache_size": 1}, source_model=str(directory))


def test_directories_of_graphs_and_configurations(tmp_path: Path) -> None:
    script_graph(tmp_path / "one", SCRIPT)
    assert isinstance(served(source_model=str(tmp_path)).repository, GraphsDirectory)
    config = tmp_path / "config.json"
    config.write_text('{"mediapipe_config_list": [{"name": "one"}]}')
    assert isinstance(served(source_model=str(config)).repository, ConfigFile)
    assert isinstance(served(model_repository_path=str(tmp_path)).repository, ConfigFile)
    with pytest.raises(InvalidArgument, match="--cache_size: only for one model"):
        served({"cache_size": 1}, source_model=str(config))


def test_a_pulled_model_is_named_as_it_was_pulled(model: Path, tmp_path: Path) -> None:
    (tmp_path / "owner/name").mkdir(parents=True)
    (tmp_path / "owner/name/a.gguf").symlink_to(model)
    found = served(GENAI, source_model="owner/name", model_repository_path=str(tmp_path))
    assert found.only == "owner/name"


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("smolm2", NotFound, "did you mean smollm2"),
        ("./nothing", NotFound, "does not exist"),
        ("pyproject.toml", InvalidArgument, "pyproject.toml: expected a .gguf file"),
        ("ovserve/http", LoadError, "openvino_model.xml"),
    ],
)
def test_errors_say_what_to_do(source: str, error: type[OvserveError], message: str, tmp_path: Path) -> None:
    if (ROOT / source).exists():
        source = str(ROOT / source)
    with pytest.raises(error, match=message):
        served(source_model=source, model_repository_path=str(tmp_path))


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_every_short_name_is_pulled_where_it_is_not_on_disk(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not over the network: some are hundreds of megabytes."""
    asked = []

    def pull(wanted: Wanted, say: object, hint: bool) -> Path:
        asked.append(wanted.source)
        return model

    monkeypatch.setattr("ovserve.pull.run.pull", pull)
    monkeypatch.chdir(tmp_path)
    assert served(GENAI, source_model=name).only == name
    assert asked == [name]


def test_a_directory_of_plain_models_is_not_one_model(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1/model.onnx").touch()
    with pytest.raises(InvalidArgument, match="holds 2 models; serve one of them, such as .*/a, or"):
        served(source_model=str(tmp_path))


def test_a_graph_in_memory_changes_with_its_text(model: Path) -> None:
    prints = Fingerprints()
    one, same, other = (
        prints.of(spec(served({**GENAI, **options}, source_model=str(model))), [])
        for options in ({}, {}, {"cache_size": 1})
    )
    assert one == same != other


# -- --add_to_config, --remove_from_config, --list_models


def ovserve(*flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(flags))
    return int(ended.value.code or 0)


def test_a_configuration_is_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        script_graph(tmp_path / name, SCRIPT)
    flags = ["--model_repository_path", str(tmp_path)]
    assert ovserve("--add_to_config", "--model_name", "a", *flags) == 0
    assert ovserve("--add_to_config", "--model_name", "x", "--model_path", str(tmp_path / "b"), *flags) == 0
    assert [s.name for s in ConfigFile(tmp_path / "config.json").read().specs] == ["a", "x"]
    assert ovserve("--add_to_config", "--model_name", "a", *flags) == 1
    assert "'a' is in" in capsys.readouterr().err
    assert ovserve("--remove_from_config", "--model_name", "a", *flags) == 0
    assert [s.name for s in ConfigFile(tmp_path / "config.json").read().specs] == ["x"]
    assert ovserve("--remove_from_config", "--model_name", "a", *flags) == 1
    assert "which lists x" in capsys.readouterr().err
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner/linked").symlink_to(tmp_path / "a")
    (tmp_path / "plain/1").mkdir(parents=True)
    (tmp_path / "plain/1/model.onnx").touch()
    assert ovserve("--list_models", *flags) == 0
    assert capsys.readouterr().out.split() == ["a", "b", "owner/linked", "plain"]


def test_a_flag_without_effect_on_an_edit_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    repository = ["--model_repository_path", str(tmp_path)]
    script_graph(tmp_path / "a", SCRIPT)
    assert ovserve("--add_to_config", "--model_name", "a", *repository) == 0
    before = (tmp_path / "config.json").read_text()
    for edit, wrong in (
        ("--add_to_config --model_name b", "--task embeddings"),
        ("--remove_from_config --model_name a", "--task embeddings"),
        ("--remove_from_config --model_name a", "--model_path a"),
        ("--remove_from_config --model_name a", "--shape auto"),
        ("--remove_from_config --model_name a", "--cache_size 1"),
        ("--list_models", "--task embeddings"),
        ("--list_models", "--model_name a"),
        ("--list_models", "--nireq 1"),
    ):
        with subtests.test(edit, wrong=wrong):
            assert ovserve(*edit.split(), *wrong.split(), *repository) != 0
            expected = f"{wrong.split()[0]}: has no effect with {edit.split()[0]}"
            assert expected in capsys.readouterr().err
            assert (tmp_path / "config.json").read_text() == before


def test_a_plain_model_is_added_with_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").touch()
    script_graph(tmp_path / "graph", SCRIPT)
    flags = ["--model_repository_path", str(tmp_path), "--model_name"]
    options = ["--target_device", "CPU", "--plugin_config", '{"NUM_STREAMS": 2}']
    assert ovserve("--add_to_config", *flags, "m", *options) == 0
    (entry,) = json.loads((tmp_path / "config.json").read_text())["model_config_list"]
    added = {"target_device": "CPU", "plugin_config": {"NUM_STREAMS": 2}}
    assert entry["config"] == {"name": "m", "base_path": "m"} | added
    assert ovserve("--add_to_config", *flags, "graph", "--group_name", "permanent") == 0
    graph = {s.name: s for s in ConfigFile(tmp_path / "config.json").read().specs}["graph"]
    assert graph.group == "permanent"
    assert ovserve("--remove_from_config", *flags, "graph") == 0
    assert ovserve("--config_path", str(tmp_path / "config.json"), "--group_name", "a") == 2
    assert "--group_name: needs --add_to_config" in capsys.readouterr().err
    for wrong, says in (
        (["m2"], "has no graph.pbtxt and no model"),
        (["graph", "--cache_size", "2"], "--cache_size: not written to"),
        (["graph", "--target_device", "CPU"], "write it into"),
        (["graph", "--shape", "auto"], "write it into"),
    ):
        assert ovserve("--add_to_config", *flags, *wrong) == 1
        assert says in capsys.readouterr().err
    assert ovserve("serve", "other.json", "--add_to_config", *flags, "graph") == 1
    assert "has no SOURCE, got 'other.json'" in capsys.readouterr().err


def encoder(directory: Path, **config: Any) -> Path:
    """What a directory with an encoder looks like; nothing here reads its weights."""
    (directory / "1_Pooling").mkdir(parents=True)
    for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json"):
        (directory / name).write_text("{}")
    (directory / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    return directory


@pytest.mark.parametrize(
    ("task", "architecture", "calculator"),
    [
        ("embeddings", "BertForMaskedLM", "EmbeddingsCalculatorOV"),
        ("rerank", "Qwen3ForCausalLM", "RerankCalculatorOV"),
        ("", "BertModel", "EmbeddingsCalculatorOV"),
        ("", "XLMRobertaForSequenceClassification", "RerankCalculatorOV"),
        ("classification", "BertForSequenceClassification", "ClassificationCalculatorOV"),
    ],
)
def test_an_encoder_gets_the_graph_of_its_task(
    tmp_path: Path, task: str, architecture: str, calculator: str
) -> None:
    path = encoder(tmp_path / "enc", architectures=[architecture])
    options = {"num_streams": 1}
    found = resolve(Settings(model_path=str(path)), options, lambda text: None, task)
    text = spec(found).text
    assert found.only == "enc"
    assert f'calculator: "{calculator}"' in text
    assert json.loads(options_of(found).properties) == {"NUM_STREAMS": "1"}
    assert model_paths(spec(found)) == (str(path),)


@pytest.mark.parametrize(
    ("labels", "calculator"),
    [
        (["LABEL_0"], "RerankCalculatorOV"),
        (["relevance"], "RerankCalculatorOV"),
        (["LABEL_0", "LABEL_1"], "RerankCalculatorOV"),
        (["NEGATIVE", "POSITIVE"], "ClassificationCalculatorOV"),
        (["LABEL_0", "LABEL_1", "LABEL_2"], "ClassificationCalculatorOV"),
    ],
)
def test_a_sequence_classifier_s_labels_decide_its_task(
    tmp_path: Path, labels: list[str], calculator: str
) -> None:
    kind = "BertForSequenceClassification"
    path = encoder(tmp_path / "enc", architectures=[kind], id2label=dict(enumerate(labels)))
    found = resolve(Settings(model_path=str(path)), {}, lambda text: None, "")
    assert f'calculator: "{calculator}"' in spec(found).text
    named = resolve(Settings(model_path=str(path)), {}, lambda text: None, "rerank")
    assert 'calculator: "RerankCalculatorOV"' in spec(named).text


def test_what_a_task_cannot_be_used_with_is_said(tmp_path: Path, model: Path) -> None:
    path = encoder(tmp_path / "enc", architectures=["BertModel"])
    with pytest.raises(InvalidArgument, match="--pooling is not an option of the task rerank"):
        resolve(Settings(model_path=str(path)), {"pooling": "CLS"}, lambda text: None, "rerank")
    with pytest.raises(InvalidArgument, match="--task embeddings: expected a directory"):
        resolve(Settings(model_path=str(model)), {}, lambda text: None, "embeddings")
    with pytest.raises(InvalidArgument, match="--task: only for one model"):
        resolve(Settings(graphs_dir=str(tmp_path)), {}, lambda text: None, "embeddings")


def test_a_wrong_configuration_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script_graph(tmp_path / "a", SCRIPT)
    (tmp_path / "config.json").write_text('{"model_config": []}')
    assert ovserve("--add_to_config", "--model_name", "a", "--model_repository_path", str(tmp_path)) == 1
    assert "did you mean model_config_list" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == '{"model_config": []}'


def test_a_relative_path_is_one_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OVMS resolves --model_path so; from elsewhere it is that of the working directory."""
    graph = '{"replies": []}'
    for place in ("site/models/m", "work/models/m", "work/models/only"):
        script_graph(tmp_path / place, graph)
    monkeypatch.chdir(tmp_path / "work")
    config = str(tmp_path / "site/config.json")
    for name in ("m", "only"):
        flags = ("--model_name", name, "--model_path", f"models/{name}", "--config_path", config)
        assert ovserve("--add_to_config", *flags) == 0
    listed = json.loads(Path(config).read_text())["model_config_list"]
    assert [entry["config"]["base_path"] for entry in listed] == [
        "models/m",
        str(tmp_path / "work/models/only"),
    ]
