"""Every page in a real browser: accessible in both themes and on a phone, with keys, the graph and the inspector."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.access.keys import entry_text
from tests.conftest import Server, start_process, until
from tests.console.conftest import Tab, open_tab, serious, serious_when_dark
from tests.console.stage import LONG_NAME, five_nodes, script

pytestmark = pytest.mark.long

ADMIN, USER, LIMITED = "ovs-admin-0123456789", "ovs-alice-0123456789", "ovs-limited-0123456789"
PLACES = [
    "chat",
    "graph/scripted",
    "metrics",
    "requests",
    "batches",
    "server",
    "server/log",
    "server/options",
    "server/keys",
]


def ask(url: str, text: str, **more: Any) -> None:
    body = {"model": "scripted", "max_tokens": 60, "messages": [{"role": "user", "content": text}]} | more
    httpx.post(f"{url}/v3/chat/completions", json=body, timeout=230)


def test_every_page_is_accessible(browser: Any, console: Server) -> None:
    ask(console.url, "hello")
    for tab in open_tab(browser, console.url, color_scheme="light"):
        for place in PLACES:
            page = tab.open(place)
            page.wait_for_timeout(400)
            assert serious(page) == [], place
            assert serious_when_dark(page) == [], place
        page = tab.open("requests")
        page.locator("tbody tr.press").first.click()
        page.get_by_text("Request id").wait_for()
        assert serious(page) == []
        assert serious_when_dark(page) == []
        for key in ["Tab"] * 12 + ["Shift+Tab"] * 14:
            page.keyboard.press(key)
            assert page.evaluate("document.querySelector('.drawer').contains(document.activeElement)"), key
        page.keyboard.press("Escape")
        page.wait_for_function("() => document.querySelector('.drawer') === null")


def test_pages_fit_a_phone(browser: Any, console: Server) -> None:
    for tab in open_tab(browser, console.url, viewport={"width": 390, "height": 844}, has_touch=True):
        for place in [*PLACES, f"graph/{LONG_NAME}"]:
            page = tab.open(place)
            page.wait_for_timeout(300)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, f"{place} is {wide} wide"
            assert page.get_by_role("navigation").is_visible()


@pytest.mark.parametrize("width", [1024, 1280])
def test_a_long_path_leaves_room_for_the_other_columns(browser: Any, console: Server, width: int) -> None:
    """The path of a stored response has its id; the last column, Total, was out of sight."""
    body = {"model": "scripted", "input": "hello"}
    stored = httpx.post(f"{console.url}/v3/responses", json=body).json()["id"]
    httpx.get(f"{console.url}/v3/responses/{stored}/input_items").raise_for_status()
    for tab in open_tab(browser, console.url, viewport={"width": width, "height": 800}):
        page = tab.open("requests")
        page.get_by_text(f"responses/{stored}/input_items").wait_for()
        table = page.get_by_role("region", name="Requests", exact=True)
        scrolled, shown = table.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert scrolled <= shown + 1


# ---- keys


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    five_nodes(folder / "graphs/scripted")
    keys = [entry_text("admin", ADMIN) + "admin = true\n", entry_text("alice", USER)]
    keys.append(entry_text("limited", LIMITED) + "requests_per_day = 1\n")
    (folder / "keys.toml").write_text("\n".join(keys))
    server = start_process(
        "--graphs_dir", str(folder / "graphs"), "--api_keys_file", str(folder / "keys.toml")
    )
    yield server
    server.stop()


def test_a_key_is_asked_for_and_kept_in_the_tab(browser: Any, keyed: Server) -> None:
    for tab in open_tab(browser, keyed.url):
        page = tab.open()
        page.get_by_label("API key", exact=True).fill("wrong-key-0123456789")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("alert").get_by_text("Incorrect API key").wait_for()
        assert serious(page) == []
        page.get_by_label("API key", exact=True).fill(USER)
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("button", name=re.compile("^Model: scripted")).wait_for()
        assert page.get_by_role("link", name="Server").count() == 0
        assert page.evaluate("JSON.stringify(localStorage)").find(USER) == -1
        page.get_by_label("Message", exact=True).fill("hello")
        page.keyboard.press("Enter")
        page.get_by_text("Hello there.").wait_for()
        page.evaluate("sessionStorage.setItem('ovserve.key', 'revoked-key-0123456789')")
        page.reload()
        page.get_by_role("alert").get_by_text("Incorrect API key").wait_for()
        page.get_by_label("API key", exact=True).fill(USER)
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("button", name=re.compile("alice")).click()
        page.get_by_label("API key", exact=True).wait_for()
        assert page.get_by_role("alert").count() == 0


def test_a_second_key_is_for_administration(browser: Any, keyed: Server) -> None:
    for tab in open_tab(browser, keyed.url):
        page = tab.open()
        page.get_by_label("API key", exact=True).fill(USER)
        page.get_by_text("A second key for administration").click()
        page.get_by_label("Admin key").fill(ADMIN)
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("link", name="Server").click()
        page.get_by_role("link", name="scripted").wait_for()
        page.get_by_role("tab", name="Keys").click()
        page.get_by_role("cell", name="alice", exact=True).wait_for()
        assert USER not in page.content()


def test_a_used_up_limit_says_when_to_come_back(browser: Any, keyed: Server) -> None:
    for tab in open_tab(browser, keyed.url):
        page = tab.open()
        page.get_by_label("API key", exact=True).fill(LIMITED)
        page.get_by_role("button", name="Continue").click()
        for _ in range(2):
            page.get_by_label("Message", exact=True).fill("hello")
            page.keyboard.press("Enter")
            page.get_by_label("Send").wait_for()
            page.locator("article.assistant [aria-busy=false]").last.wait_for()
        alert = page.locator("article.assistant").last.get_by_role("alert")
        alert.get_by_text("this key may have 1 request per day (UTC)").wait_for()
        alert.get_by_text(re.compile(r"^Wait (\d+ s|until .*\)) before the next attempt\.$")).last.wait_for()
        assert serious(page) == []
        page.reload()
        page.get_by_role("button", name=re.compile("^hello")).first.click()
        page.get_by_text(re.compile("^Wait ")).last.wait_for()
    headers = {"Authorization": f"Bearer {ADMIN}"}
    info = httpx.get(f"{keyed.url}/console/api/server", headers=headers).json()
    (key,) = [key for key in info["keys"] if key["name"] == "limited"]
    assert (key["limits"], key["today"]["requests"]) == ({"requests_per_day": 1}, 1)
    for tab in open_tab(browser, keyed.url):
        page = tab.open("server/keys")
        page.get_by_label("API key", exact=True).fill(ADMIN)
        page.get_by_role("button", name="Continue").click()
        row = page.get_by_role("row", name=re.compile("^limited"))
        row.get_by_text("requests per day: 1, 0 left").wait_for()


def test_an_address_that_is_cut_off_opens_a_page(tab: Tab) -> None:
    for place in ("graph/%E0%A4%A", "requests/%", "nowhere"):
        page = tab.open(place)
        page.reload()
        page.get_by_role("link", name="Chat").wait_for()
        page.locator("main h1").wait_for(state="attached")


# ---- the graph


def test_every_stream_and_side_packet_is_drawn(tab: Tab, console: Server) -> None:
    for name in ("scripted", "fifteen-nodes", "one-node", LONG_NAME):
        graph = httpx.get(f"{console.url}/console/api/graphs/{name}").json()["graph"]
        page = tab.open(f"graph/{name}", ready=".node")
        page.get_by_role("button", name=re.compile(f"^Graph: {name}")).wait_for()
        page.wait_for_function(
            "(n) => document.querySelectorAll('.node').length === n", arg=len(graph["nodes"])
        )
        inputs = sum(len(node["inputs"]) for node in graph["nodes"]) + len(graph["outputs"])
        sides = sum(len(node["side_inputs"]) for node in graph["nodes"])
        assert page.locator(".edge").count() == inputs + sides, name
        assert page.locator(".edge.side").count() == sides
        backs = sum(i["back_edge"] for node in graph["nodes"] for i in node["inputs"])
        assert page.locator(".edge.back").count() == backs
        shown = " ".join(
            page.locator(".edge title").all_text_contents()
        )  # a large graph has no room for names
        for node in graph["nodes"]:
            for output in node["outputs"]:
                read = any(i["stream"] == output["stream"] for n in graph["nodes"] for i in n["inputs"])
                assert output["stream"] in shown or not read


SMALL_LABELS = """() => [...document.querySelectorAll(".graph-view svg text")].map((e) => [e.textContent,
    parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a]).filter(([text, px]) => text && px < 10.95)"""
OUTSIDE = """() => { const view = document.querySelector(".graph-view").getBoundingClientRect();
    return [...document.querySelectorAll(".node, .lug")].filter((e) => { const box = e.getBoundingClientRect();
        return box.top < view.top - 1 || box.bottom > view.bottom + 1 || box.left < view.left - 1 || box.right > view.right + 1; }).length; }"""


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["one-node", "scripted", "fifteen-nodes"])
def test_a_graph_is_fitted_and_its_labels_can_be_read(
    browser: Any, console: Server, width: int, name: str
) -> None:
    for tab in open_tab(browser, console.url, viewport={"width": width, "height": 844}):
        page = tab.open(f"graph/{name}", ready=".node")
        page.get_by_role("button", name=re.compile(f"^Graph: {name}")).wait_for()
        assert page.evaluate(OUTSIDE) == 0
        assert page.evaluate(SMALL_LABELS) == []
        assert page.get_by_text("Legend").is_visible()


def test_a_graph_runs_from_left_to_right_where_that_fits(browser: Any, console: Server) -> None:
    ends = "() => ['input', 'output'].map((kind) => { const b = document.querySelector(`.lug.${kind}`).getBoundingClientRect(); return [b.x, b.y]; })"
    for width, across in ((1920, True), (800, False)):
        for tab in open_tab(browser, console.url, viewport={"width": width, "height": 900}):
            page = tab.open("graph/scripted", ready=".node")
            (x0, y0), (x1, y1) = page.evaluate(ends)
            assert (x1 - x0 > abs(y1 - y0)) == across, (width, x0, y0, x1, y1)


def test_a_port_shows_its_whole_name_and_stream(tab: Tab) -> None:
    page = tab.open("graph/scripted", ready=".node")
    names = page.locator(".node[aria-label^=LLMExecutor] g > title").all_text_contents()
    assert {"LLM_NODE_RESOURCES: llm", "LOOPBACK: loopback"} <= set(names)


def test_nodes_on_threads_are_told_from_those_on_the_event_loop(tab: Tab) -> None:
    page = tab.open("graph/fifteen-nodes", ready=".node")
    page.get_by_label("Where nodes run").get_by_text("threads: filters (2)").wait_for()
    assert page.locator(".node.pool-0").count() == 5
    assert serious(page) == []


def test_a_graph_at_work_shows_its_counters(tab: Tab, console: Server) -> None:
    page = tab.open("graph/scripted", ready=".node")
    work = threading.Thread(target=ask, args=(console.url, "endless"), kwargs={"max_tokens": 250})
    work.start()
    page.get_by_role(
        "button", name=re.compile(r"^LLMExecutor, .*, [\d.]+.s · p95 [\d.]+ (µs|ms|s)")
    ).wait_for()
    page.get_by_text(re.compile(r"^delta · [\d.]+.s")).wait_for()
    busiest = page.locator(".node.busiest")
    busiest.wait_for()
    accent, bad = (
        page.evaluate(
            "(name) => { const i = document.createElement('i'); i.style.color = `var(${name})`; document.body.append(i); return getComputedStyle(i).color; }",
            name,
        )
        for name in ("--accent", "--bad")
    )
    stroke = busiest.locator(".node-body").evaluate("e => getComputedStyle(e).stroke")
    assert (stroke, bad != accent) == (accent, True)
    work.join()
    page.get_by_role("button", name=re.compile("^LLMExecutor")).click()
    page.get_by_text("Lines 22 to 42").wait_for()
    assert "models_path" in page.get_by_label("Details").inner_text()


def test_the_percentile_of_calls_is_that_since_an_earlier_event(tab: Tab) -> None:
    """19 of 20 new calls are in bucket 10, which ends at 1.2**10 us; one old call took far longer."""
    page = tab.open("graph/scripted", ready=".node")
    found = page.evaluate(
        """async () => { const { percentile } = await import("./js/graph/live.js");
            const now = { 10: 22, 50: 1, 90: 1 }, before = { 10: 3, 90: 1 };
            return [percentile(now, before, 0.95), percentile(now, before, 0.96), percentile(now, now, 0.95)]; }"""
    )
    assert found[:2] == [pytest.approx(1e-6 * 1.2**9.5), pytest.approx(1e-6 * 1.2**49.5)]
    assert found[2] is None


def test_a_node_shows_its_last_error_and_packets(tab: Tab, console: Server) -> None:
    page = tab.open("graph/scripted", ready=".node")
    page.get_by_role("button", name=re.compile("^LLMExecutor")).click()
    details = page.get_by_label("Details")
    ask(console.url, "fail")
    details.get_by_text("failed in process(): the script rejects this").wait_for()
    ask(console.url, "hello")
    details.locator(".packet-seen", has_text="delta Delta").wait_for()
    details.get_by_role("button", name="generate").click()
    details.locator(".packet-seen", has_text="GenerateRequest prompt of").wait_for()
    assert serious(page) == []


def kill_engine(console: Server, name: str) -> None:
    """Once it has a process: another test may have ended it a moment ago, and 0 is the pid of our own group."""
    deadline = time.monotonic() + 230
    while True:
        models = httpx.get(f"{console.url}/console/api/server").json()["models"]
        (engine,) = next(model for model in models if model["name"] == name)["engines"]
        if engine["pid"]:
            os.kill(engine["pid"], signal.SIGKILL)
            return
        assert time.monotonic() < deadline, engine
        time.sleep(0.05)


def test_an_engine_that_ends_is_told(tab: Tab, console: Server) -> None:
    page = tab.open("chat")
    kill_engine(console, "one-node")
    page.get_by_text("The engine of one-node ended").wait_for()
    page.get_by_role("link", name="Server").click()
    page.get_by_role("row", name=re.compile("^one-node")).get_by_text("restarted once").wait_for()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_note_of_an_ended_engine_covers_no_control(browser: Any, console: Server, width: int) -> None:
    """It stays for twelve seconds, in which an answer may have to be stopped."""
    for tab in open_tab(browser, console.url, viewport={"width": width, "height": 844}):
        page = tab.open("chat")
        kill_engine(console, "fifteen-nodes")
        page.get_by_text("The engine of fifteen-nodes ended").wait_for()
        note = page.locator(".away").bounding_box()
        composer = page.locator(".composer").bounding_box()
        assert note["y"] + note["height"] <= composer["y"]
        assert page.evaluate(
            "([x, y]) => !document.elementFromPoint(x, y).closest('.away')",
            [note["x"] + note["width"] / 2, note["y"] + note["height"] / 2],
        ), "what is below it can be pressed"


def test_the_keyboard_walks_along_streams(tab: Tab) -> None:
    page = tab.open("graph/scripted", ready=".node")
    page.get_by_role("button", name=re.compile("^Frontend")).focus()
    page.keyboard.press("ArrowDown")
    assert "RequestParser" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    page.get_by_label("Details").get_by_text("RequestParserCalculator").first.wait_for()


def editor_of(tab: Tab) -> Any:
    """The page of the scripted graph, with the keyboard in its text."""
    page = tab.open("graph/scripted", ready=".node")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_text("valid", exact=True).wait_for()
    page.locator(".cm-content").click()
    return page


def test_an_edit_is_checked_applied_and_undone(tab: Tab, served: Path) -> None:
    file = served / "scripted/graph.pbtxt"
    before = file.read_text()
    page = editor_of(tab)
    page.keyboard.press("Control+End")
    page.keyboard.type('node { calculator: "PassThrouhgCalculator" }')
    page.get_by_text("did you mean PassThroughCalculator").wait_for()
    assert page.locator(".cm-lintRange-error").count() == 1
    assert page.get_by_role("button", name="Apply").is_disabled()
    page.get_by_role("button", name="Discard").click()
    page.get_by_text("valid", exact=True).wait_for()
    page.locator(".cm-content").click()
    page.keyboard.press("Control+Home")
    page.keyboard.type("# a note\n")
    page.get_by_role("button", name="Apply").click()
    page.get_by_text("Applied").wait_for()
    assert file.read_text() == "# a note\n" + before
    page.get_by_role("button", name="Undo").click()
    page.wait_for_function("() => document.querySelector('.notice.done')")
    for _ in range(100):
        if file.read_text() == before:
            break
        page.wait_for_timeout(50)
    assert file.read_text() == before


def test_an_answer_that_an_edit_has_overtaken_is_dropped(tab: Tab, served: Path) -> None:
    """The graph as it was before the undo arrives after it, as from a busy server."""
    before = (served / "scripted/graph.pbtxt").read_text()
    page = editor_of(tab)
    page.keyboard.press("Control+Home")
    page.keyboard.type("# overtaken\n")
    held: list[tuple[Any, Any]] = []

    def hold(route: Any) -> None:
        response = route.fetch()
        if route.request.method == "GET" and "# overtaken" in response.json()["text"]:
            held.append((route, response))
        else:
            route.fulfill(response=response)

    page.route("**/console/api/graphs/scripted", hold)
    page.get_by_role("button", name="Apply").click()
    page.locator(".notice.done").wait_for()
    page.get_by_role("button", name="Undo").wait_for()
    page.wait_for_timeout(100)
    page.get_by_role("button", name="Undo").click()
    page.locator(".notice.done").wait_for()
    assert held
    for route, response in held:
        with page.expect_event("requestfinished", lambda request, of=route: request == of.request):
            route.fulfill(response=response)
    page.wait_for_timeout(200)
    assert page.locator(".notice.done").is_visible()
    assert "# overtaken" not in page.locator(".cm-content").inner_text()
    assert (served / "scripted/graph.pbtxt").read_text() == before


def test_a_file_that_cannot_be_loaded_opens_at_its_error(tab: Tab) -> None:
    page = tab.open("graph/broken")
    page.get_by_role("button", name="Open its text").click()
    page.get_by_label("What the check found").get_by_text("ResponseWritterCalculator").wait_for()


# ---- other kinds


def test_a_model_that_does_not_chat_has_a_form(tab: Tab) -> None:
    page = tab.open("chat")
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("option", name=re.compile("^no-chat")).click()
    page.get_by_label("Text to go on with").fill("think hard")
    page.get_by_role("button", name="Send").click()
    page.locator(".playground-text").get_by_text("Forty-two.").wait_for()
    assert serious(page) == []


# ---- requests


PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415478da63f8cfc0000003010100f70341430000000049454e44ae426082"
    )
).decode()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def test_a_request_is_replayed_in_chat_as_it_was(tab: Tab, console: Server) -> None:
    """Tools, their results, images and parameters all come back in the next body."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    }
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Weather?"},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"},
                },
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear"}'},
    ]
    body = {
        "model": "scripted",
        "messages": messages,
        "tools": TOOLS,
        "temperature": 0.5,
        "max_tokens": 40,
        "seed": 7,
    }
    page = tab.open("requests")
    page.get_by_role("button", name="Capture").click()
    page.get_by_text("are captured").wait_for()
    httpx.post(f"{console.url}/v3/chat/completions", json=body, headers={"x-request-id": "to-replay"})
    page.goto(f"{tab.url}/console/#/requests/to-replay")
    page.get_by_role("button", name="Open in chat").click()
    page.get_by_role("button", name="Ask for an answer").wait_for()
    with page.expect_request("**/v3/chat/completions") as sent:
        page.get_by_role("button", name="Ask for an answer").click()
    again = json.loads(sent.value.post_data)
    assert again.pop("stream") is True
    again.pop("stream_options")
    assert again == body
    httpx.post(f"{console.url}/console/api/capture", json={"minutes": 0, "clear": True})


