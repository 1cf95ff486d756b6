"""`ovserve check`, `models` and `reload` as commands."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from ovserve.cli import main
from ovserve.engine.host.memory import Memory, memory
from ovserve.engine.protocol.specs import TextSpec
from ovserve.serving.model_size import ModelSize, model_size
from tests.conftest import ROOT, script_graph, start_process
from tests.encoders import graph, tiny
from tests.engine import random_gguf


def run(*arguments: object, cwd: Path = ROOT, **environment: str) -> tuple[int, str, str]:
    """The command in this process: importing it takes 0.9 s of CPU time, once for each process."""
    out, err = StringIO(), StringIO()
    with (
        contextlib.chdir(cwd),
        patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main([str(argument) for argument in arguments])
    code = end.value.code
    assert isinstance(code, int)
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return code, out.getvalue(), err.getvalue()


def test_the_shipped_graphs_would_be_served(model: Path) -> None:
    shipped = ("bounded_memory", "prompt_lookup", "single_node", "smollm2/graph.pbtxt", "stateful", "tools")
    code, out, _ = run("check", *(f"graphs/{name}" for name in shipped))  # `draft` needs a model of its own
    assert code == 0
    assert "smollm2: would be served" in out
    assert f"weights {model.stat().st_size / 1e6:.0f} MB" in out
    assert "llama, context 8192, on CPU" in out
    assert "chat template: of the model; tool parser " in out
    assert "0 errors, " in out
    assert re.search(r"memory: [\d.]+ [MG]B needed .*, .+ free on this (machine|container)", out)


@pytest.mark.parametrize(
    ("options", "spoil", "says"),
    [
        ((), "", "0 errors"),
        ((), "tokenizer.json", "models_path: PLACE has no tokenizer.json or openvino_tokenizer.xml"),
        (
            (),
            "openvino_model.bin",
            "openvino_model.bin is truncated: it has 9 bytes, and openvino_model.xml needs ",
        ),
        ((), "config.json", "models_path: PLACE/config.json: not a JSON object"),
        (('plugin_config: "[]"',), "", "plugin_config: expected a JSON object"),
        (("plugin_config: '{\"NUM_STREAM\": 2}'",), "", "plugin_config: "),
        (('target_device: "TPU"',), "", "target_device: "),
        (("pooling: MAX",), "", "MAX"),
        (("max_length: 64",), "", "0 errors"),
        (("max_length: 65",), "", "max_length: expected more than 2 and at most the model's 64"),
        (("max_length: 2",), "", "max_length: expected more than 2 and at most the model's 64"),
    ],
)
def test_faults_of_an_encoder_are_found_before_its_weights_load(
    options: tuple[str, ...], spoil: str, says: str, tmp_path: Path
) -> None:
    tiny("mpnet", tmp_path / "m")
    (tmp_path / "graph.pbtxt").write_text(graph("m", *options))
    if spoil == "tokenizer.json":
        (tmp_path / "m" / spoil).unlink()
    elif spoil:
        (tmp_path / "m" / spoil).write_bytes(b"{ not all")
    code, out, _ = run("check", tmp_path)
    assert says.replace("PLACE", str(tmp_path / "m")) in out, out
    assert code == (0 if says == "0 errors" else 1)


def test_a_missing_model_has_the_command_that_fetches_one_for_its_task(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for kind in ("Embeddings", "Rerank", "Classification"):
        with subtests.test(kind):
            (tmp_path / "graph.pbtxt").write_text(graph("m", kind=kind))
            code, out, _ = run("check", tmp_path)
            hint = f"`ovserve pull SOURCE --task {kind.lower()}` may fetch it"
            assert (code, hint in out) == (1, True), out


def test_every_fault_is_told_and_counts(tmp_path: Path) -> None:
    script_graph(tmp_path / "good", "{}")
    bad = script_graph(tmp_path / "bad", "{}") / "graph.pbtxt"
    bad.write_text(bad.read_text().replace('calculator: "LLMExec', 'calculator: "LLMExc'))
    script_graph(tmp_path / "template", json.dumps({"chat_template": "{% for %}"}))
    script_graph(tmp_path / "script", '{"repies": []}')
    directory = script_graph(tmp_path / "directory", "{}")
    (directory / "m").mkdir()
    (directory / "m/openvino_model.xml").write_text("")
    graph = directory / "graph.pbtxt"
    graph.write_text(graph.read_text().replace("model.script.json", "m"))
    code, out, _ = run("check", tmp_path)
    assert code == 1
    told = dict(re.findall(r"^(\w+): ([^\n]*\n(?:.+\n)+)", out, re.MULTILINE))
    assert told["good"].startswith("would be served")
    assert "did you mean LLMExecutorCalculator?" in told["bad"]
    assert "bad/graph.pbtxt:" in told["bad"]
    assert "chat template" in told["template"]
    assert "`repies`" in told["script"]
    for missing in ("openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.bin"):
        assert f"error: {directory}/m has no {missing}" in told["directory"]
    assert "warning: " in told["directory"]
    assert all(
        text.startswith("NOT SERVED")
        for name, text in told.items()
        if name in ("bad", "template", "script", "directory")
    )
    assert not [p for p in tmp_path.rglob("*") if p.name == "openvino.log"]


def test_the_engine_of_a_graph_and_why(tmp_path: Path) -> None:
    script_graph(tmp_path / "g", "{}")
    assert "engine paged, which has all that the graph asks for\n" in run("check", tmp_path)[1]
    assert "engine = paged, which has all that the graph asks for\n" in run("explain", tmp_path / "g")[1]
    script_graph(tmp_path / "g", "{}", "sparse_attention_config { }")
    why = "engine  genai, because the paged engine attends to all tokens (sparse_attention_config)"
    assert why in re.sub("  +", "  ", run("show", tmp_path / "g")[1])
    script_graph(tmp_path / "g", "{}", 'engine: "paged"')
    assert "engine paged, as the graph says\n" in run("check", tmp_path)[1]
    script_graph(tmp_path / "g", "{}", 'engine: "paged"\n lora_adapters { alias: "a" path: "b" }')
    code, out, _ = run("check", tmp_path)
    assert code == 1
    assert (
        "graph.pbtxt:40:2: error: node 'LLMExecutor': lora_adapters: not possible with engine: \"paged\""
        in out
    )


def test_all_mistakes_of_a_file_are_shown_with_their_places(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "g", "{}") / "graph.pbtxt"
    text = graph.read_text()
    graph.write_text(text.replace("back_edge: true", "back_edg: true").replace("sync_set {", "sync_sett {"))
    out = run("check", tmp_path)[1]
    assert re.findall(r"g/graph\.pbtxt:\d+:\d+: error: .*? (\w+): ", out) == ["back_edg", "sync_sett"]
    (source,) = [line for line in graph.read_text().splitlines() if "back_edg:" in line]
    assert f"    {source}\n    {' ' * source.index('back_edg:')}^\n" in out
    graph.write_text(
        text.replace('"DECODED:decoded"', '"DECODED:decodd"', 1).replace(
            "OutputParserCalculator", "OutputParsrCalculator"
        )
    )
    code, out, _ = run("check", tmp_path)
    assert code == 1
    for line in (
        "no node produces stream 'decoded' (did you mean 'decodd'?)",
        "'OutputParsrCalculator' is not known (did you mean OutputParserCalculator?)",
    ):
        assert re.search(rf"g/graph\.pbtxt:\d+:\d+: error: .*{re.escape(line)}", out), out
    assert "2 errors" in out
    wrong = "max_num_seqs: 0 queue_timeout: 0 plugin_config: '{bad}' models_path:"
    graph.write_text(text.replace("models_path:", wrong, 1))
    out = run("check", tmp_path)[1]
    assert re.findall(r"error: .*? (\w+): ", out) == ["max_num_seqs", "queue_timeout", "plugin_config"]
    graph.write_text(text.replace('"LLM_NODE_RESOURCES:llm"', '"LLM_NODE_RESOURCES:lm"', 1))
    out = run("check", tmp_path)[1]
    assert "no node with LLMCalculatorOptions fills side packet 'lm'; did you mean 'llm'?" in out


def test_unread_streams_and_repeated_names_are_warnings(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "g", "{}") / "graph.pbtxt"
    more = 'node { name: "Frontend" calculator: "PassThroughCalculator" input_stream: "http" output_stream: "x" }'
    graph.write_text(graph.read_text() + more)
    code, out, _ = run("check", tmp_path)
    assert code == 0, out
    assert "stream 'x' is read by no node" in out
    assert "node 'Frontend': another node has this name, so it becomes 'Frontend_1'" in out
    assert "2 warnings" in out


def test_strict_takes_warnings_for_errors(tmp_path: Path) -> None:
    script_graph(tmp_path / "g", json.dumps({"max_length": None}))
    assert run("check", tmp_path)[0] == 0
    code, out, _ = run("check", "--strict", tmp_path)
    assert (code, "0 errors, 1 warnings" in out) == (1, True)


def test_strict_takes_the_pool_size_of_a_graph_that_ovms_pulled(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "g", "{}") / "graph.pbtxt"
    graph.write_text(f"# OVMS_GRAPH_QUEUE_MAX_SIZE: AUTO\n{graph.read_text()}")
    code, out, _ = run("check", "--strict", tmp_path)
    assert (code, "0 errors, 0 warnings" in out) == (0, True), out


def test_a_configuration_and_what_becomes_of_ovms_options(tmp_path: Path) -> None:
    script_graph(tmp_path / "m", "{}")
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_config_list": [
                    {"config": {"name": "m", "nireq": 4}},
                    {"config": {"name": "resnet", "shape": "auto"}},
                ],
                "monitoring": {"metrics": {"enable": True}},
            },
            indent=1,
        )
    )
    (tmp_path / "resnet/1").mkdir(parents=True)
    code, out, _ = run("check", "--ovms", config)
    assert code == 1
    assert re.search(r"^\d+ +model_config_list\[0\]\.config\.name +supported$", out, re.MULTILINE)
    assert re.search(r"config\.nireq +no effect: the engine batches continuously", out)
    assert re.search(r"monitoring\.metrics\.enable +supported", out)
    assert "m: would be served" in out
    assert "resnet/1 has no model file" in out


@pytest.mark.parametrize(
    ("text", "says"), [('{"model_config_lst": []}', "unknown key 'model_config_lst'"), ("{", "not JSON")]
)
def test_a_configuration_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    code, out, _ = run("check", tmp_path / "config.json")
    assert (code, says in out) == (1, True)


def test_a_gguf_file_and_a_directory_with_one_model(tmp_path: Path) -> None:
    file = random_gguf.write(tmp_path / "tiny.gguf")
    for path in (file, tmp_path):
        code, out, _ = run("check", path)
        assert (code, "tiny: would be served" in out, "llama, context 512" in out) == (0, True, True)
    whole = file.read_bytes()
    file.write_bytes(whole[:-200])
    for command in ("check", "show"):
        _, out, _ = run(command, file)
        assert "tiny.gguf: the file is truncated: it has" in out
    assert run("check", file)[0] == 1


def test_nothing_there(tmp_path: Path) -> None:
    code, out, _ = run("check", tmp_path / "none")
    assert (code, "none: cannot be read" in out) == (1, True)
    code, out, _ = run("check", tmp_path)
    assert (code, "has no graph.pbtxt, and no directory in it has one" in out) == (1, True)


def test_models_lists_graphs_and_models(model: Path, tmp_path: Path) -> None:
    code, out, _ = run("models")
    assert code == 0
    size = f"{model.stat().st_size / 1e6:.0f} MB"
    assert re.search(rf"^graph +single_node +{size} +llama +8192 +none +none ", out, re.MULTILINE)
    form = r"(9\d|12\d|27\d) MB"  # the processor's choice
    assert re.search(rf"^graph +smollm2 +{form} +LlamaForCausalLM +8192 +hermes3 +none ", out, re.MULTILINE)
    assert re.search(rf"^model +{re.escape(model.name)} +{size} +llama +8192 +none +none ", out, re.MULTILINE)
    shutil.copy(ROOT / "README.md", tmp_path / "no.gguf")
    code, out, _ = run("models", tmp_path)
    assert (code, "no.gguf: not a GGUF file" in out) == (0, True)
    code, out, _ = run("models", cwd=tmp_path)
    assert (code, out) == (1, "no graphs and no models found\n")


def test_reload_tells_what_came_of_it(tmp_path: Path) -> None:
    script_graph(tmp_path / "graphs/m", "{}")
    (tmp_path / "key").write_text("secret\n")
    flags = ("--graphs_dir", str(tmp_path / "graphs"), "--file_system_poll_wait_seconds", "0")
    server = start_process(*flags, "--response_store", "off", "--api_key_file", str(tmp_path / "key"))
    try:
        key = ("--api_key_file", tmp_path / "key")
        code, out, _ = run("reload", server.url, *key)
        assert (code, out.split("\n")[0]) == (0, "nothing had changed")
        script_graph(tmp_path / "graphs/n", "{}")
        code, out, _ = run("reload", f"{server.url}/", API_KEY="secret")
        assert (code, out.split("\n")[0]) == (0, "reloaded")
        assert re.search(r"^n +AVAILABLE +OK +OK$", out, re.MULTILINE)
        script_graph(tmp_path / "graphs/n", '{"load": "fail"}')
        code, out, err = run("reload", server.url, *key)
        assert (code, "412: not loaded: n: " in err) == (1, True)
        assert re.search(
            r"^n +AVAILABLE +FAILED_PRECONDITION +the last change was not loaded", out, re.MULTILINE
        )
        code, _, err = run("reload", server.url)
        assert (code, "401" in err) == (1, True)
    finally:
        server.stop()
    code, _, err = run("reload", server.url)
    assert (code, "Connection refused" in err) == (1, True)
    assert run("reload", "localhost:8000")[0] == 1


# ---- parts


def test_memory_of_machine_and_container(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    assert memory(proc, groups) == Memory(0)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert memory(proc, groups) == Memory(8000 << 10)
    inner = groups / "a/b"
    inner.mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("5\n")
    assert memory(proc, groups) == Memory(8000 << 10)
    (groups / "a/memory.max").write_text("4096000\n")
    (groups / "a/memory.current").write_text("96000\n")
    assert memory(proc, groups) == Memory(4_000_000, "container")
    (groups / "memory").mkdir()
    (groups / "memory/memory.limit_in_bytes").write_text("1000\n")
    (groups / "memory/memory.usage_in_bytes").write_text("400\n")
    assert memory(proc, groups) == Memory(600, "container")


def test_cache_per_token(tmp_path: Path, model: Path) -> None:
    assert model_size(TextSpec(str(model))) == ModelSize(model.stat().st_size, 2 * 30 * 3 * 64 * 1.0625)
    (tmp_path / "openvino_model.bin").write_bytes(b"x" * 1000)
    (tmp_path / "openvino_model.xml").write_bytes(b"x" * 70)
    config = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config}))
    f16 = TextSpec(str(tmp_path), properties='{"KV_CACHE_PRECISION": "f16"}')
    assert model_size(f16) == ModelSize(1000, 2 * 4 * 8 * 8 * 2)
    (tmp_path / "config.json").write_text("{}")
    assert model_size(f16) == ModelSize(1000)
    (tmp_path / "m.gguf").write_bytes(b"x" * 500)  # what it was converted from
    assert model_size(f16) == ModelSize(1000)


def test_plain_models_and_graphs_over_them(tmp_path: Path, plain_models: Path) -> None:
    from tests.conftest import ROOT
    from tests.inference.graphs import one

    (tmp_path / "g").mkdir()
    (tmp_path / "g/graph.pbtxt").write_text(one("m", {"OVTENSOR": ("in", "b")}, {"OVTENSOR": ("out", "a")}))
    shutil.copytree(plain_models / "dummy/1", tmp_path / "m/2")
    entries = [{"config": {"name": "m", "shape": "(1,10)"}}, {"config": {"name": "g"}}]
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_config_list": entries}))
    code, out, _ = run("check", "--ovms", config)
    assert code == 0, out
    assert "m version 2: would be served" in out
    assert re.search(r"config\.shape +supported", out)
    entries[0]["config"]["shape"] = "(1,a)"
    entries[1:] = [{"config": {"name": "g"}}, {"config": {"name": "gone", "base_path": "none", "nireq": 1}}]
    (tmp_path / "g/graph.pbtxt").write_text((tmp_path / "g/graph.pbtxt").read_text().replace('"m"', '"n"'))
    config.write_text(json.dumps({"model_config_list": entries}))
    code, out, _ = run("check", config)
    assert code == 1
    assert "shape: expected one as (1,3,200:500,-1), or auto, got '(1,a)'" in out
    assert "servable_name: 'n' is not a model of this server; its models: m, gone" in out
    assert "none does not exist" in out
    code, out, _ = run("check", ROOT / "graphs/ocr", tmp_path / "m")
    assert "ocr: would be served" in out
    assert "m version 2: would be served" in out


def test_an_absent_file_of_the_options_is_a_warning_and_then_a_load_error(tmp_path: Path) -> None:
    directory = tmp_path / "facts"
    shutil.copytree(ROOT / "graphs/retrieval", directory)
    text = (directory / "graph.pbtxt").read_text().replace("../../models", str(ROOT / "models"))
    (directory / "graph.pbtxt").write_text(re.sub(r'_path: "[\w.]+\.txt"', '_path: "gone.txt"', text))
    code, out, _ = run("check", directory)
    assert re.search(
        r"warning: .*graph.pbtxt:\d+: node 'Retrieval': \w+_path: gone.txt does not exist", out
    ), out
    assert "the load() of nodes, which `ovserve check --load` does" in out
    assert code == 0


def shell(command: str, **environment: str) -> tuple[int, str, str]:
    """A command of a shell, with `ovserve` for this one."""
    command = f'ovserve() {{ {sys.executable} -m ovserve "$@"; }}; {command}'
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_output_may_be_read_in_part() -> None:
    code, out, err = shell("ovserve explain graphs/smollm2 | head -1")
    assert (code, out.count("\n"), err) == (0, 1, "")


def test_a_full_output_is_an_error() -> None:
    code, _, err = shell("ovserve explain graphs/smollm2 >/dev/full")
    assert (code, err) == (1, "ovserve: the output: No space left on device\n")


def test_a_full_disk_names_the_file_and_leaves_no_part_of_it(tmp_path: Path) -> None:
    graph, file = script_graph(tmp_path / "g", "{}"), tmp_path / "config.json"
    flags = ("--add_to_config", "--config_path", file, "--model_name", "g", "--model_path", graph)
    with patch("os.fsync", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        code, _, err = run(*flags)
    assert (code, err) == (1, f"ovserve: {file}: No space left on device\n")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_closed_streams_are_not_needed() -> None:
    code, _, err = shell("ovserve explain graphs/smollm2 >&- && ovserve run -p x --url 127.0.0.1:9 <&-")
    assert (code, err) == (1, "ovserve: http://127.0.0.1:9: Connection refused\n")
    opened = "import os, sys; from ovserve.cli import _open_standard_streams as f; f(); print(os.path.exists('/proc/self/fd/0'))"
    assert shell(f'{sys.executable} -c "{opened}" <&-') == (0, "True\n", ""), "no socket gets its number"


def test_a_name_that_the_terminal_cannot_show_is_shown_in_part(tmp_path: Path) -> None:
    (tmp_path / "\xfc").mkdir()
    code, out, err = shell(f"ovserve check {tmp_path}/*", PYTHONIOENCODING="ascii", LC_ALL="C.UTF-8")
    assert (code, r"\xfc has no graph.pbtxt" in out, err) == (1, True, "")


def test_a_home_that_is_not_known(tmp_path: Path) -> None:
    """Of a user without an entry and of another one: ~ is refused as any path that is not there."""
    home = patch.dict(os.environ)
    with home, patch("pwd.getpwuid", side_effect=KeyError):
        os.environ.pop("HOME", None)
        with pytest.raises(SystemExit, match="1"):
            main(["show", "~/no/model"])
        assert os.environ["HOME"] == "/", "where files go by default"
    for command in ("serve", "pull"):
        code, _, err = run(command, "~no-such-user/model")
        assert (code, err) == (1, "ovserve: ~no-such-user/model does not exist\n")


@pytest.mark.parametrize(
    "address", ["http://localhost:99999", "http://localhost:x", "http://[::1", "http://a b", "http://"]
)
def test_an_address_that_no_server_has_is_refused(address: str) -> None:
    for command in (("ps", "--url", address), ("reload", address)):
        code, _, err = run(*command)
        assert (code, f"expected an address such as http://127.0.0.1:8000, got {address!r}" in err) == (
            1,
            True,
        )


def test_a_source_that_is_empty_or_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "SOURCE is empty" in run("serve", "")[2]
    for command in ("serve", "pull"):
        assert "loop is a link to loop, which cannot be reached" in run(command, "loop", cwd=tmp_path)[2]
    assert run("tune", "nowhere")[2] == "ovserve: nowhere does not exist\n"


def test_doctor_refuses_what_a_start_would() -> None:
    assert (
        run("doctor", "--rest_port", "99999")[2] == "ovserve: --rest_port: expected 0 to 65535, got 99999\n"
    )
