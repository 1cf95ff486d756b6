"""Pictures of every page, to be looked at: `python -m tests.console.screenshots [DIRECTORY]`, `make screenshots`.

`--readme` takes the two pictures of the README instead, of the default model as `make serve` serves it, `make readme-pictures`. Without it, each page is taken in both themes on a desk and on a phone, with and without content, with a long name and with errors.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from scripts.image_model import make
from tests.conftest import ROOT, Server, start_process
from tests.console.conftest import ARGUMENTS, CHROMIUM
from tests.console.stage import LONG_NAME, five_nodes, stage, stage_kinds
from tests.http.test_realtime import SCRIPT, text_graph
from tests.plain_models import write_models
from tests.ports import free_port

SIZES = {"desk": (1440, 900), "laptop": (1024, 768), "phone": (390, 844)}
MANY = 40
COLOURS = 256  # of a picture in the README, which makes a third of the bytes


class Camera:
    def __init__(self, browser: Any, url: str, folder: Path, size: str, scheme: str) -> None:
        width, height = SIZES[size]
        self._context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self._context.set_default_timeout(15_000)
        self.page = self._context.new_page()
        self._url, self._folder, self._suffix = url, folder, f"{size}-{scheme}"

    def take(self, name: str, place: str | None = None, wait: int = 700) -> None:
        if place is not None:
            self.page.goto(f"{self._url}/console/#/{place}")
            self.page.wait_for_selector("main, .key-box")
        self.page.wait_for_timeout(wait)
        self.page.screenshot(path=self._folder / f"{name}-{self._suffix}.png")

    def close(self) -> None:
        self._context.close()


def ask(url: str, text: str, model: str = "scripted", **more: Any) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True} | more
    httpx.post(f"{url}/v3/chat/completions", json=body, timeout=230)


@contextmanager
def working(
    url: str, model: str, *more: str, texts: tuple[str, ...] = ("endless", "endless"), **options: Any
) -> Iterator[None]:
    """Two requests run meanwhile, and one for each other text."""
    threads = [
        threading.Thread(target=ask, args=(url, text, model), kwargs={"max_tokens": 350} | options)
        for text in (*texts, *more)
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def converse(page: Any) -> None:
    """Choose the model in the open list, and ask it twice."""
    page.get_by_role("option", name="scripted", exact=False).first.click()
    for text in ("markdown, please", "think hard about the lighthouse"):
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        page.locator("article.assistant [aria-busy=false]").last.wait_for()
        page.get_by_label("Send").wait_for()


MODEL = "smollm2"  # which the README's command serves
QUESTIONS = ("What is the capital of France?", "Explain how a lighthouse works in two sentences.")


@contextmanager
def as_readme() -> Iterator[str]:
    """The default model, served by the README's command on a free port; the address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(["make", "serve", f"PORT={port}"], cwd=ROOT)
    try:
        deadline = time.monotonic() + 600
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"`make serve PORT={port}` did not get ready")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()  # make passes it on
        process.wait(60)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v2/models/{MODEL}/ready").status_code == 200
    except httpx.TransportError:
        return False


def for_readme(browser: Any, url: str, folder: Path) -> None:
    """Write docs/images/console-{chat,graph}.png of the real model; no request has failed before them."""
    camera = Camera(browser, url, folder, "desk", "light")
    page = camera.page
    page.goto(f"{url}/console/#/chat")
    for text in QUESTIONS:
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        page.locator("article.assistant [aria-busy=false]").last.wait_for(timeout=60_000)
        page.get_by_label("Send").wait_for(timeout=60_000)
    page.mouse.move(0, 0)  # else the buttons of an answer are shown for the pointer
    camera.take("chat")
    with working(url, MODEL, texts=("Tell a long story about the sea.",) * 2, ignore_eos=True):
        camera.take("graph", f"graph/{MODEL}", wait=3500)
    camera.close()
    for name in ("chat", "graph"):
        with Image.open(folder / f"{name}-desk-light.png") as picture:
            small = _fewer_colours(picture.convert("RGB"))
            small.save(ROOT / f"docs/images/console-{name}.png", optimize=True)