def test_a_captured_request_shows_prompt_and_steps(tab: Tab, console: Server) -> None:
    page = tab.open("requests")
    page.get_by_role("button", name="Capture").click()
    page.get_by_text("are captured").wait_for()
    httpx.post(
        f"{console.url}/v3/chat/completions",
        json={"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "think hard"}]},
        headers={"x-request-id": "seen"},
    )
    page.goto(f"{tab.url}/console/#/requests/seen")
    page.get_by_role("button", name="Text", exact=True).click()
    page.get_by_text("<|user|>think hard").wait_for()
    page.get_by_role("tab", name="Output").click()
    page.locator(".flow .kind-Reasoning").first.wait_for()
    page.locator(".flow .kind-Content").first.wait_for()
    page.get_by_role("tab", name="Replay").click()
    page.get_by_role("button", name="Replay as it was").click()
    page.get_by_text("the same", exact=True).wait_for()
    assert serious(page) == []
    httpx.post(f"{console.url}/console/api/capture", json={"minutes": 0, "clear": True})


def test_the_inspector_steps_through_the_list_and_is_headed_by_the_time(tab: Tab, console: Server) -> None:
    for text in ("hello", "think hard", "hello"):
        ask(console.url, text)
    page = tab.open("requests")
    page.locator("tbody tr.press").nth(1).click()
    inspector = page.get_by_role("dialog")
    inspector.get_by_text("Where the time went").wait_for()
    total = page.locator("tbody tr.press").nth(1).locator("td").last.inner_text()
    assert inspector.get_by_role("heading", level=2).inner_text().startswith(f"{total} at ")
    at = page.url
    inspector.get_by_role("button", name="Next request").click()
    page.wait_for_function("(at) => location.href !== at", arg=at)
    inspector.get_by_text(re.compile(r"^3 of \d+$")).wait_for()
    inspector.get_by_role("button", name="Previous request").click()
    inspector.get_by_text(re.compile(r"^2 of \d+$")).wait_for()
    assert page.url == at
    inspector.get_by_role("button", name="Previous request").click()
    inspector.get_by_text(re.compile(r"^1 of \d+$")).wait_for()
    assert inspector.get_by_role("button", name="Previous request").is_disabled()


def test_a_server_that_is_away_is_not_a_restarting_engine(browser: Any, tmp_path: Path) -> None:
    """An engine takes long to come back, and meanwhile the server ends: its state is not known any more."""
    five_nodes(tmp_path / "scripted")
    server = start_process("--graphs_dir", str(tmp_path), "--file_system_poll_wait_seconds", "0")
    try:
        for tab in open_tab(browser, server.url):
            page = tab.open("chat")
            page.get_by_role("button", name=re.compile("^Model: scripted")).wait_for()
            info = httpx.get(f"{server.url}/console/api/server").json()
            (tmp_path / "scripted/model.script.json").write_text(script(load_seconds=60))
            os.kill(info["models"][0]["engines"][0]["pid"], signal.SIGKILL)
            page.locator("header").get_by_text("engine restarting").wait_for()
            os.kill(info["pid"], signal.SIGKILL)
            page.get_by_text("The server does not answer").wait_for()
            assert page.get_by_text("restarting").count() == 0
            page.locator("header").get_by_text("not known").wait_for()
    finally:
        server.stop()


# ---- server and metrics


def test_a_model_is_unloaded_and_loaded(tab: Tab) -> None:
    page = tab.open("server")
    row = page.get_by_role("row", name=re.compile("^one-node"))
    row.get_by_role("button", name="Unload").click()
    question = page.get_by_role("dialog", name="Unload one-node?")
    assert serious(page) == []
    question.press("Escape")
    question.wait_for(state="detached")
    assert row.get_by_text("ready").is_visible()
    row.get_by_role("button", name="Unload").click()
    question.get_by_role("button", name="Unload").click()
    row.get_by_text("not served").wait_for()
    row.get_by_role("button", name="Load").click()
    row.get_by_text("ready").wait_for()
    failed = page.get_by_role("row", name=re.compile("^broken"))
    assert "ResponseWritterCalculator" in failed.inner_text()


def test_the_log_is_followed(tab: Tab, console: Server) -> None:
    page = tab.open("server/log")
    httpx.get(f"{console.url}/v3/models/none", headers={"x-request-id": "log-me-please"})
    page.get_by_role("log").get_by_text("/v3/models/none").last.wait_for()


def test_metrics_draw_what_happens(tab: Tab, console: Server) -> None:
    page = tab.open("metrics", ready=".chart canvas")
    ask(console.url, "hello")
    page.get_by_role("region", name=re.compile(r"^Tokens per second: generated (?!–|0,)")).wait_for()
    assert page.locator(".chart").count() == 18


def test_a_quantile_is_never_over_the_largest_value(tab: Tab) -> None:
    """One request of 6.4 s in the bucket from 5 to 10 s: the middle of the bucket would be more."""
    page = tab.open("metrics")
    code = """async ([counts, sum, q]) => {
      const { quantile } = await import("/console/js/metrics/prometheus.js");
      const bucket = ([le, value]) => ({ labels: { le }, value });
      const reading = (counts, value) => ({ values: new Map([["s_bucket", counts.map(bucket)], ["s_sum", [{ labels: {}, value }]]]) });
      return quantile(reading(counts.map(([le]) => [le, 0]), 0), reading(counts, sum), "s", q, {});
    }"""
    one, many = [["5", 0], ["10", 1], ["+Inf", 1]], [["5", 50], ["10", 100], ["+Inf", 100]]
    assert page.evaluate(code, [one, 6.4, 0.95]) == pytest.approx(6.4)
    assert page.evaluate(code, [many, 500, 0.95]) == pytest.approx(9.5)
    assert page.evaluate(code, [[["5", 0], ["10", 0], ["+Inf", 0]], 0, 0.95]) is None


def test_metrics_from_before_the_page_was_opened_are_drawn_with_marks(browser: Any, tmp_path: Path) -> None:
    """An engine ends and a graph is reloaded while no page is open."""
    file = five_nodes(tmp_path / "scripted") / "graph.pbtxt"
    server = start_process("--graphs_dir", str(tmp_path), "--file_system_poll_wait_seconds", "0")

    def kept(line: str) -> list[Any]:
        return httpx.get(f"{server.url}/console/api/metrics").json()["series"].get(line, [])

    def wait(line: str, value: float) -> None:
        until(lambda: any(v == value for _, v in kept(line)), lambda: (line, kept(line)))

    try:
        wait('ovserve_engine_restarts_total{name="scripted"}', 0)
        ask(server.url, "think hard")
        info = httpx.get(f"{server.url}/console/api/server").json()
        os.kill(info["models"][0]["engines"][0]["pid"], signal.SIGKILL)
        wait('ovserve_engine_restarts_total{name="scripted"}', 1)
        file.write_text("# changed\n" + file.read_text())
        httpx.post(f"{server.url}/v1/config/reload", timeout=230).raise_for_status()
        wait('ovserve_reloads_total{result="changed"}', 2)
        for tab in open_tab(browser, server.url):
            page = tab.open("metrics", ready=".chart canvas")
            marks = page.get_by_label("Reloads and engines that ended")
            marks.get_by_text("engine of scripted ended").wait_for()
            marks.get_by_text("reload", exact=True).wait_for()
            assert page.evaluate(RED_DASHES) > 0, "the end of the engine is marked in the chart"
            assert serious(page) == []
    finally:
        server.stop()


RED_DASHES = """() => { const canvas = document.querySelector(".chart canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let i = 0; i < data.length; i += 4) found += data[i] > 180 && data[i + 1] < 90 && data[i + 2] < 100 && data[i + 3] > 90;
    return found; }"""
