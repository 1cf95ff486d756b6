"""`make docs-site`: every page has its shelf, links resolve, and nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import docs_site
from tests.console.conftest import launched

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
# BaseLoader reads every value as text, so the tag of the heading ids does no harm.
CONFIGURATION = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
SHELVES = {name: pages for entry in CONFIGURATION["nav"] for name, pages in entry.items()}
LOADS = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:)?//", re.IGNORECASE)


def files(pages: Any) -> Iterator[str]:
    if isinstance(pages, str):
        yield pages
    else:
        for entry in pages:
            for below in entry.values():
                yield from files(below)


def build(directory: Path, configuration: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    if not (find_spec("mkdocs") and find_spec("material")):
        pytest.skip("mkdocs is not installed; `make docs-site` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # -q hides warnings from --strict
    return subprocess.run(
        [*command, "-f", str(configuration), "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=230,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = build(directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_every_page_is_on_one_shelf() -> None:
    assert list(SHELVES) == ["Start", "Tutorials", "How-to", "Reference", "Explanation"]
    listed = [file for pages in SHELVES.values() for file in files(pages)]
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(written), "the nav of mkdocs.yml names every page of docs/ once"


def test_links_that_leave_docs_are_found_by_depth() -> None:
    text = "[a](../README.md#top) [b](../../examples/x.json) [c](../graphs.md)"
    assert docs_site.leaving(text, 0) == {"README.md", "examples/x.json", "graphs.md"}
    assert docs_site.leaving(text, 1) == {"examples/x.json"}


def test_the_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert not LOADS.search(page.read_text()), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", sheet.read_text()), sheet.name


def test_the_search_works_from_the_file_system(site: Path) -> None:
    asked = []
    with launched() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.click("input.md-search__input")
        page.keyboard.type("speculative")
        page.wait_for_selector(".md-search-result__item")
        found = page.locator(".md-search-result__item h1").all_inner_texts()
    assert "Decoding modes" in found
    assert {url.partition(":")[0] for url in asked} == {"file"}


def test_the_search_knows_every_page(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())["docs"]
    found = {entry["location"].partition("#")[0] for entry in index}
    assert found >= {page.name for page in site.glob("*.html")} - {"404.html"}
    assert any("enable_prefix_caching" in entry["text"] for entry in index)


def test_a_file_outside_of_docs_is_copied(site: Path) -> None:
    copy = site / "repository/README.md.txt"
    assert copy.read_bytes() == (ROOT / "README.md").read_bytes()
    assert 'href="repository/README.md.txt"' in (site / "index.html").read_text()


@pytest.mark.parametrize("link", ["no-such-page.md", "graphs.md#no-such-heading", "../no-such-file.md"])
def test_a_broken_link_fails_the_build(link: str, tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "graphs.md").write_text("# Graphs\n\n## A heading - and one\n")
    text = (ROOT / "mkdocs.yml").read_text()
    head, _, rest = text.partition("nav:")
    text = head + "theme:" + rest.partition("\ntheme:")[2]
    text = text.replace("scripts/docs_site.py", str(ROOT / "scripts/docs_site.py"))
    (tmp_path / "mkdocs.yml").write_text(text)
    for target, code in (("graphs.md#a-heading---and-one", 0), (link, 1)):
        (pages / "index.md").write_text(f"# Start\n\n[there]({target})\n")
        done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
        assert done.returncode == code, done.stdout + done.stderr
