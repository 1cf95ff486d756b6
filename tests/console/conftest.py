"""Fixtures of the console's tests: a real browser, and a server over scripted models."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, start_process
from tests.console.stage import stage

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
# In containers: no user namespaces, a small /dev/shm. One process draws all tabs: another takes 0.2 s of CPU time for each.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--renderer-process-limit=1"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of a module, because playwright's event loop runs until it ends, and asynchronous tests of others could not."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make setup-dev"
    )
    if not CHROMIUM:
        pytest.skip("chromium is not installed; the console is tested in it (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


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
    context = browser.new_context(
        **{"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce"} | options
    )
    context.set_default_timeout(60_000)
    context.add_init_script(VIOLATIONS)
    page = context.new_page()
    made = Tab(page, url)
    page.on("console", lambda m: made.complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: made.complaints.append(f"{error} {error.stack}"))
    foreign = lambda to: not to.startswith((url, "data:", "blob:"))  # noqa: E731
    page.on("request", lambda r: made.complaints.append(f"asks {r.url}") if foreign(r.url) else None)
    yield made
    violations = page.evaluate("window.violations ?? []")
    context.close()
    assert not violations, violations
    # A status that a test asks for is logged by the browser as an error.
    assert not [c for c in made.complaints if "Failed to load resource" not in c], made.complaints


def serious(page: Any, *rules: str) -> list[str]:
    """What axe-core finds of the impacts serious and critical, by all rules or these."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"runOnly": list(rules)} if rules else None
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['target']} {one['nodes'][0]['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
