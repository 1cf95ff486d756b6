"""Flags and environment: what wins, what is suggested, what becomes of OVMS's flags, and docs/cli.md."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ovserve.cli.commands import build_parser
from ovserve.cli.parser import OPTIONS as GRAPH_OPTIONS
from ovserve.cli.serve import CONFIG_FLAGS
from ovserve.errors import InvalidArgument
from ovserve.server.environment import from_environment, parse, unknown_variables, variables
from ovserve.server.settings import GROUPS, OPTIONS, REFUSED, WITHOUT_EFFECT
from ovserve.serving.config.models import FLAGS as PLAIN_FLAGS
from scripts.options_docs import FILE, text
from tests.conftest import ROOT

# Every flag of OVMS 2026's server, single model and generative modes, from its own documentation.
OVMS = [
    "port",
    "rest_port",
    "grpc_bind_address",
    "rest_bind_address",
    "grpc_workers",
    "grpc_max_threads",
    "grpc_memory_quota",
    "grpc_channel_arguments",
    "rest_workers",
    "log_level",
    "log_path",
    "verbose_response",
    "file_system_poll_wait_seconds",
    "custom_node_resources_cleaner_interval_seconds",
    "cache_dir",
    "metrics_enable",
    "metrics_list",
    "cpu_extension",
    "allowed_media_domains",
    "allowed_local_media_path",
    "allow_credentials",
    "allowed_origins",
    "allowed_methods",
    "allowed_headers",
    "api_key_file",
    "config_path",
    "trace_path",
    "model_name",
    "model_path",
    "batch_size",
    "shape",
    "layout",
    "mean",
    "scale",
    "color_format",
    "precision",
    "model_version_policy",
    "nireq",
    "target_device",
    "plugin_config",
    "list_models",
    "add_to_config",
    "remove_from_config",
    "pull",
    "source_model",
    "model_repository_path",
    "overwrite_models",
    "gguf_filename",
    "source_loras",
    "max_length",
    "model_type",
    "vocoder",
    "draft_model_path",
    "draft_device",
    "disable_input_count_validation",
    "weight-format",
    "extra_quantization_params",
    "task",
    "configure",
    "max_num_seqs",
    "pipeline_type",
    "enable_prefix_caching",
    "max_num_batched_tokens",
    "cache_size",
    "draft_source_model",
    "dynamic_split_fuse",
    "reasoning_parser",
    "tool_parser",
    "enable_tool_guided_generation",
    "cache_interval_multiplier",
    "max_prompt_len",
    "kv_cache_precision",
    "model_distribution_policy",
]
OF_A_GRAPH = ["task", *(option.name for option in GRAPH_OPTIONS)]
NAMES = [name for o in OPTIONS for name in (o.name, *o.metadata.get("aliases", ()))]


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        build_parser().parse_args(["serve", *argv])
    assert exit_.value.code == 2
    return capsys.readouterr().err


def test_every_flag_of_ovms_has_one_fate() -> None:
    given = (NAMES, WITHOUT_EFFECT, REFUSED, OF_A_GRAPH, CONFIG_FLAGS, PLAIN_FLAGS)
    fates = {name: sum(name in known for known in given) for name in OVMS}
    assert [name for name, count in fates.items() if count != 1] == []


def test_no_other_flags_are_said_to_be_those_of_ovms() -> None:
    assert {*WITHOUT_EFFECT, *REFUSED} <= set(OVMS)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_flag_without_a_meaning_is_a_notice(name: str) -> None:
    given = build_parser().parse_args(["serve", f"--{name}", "4", "--rest_port", "9"])
    assert given.notices == [f"--{name} has no effect: {WITHOUT_EFFECT[name]}"]
    assert given.rest_port == 9


@pytest.mark.parametrize("name", REFUSED)
def test_a_flag_that_would_mislead_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert REFUSED[name] in refusal(capsys, f"--{name}", "x")


@pytest.mark.parametrize(
    ("given", "near"),
    [("--rest-port", "--rest_port"), ("--rest_prot=1", "--rest_port"), ("--loglevel", "--log_level")],
)
def test_an_unknown_flag_suggests(given: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"(did you mean {near}?)" in refusal(capsys, given)


def test_a_flag_is_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized" in refusal(capsys, "--rest_p", "1")


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [
        ("rest_port", "x", "a whole number"),
        ("load_timeout", "soon", "a number"),
        ("log_level", "LOUD", "one of TRACE"),
    ],
)
def test_a_wrong_value_is_named(
    flag: str, text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(rf"--{flag}(/--\w+)*: expected {expected}", refusal(capsys, f"--{flag}", text))
    with pytest.raises(InvalidArgument, match=f"OVSERVE_{flag.upper()}: expected {expected}.*{text!r}"):
        from_environment({f"OVSERVE_{flag.upper()}": text})


def test_every_option_is_read_from_its_variables(subtests: pytest.Subtests) -> None:
    for option in OPTIONS:
        choices = option.metadata["choices"]
        kind = type(option.default)
        written = choices[-1] if choices else {str: "text", int: "7", float: "2.5", bool: "true"}[kind]
        for name in variables(option):
            with subtests.test(name):
                assert from_environment({name: written}) == {option.name: parse(option, written)}


def test_a_flag_wins_over_the_environment() -> None:
    command = [sys.executable, "-m", "ovserve", "serve", "--rest_port", "70000"]
    command += ["--model_name", "m", "--model_path", "."]
    environment = {"PYTHONPATH": str(ROOT), "OVSERVE_REST_PORT": "80000"}
    for argv, port in ((command, 70000), ([*command[:4], *command[6:]], 80000)):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"--rest_port: expected 0 to 65535, got {port}" in done.stderr


def test_an_unknown_variable_suggests_and_those_of_kubernetes_are_left_alone() -> None:
    service = {
        "OVSERVE_REST_PORT": "tcp://10.0.0.1:8000",
        "OVSERVE_SERVICE_HOST": "10.0.0.1",
        "OVSERVE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "PATH": "/bin",
    }
    assert from_environment(service) == {}
    assert unknown_variables(service) == []
    (warning,) = unknown_variables({"OVSERVE_REST_PROT": "1"})
    assert warning.endswith("OVSERVE_REST_PROT does not name an option (did you mean OVSERVE_REST_PORT?)")


def test_a_variable_of_ovms_without_effect_is_named() -> None:
    environment = {
        "OVMS_GRAPH_QUEUE_OFF": "1",
        "OVMS_NEW": "1",
        "GRPC_SERVERS": "",
        "OVMS_MODEL_REPOSITORY_PATH": "models",
        "AWS_REGION": "eu-central-1",
    }
    assert unknown_variables(environment) == [
        "environment variable OVMS_GRAPH_QUEUE_OFF has no effect: graphs are not pooled",
        "environment variable OVMS_NEW has no effect: it is not an option here",
    ]


def test_an_empty_variable_is_none() -> None:
    assert from_environment({"OVSERVE_REST_PORT": ""}) == {}


def test_every_option_is_in_a_group() -> None:
    assert {o.metadata["group"] for o in OPTIONS} <= set(GROUPS)


def test_the_options_document_is_fresh() -> None:
    assert FILE.read_text() == text(), "run `make docs`"
