"""Fixtures of the console's tests: a real browser, and a server over scripted models."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, start_process
from tests.console.stage import stage

# The shell is chromium without its windows: the same engine for two thirds of the CPU time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
# In containers: no user namespaces, a small /dev/shm. One process draws all tabs: another takes 0.2 s of CPU time for each.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--renderer-process-limit=1", "--disable-gpu"]


@contextmanager
def launched(*arguments: str) -> Iterator[Any]:
    """A browser, or else the test is skipped."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make setup-dev"
    )
    if not CHROMIUM:
        pytest.skip("chromium is not installed (apt-get install chromium-headless-shell)")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *arguments])
        yield made
        made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of a module, because playwright's event loop runs until it ends, and asynchronous tests of others could not."""
    with launched() as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage(tmp_path_factory.mktemp("graphs"))


@pytest.fixture(scope="module")
def console(served: Path) -> Iterator[Server]:
    server = start_process("--graphs_dir", str(served), "--file_system_poll_wait_seconds", "0")
    yield server
    server.stop()


@dataclass
class Tab:
    """A page of the browser. What its console or its policy complains about fails the test at the end."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, place: str = "", ready: str = "main h1, main .picker, .key-box") -> Any:
        self.page.goto(f"{self.url}/console/#/{place}")
        self.page.wait_for_selector(ready, state="attached")
        return self.page


VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
"""


@pytest.fixture
def tab(browser: Any, console: Server) -> Iterator[Tab]:
    yield from open_tab(browser, console.url)


def open_tab(browser: Any, url: str, **options: Any) -> Iterator[Tab]:
    """A page of a context that all pages without options share: one of its own takes 0.5 s of CPU time."""
    context = _context(browser, options) if options or not browser.contexts else browser.contexts[0]
    page = context.new_page()
    made = Tab(page, url)
    page.on("console", lambda m: made.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: made.complaints.append(f"{error} {error.stack}"))
    foreign = lambda to: not to.startswith((url, "data:", "blob:"))  # noqa: E731
    page.on("request", lambda r: made.complaints.append(f"asks {r.url}") if foreign(r.url) else None)
    try:
        yield made
        violations = page.evaluate("window.violations ?? []")
    finally:
        if options:
            context.close()
        else:
            _clear(context, url)
    assert not violations, violations
    # A status that a test asks for is logged by the browser as an error.
    assert not [c for c in made.complaints if "Failed to load resource" not in c], made.complaints


def _context(browser: Any, options: dict[str, Any]) -> Any:
    context = browser.new_context(
        **{"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce"} | options
    )
    context.set_default_timeout(60_000)
    context.add_init_script(VIOLATIONS)
    if not options:
        context.new_page()  # with one that stays, the next ones need no process of their own
    return context


def _clear(context: Any, url: str) -> None:
    """Close the pages but the first, and forget what they stored."""
    blank, *pages = context.pages
    for page in pages:
        page.close()
    session = context.new_cdp_session(blank)
    session.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
    session.detach()


def serious(page: Any, *rules: str) -> list[str]:
    """What axe-core finds of the impacts serious and critical, by all rules or these."""
    from axe_playwright_python.sync_playwright import Axe

    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(Axe().axe_script)
    # Else what passes is described too, which costs more than to find it.
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found = page.evaluate("async (o) => (await axe.run(document, o)).violations", options)
    return [
        f"{one['id']}: {one['nodes'][0]['target']} {one['nodes'][0]['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def serious_when_dark(page: Any) -> list[str]:
    """What it finds in the dark scheme, where nothing but colours differs. The page is light before and after."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"(light) => {ground} !== light", arg=light)
    found = serious(page, "color-contrast")
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"(light) => {ground} === light", arg=light)
    return found