def _fewer_colours(picture: Image.Image) -> Image.Image:
    """Return the picture in colours that cover all of its own, so that small marks keep theirs."""
    frequent = [
        colour for _, colour in sorted(picture.getcolors(picture.width * picture.height), reverse=True)
    ]
    rare = picture.quantize(COLOURS // 4, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*rare, *(channel for colour in frequent for channel in colour)][: 3 * COLOURS])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def tour(camera: Camera, url: str) -> None:
    page = camera.page
    camera.take("chat-empty", "chat")
    page.get_by_role("button", name="Model:").click()
    camera.take("chat-picker", wait=200)
    converse(page)
    camera.take("chat", wait=300)
    page.get_by_label("Message", exact=True).fill("fail")
    page.keyboard.press("Enter")
    camera.take("chat-error")
    for name in ("scripted", "fifteen-nodes", "one-node"):
        page.goto(f"{url}/console/#/graph/{name}")
        page.wait_for_selector(".node")
        with working(url, name):
            camera.take(f"graph-{name}", wait=2500)
    page.goto(f"{url}/console/#/requests")
    with working(url, "scripted", "long prompt " * 500):
        camera.take("requests-running", wait=1500)
    page.goto(f"{url}/console/#/chat")
    page.get_by_label("New chat").last.click()
    page.get_by_label("Message", exact=True).fill("long prompt " * 40)
    page.keyboard.press("Enter")
    camera.take("chat-reading", wait=1800)
    camera.take("graph-long-name", f"graph/{LONG_NAME}")
    page.goto(f"{url}/console/#/graph/scripted")
    page.get_by_role("button", name="LLMExecutor").click()
    camera.take("graph-node")
    page.get_by_role("button", name="Open in the editor").click()
    camera.take("graph-editor", wait=1200)
    camera.take("graph-broken", "graph/broken", wait=1200)
    camera.take("requests", "requests")
    page.goto(f"{url}/console/#/requests/shown")
    camera.take("request")
    page.get_by_role("tab", name="Output").click()
    camera.take("request-output", wait=300)
    page.goto(f"{url}/console/#/metrics")
    with working(url, "scripted"):
        camera.take("metrics", wait=5000)
    for tab in ("models", "log", "options", "keys"):
        camera.take(f"server-{tab}", f"server/{tab}")


def main() -> int:
    from playwright.sync_api import sync_playwright

    readme = sys.argv[1:] == ["--readme"]
    work = Path(tempfile.mkdtemp(prefix="ovserve-screenshots-"))
    folder = work / "pictures" if readme else Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        if readme:
            with as_readme() as url:
                for_readme(browser, url, folder)
            shutil.rmtree(work)
            return 0

        def over(
            flags: list[str], sizes: list[tuple[str, str]], act: Callable[[Camera, Server], None]
        ) -> None:
            server = start_process(*flags)
            try:
                httpx.post(f"{server.url}/console/api/capture", json={"minutes": 5})
                for size, scheme in sizes:
                    camera = Camera(browser, server.url, folder, size, scheme)
                    act(camera, server)
                    camera.close()
            finally:
                server.stop()

        def whole(camera: Camera, server: Server) -> None:
            message = [{"role": "user", "content": "think hard"}]
            body = {"model": "scripted", "stream": True, "messages": message}
            httpx.post(f"{server.url}/v3/chat/completions", json=body, headers={"x-request-id": "shown"})
            ask(server.url, "fail")
            tour(camera, server.url)

        def empty(camera: Camera, server: Server) -> None:
            for place in ("chat", "graph", "requests", "metrics", "server"):
                camera.take(f"empty-{place}", place)

        def many(camera: Camera, server: Server) -> None:
            camera.take("many-server", "server")
            camera.take("many-chat", "chat")
            camera.page.keyboard.press("Control+k")
            camera.take("many-picker")

        def kinds(camera: Camera, server: Server) -> None:
            page = camera.page
            sends = {"embed": "Compare", "rank": "Rank", "draw": "Draw", "add": "Infer", "say": "Speak"}
            for model, button in sends.items():
                page.goto(f"{server.url}/console/#/chat")
                page.get_by_role("button", name="Model:").click()
                page.get_by_role("option", name=model).click()
                page.get_by_role("button", name=button, exact=True).click()
                camera.take(f"play-{model}", wait=1500)

        def talk(camera: Camera, server: Server) -> None:
            camera.take("talk", "talk")
            camera.page.get_by_label("Message").fill("Tell me a long story")
            camera.page.keyboard.press("Enter")
            camera.take("talk-answer", wait=1500)

        def locked(camera: Camera, server: Server) -> None:
            camera.take("key", "chat")

        desk = [("desk", "light"), ("desk", "dark"), ("phone", "light"), ("laptop", "dark")]
        over(["--graphs_dir", str(stage(work / "staged"))], desk, whole)
        (work / "nothing").mkdir()
        over(["--graphs_dir", str(work / "nothing")], [("desk", "light"), ("phone", "dark")], empty)
        for i in range(MANY):
            five_nodes(work / f"many/model-{i:02}")
        over(["--graphs_dir", str(work / "many")], [("desk", "light"), ("phone", "light")], many)
        (work / "kinds").mkdir()
        make(work / "image")
        stage_kinds(work / "kinds", write_models(work / "plain"), work / "image")
        over(["--graphs_dir", str(work / "kinds")], [("desk", "light"), ("phone", "dark")], kinds)
        (work / "talk").mkdir()
        (text_graph(work / "talk/assistant", "model.script.json") / "model.script.json").write_text(
            json.dumps(SCRIPT)
        )
        over(["--graphs_dir", str(work / "talk")], [("desk", "light"), ("phone", "dark")], talk)
        (work / "key").write_text("ovs-0123456789abcdef\n")
        keyed = ["--graphs_dir", str(work / "nothing"), "--api_key_file", str(work / "key")]
        over(keyed, [("desk", "light"), ("phone", "dark")], locked)
        browser.close()
    shutil.rmtree(work)
    sys.stdout.write(f"{len(list(folder.glob('*.png')))} pictures in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
