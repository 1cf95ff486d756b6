"""The pages that lead from other servers: their commands run, and what they name exists here."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ovserve.cli.pull import TASKS
from ovserve.pull.record import digest
from ovserve.server.settings import REFUSED, WITHOUT_EFFECT
from tests.conftest import ROOT
from tests.test_docs import cells, flags_of_commands
from tests.test_tutorial import FENCE, Reader, commands

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs/migrate.md").read_text()
PAGES = {
    title.lower().replace(".", ""): text.replace("\n### ", "\n## ")
    for title, text in re.findall(r"^## From (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
API = (ROOT / "docs/api.md").read_text()
NOT_HERE = ("none", "not served")


@pytest.fixture
def reader(tmp_path: Path, model: Path) -> Iterator[Reader]:
    (tmp_path / "models/smollm2").mkdir(parents=True)
    (tmp_path / "models/smollm2" / model.name).symlink_to(model)
    made = Reader(tmp_path)
    made.environment["OVSERVE_RESPONSE_STORE"] = "off"
    yield made
    if made.server is not None:
        made.server.send_signal(signal.SIGTERM)
        assert made.server.wait(60) == 0


def test_there_is_a_section_for_each_server() -> None:
    assert PAGES.keys() == {"ovms", "vllm", "llamacpp"}


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_do_what_the_page_says(name: str, reader: Reader) -> None:
    printed, blocks = "", FENCE.findall(PAGES[name])
    assert [language for language, _ in blocks].count("text") >= 1
    for language, body in blocks:
        if language == "sh":
            printed = "".join(reader.run(command) for command in commands(body))
            assert '"error"' not in printed, f"{body}\n{printed}"
        for line in body.splitlines() if language == "text" else ():
            assert line.strip() in printed, f"{line}\n{printed}"


def test_the_readme_the_tutorial_and_the_migration_share_a_home(reader: Reader, model: Path) -> None:
    """The laid model that `make serve` serves stays as it is when the other pages' commands follow."""
    laid = reader.directory / "models/smollm2"
    shutil.rmtree(laid)
    shutil.copytree(model.parent, laid)
    before = {path.name: digest(path) for path in laid.iterdir()}
    assert {"openvino_model.xml", "graph.pbtxt", "generation_config.json"} <= before.keys()
    tutorial = (ROOT / "docs/tutorial.md").read_text()
    blocks = [
        body
        for text in (PAGES["ovms"], tutorial)
        for language, body in FENCE.findall(text)
        if language == "sh"
    ]
    todo = [
        line
        for block in blocks
        for line in commands(block)
        if re.match(r"ovserve (--pull|--add|check|new)", line)
    ]
    assert len(todo) == 5
    printed = "".join(reader.run(command) for command in todo)
    assert "guard/graph.pbtxt is written" in printed
    assert {path.name: digest(path) for path in laid.iterdir()} == before


def rows(name: str) -> list[list[str]]:
    """The cells of all three tables: there, here."""
    text = PAGES[name]
    headers = re.findall(r"^## .*\n\n(\| .* \| here \|)$", text, re.MULTILINE)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[:3] == ["Flags", "Files", "Endpoints"]
    assert len(headers) == 3
    parts = text.split("\n## ")[1:4]
    return [row for part, header in zip(parts, headers, strict=True) for row in cells(part, header)]


@pytest.mark.parametrize("name", PAGES)
def test_every_path_on_the_side_of_this_server_is_served(name: str) -> None:
    for there, here in rows(name):
        if here.startswith(NOT_HERE):
            continue
        same = here.startswith(("the same", "also "))
        for path in re.findall(r"`(/[\w/{}.-]+)`", here + (there if same else "")):
            if path in ("/v2/...", "/v2"):
                continue
            bare = re.sub(r"^/v[13](?=/)", "", path)
            known = f"`{path}`" in API or f"`/v3{bare}`\\*" in API
            assert known or re.sub(r"\{\w+\}", "{name}", path) in API, f"{path} is not in docs/api.md"


@pytest.mark.parametrize("name", PAGES)
def test_what_is_said_to_be_missing_is_missing(name: str) -> None:
    """Neither the path, nor an option or a field of a graph whose name begins like that of the flag."""
    known = " ".join(flags_of_commands()) + (ROOT / "proto/ovserve/protos/llm.proto").read_text()
    for there, here in rows(name):
        if not here.startswith(NOT_HERE):
            continue
        for path in re.findall(r"`/(?:v\d/)?([\w/-]+)", there):
            assert not re.search(rf"`/v3/{path}(`|/)", API), f"/{path} is served"
        for flag in re.findall(r"`--([a-z-]+)", there) if here == "none" else ():
            stem = flag.replace("-", "_")
            assert not re.search(rf"\b{stem}", known), f"--{flag}: see {stem}"


def test_every_task_is_listed() -> None:
    [here] = [here for there, here in rows("ovms") if there == "`--task`"]
    assert set(re.findall(r"`(\w+)`", here)) == set(TASKS)


@pytest.mark.parametrize("name", PAGES)
def test_every_flag_on_the_side_of_this_server_exists(name: str) -> None:
    known = flags_of_commands()
    for there, here in rows(name):
        same = here.startswith(("the same", "[the same"))
        text = here + (there if same and name == "ovms" else "")
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - {"--pull"}
        assert flags <= known, flags - known


def test_flags_of_ovms_are_ignored_or_rejected_as_said() -> None:
    said: dict[str, set[str]] = {"ignored": set(), "rejected": set()}
    for there, here in cells(PAGES["ovms"].partition("## Flags")[2], "| OVMS | here |"):
        if here.startswith(tuple(said)):
            said[here.partition(" ")[0]] |= set(re.findall(r"--([\w-]+)", there))
    assert said["ignored"] == set(WITHOUT_EFFECT)
    assert said["rejected"] == set(REFUSED) - {"pull"}  # `ovserve --pull` is `ovserve pull`


@pytest.mark.parametrize("name", PAGES)
def test_the_prose_is_short(name: str) -> None:
    prose = re.sub(r"^(\|.*|```\w*\n(.*\n)*?```)$", "", PAGES[name], flags=re.MULTILINE)
    assert len(prose.split()) <= 350
