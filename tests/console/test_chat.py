"""The chat in a real browser, over a scripted model: streaming, stop, reasoning, tools, hostile output, keys."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, Server, script_graph, start_process
from tests.console.conftest import Tab, open_tab, serious
from tests.console.stage import script

pytestmark = pytest.mark.long


def say(page: Any, text: str) -> Any:
    """Send a message and return the place of its answer."""
    before = page.locator("article.assistant").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    return page.locator("article.assistant").nth(before)


def finished(answer: Any) -> None:
    answer.locator("[aria-busy=false]").wait_for()
    answer.get_by_label("Ask again").wait_for()


def counted(server: Server, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith(name) and 'name="scripted"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def pick(page: Any, model: str) -> None:
    page.get_by_role("button", name=re.compile("^Model: ")).click()
    page.get_by_role("option", name=re.compile(f"^{model}")).click()


def test_an_answer_streams_with_its_speed(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    answer = say(page, "hello")
    finished(answer)
    text = answer.inner_text()
    assert "Hello there. How can I help?" in text
    assert re.search(r"\d+ tokens", text)
    assert re.search(r"prompt, 3 cached", text)
    assert "finished" in text
    answer = say(page, "think hard")  # six tokens may all arrive at once, which is not a speed
    finished(answer)
    assert re.search(r"[\d.]+ tokens/s", answer.inner_text())


def test_a_long_prompt_shows_how_much_of_it_is_read_and_is_cancelled_in_the_list(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    answer = say(page, "endless prompt " * 600)
    answer.get_by_text(re.compile(r"^\d+ % of 1,2\d\d prompt tokens$")).wait_for()
    first = answer.get_by_role("progressbar").get_attribute("aria-valuenow")
    page.wait_for_function(
        "(first) => document.querySelector('[role=progressbar]').ariaValueNow > Number(first)", arg=first
    )
    assert serious(page) == []
    page.get_by_role("link", name="Requests").click()
    row = page.get_by_role("region", name="Requests in progress").get_by_role("row").nth(1)
    row.get_by_text(re.compile(r"^reading \d+ %$")).wait_for()
    assert serious(page) == []
    row.get_by_role("button", name="Cancel").press("Enter")
    page.get_by_role("region", name="Requests", exact=True).get_by_text("499").first.wait_for()
    page.get_by_role("link", name="Chat").click()
    answer.get_by_text("the request was cancelled in the console").wait_for()


def test_stop_ends_the_request_in_the_engine(tab: Tab, console: Server) -> None:
    page = tab.open()
    pick(page, "scripted")
    before = counted(console, "ovserve_requests_cancelled_total")
    answer = say(page, "endless")
    answer.locator(".md").wait_for()
    page.keyboard.press("Escape")
    finished(answer)
    deadline = time.monotonic() + 230
    while counted(console, "ovserve_requests_cancelled_total") == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert counted(console, "ovserve_requests_cancelled_total") == before + 1
    assert counted(console, "ovserve_requests_running") == 0
    assert "stopped" in answer.inner_text()


def test_reasoning_is_folded_when_it_is_done(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    answer = say(page, "think hard")
    answer.locator(".reasoning-text").wait_for()
    finished(answer)
    assert answer.locator(".reasoning-text").count() == 0
    fold = answer.get_by_role("button", name=re.compile("Reasoned for"))
    assert "Forty-two." in answer.locator(".md").inner_text()
    fold.click()
    assert "keeper climbed" in answer.locator(".reasoning-text").inner_text()


def test_a_tool_is_called_and_answered(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    if not page.get_by_role("tab", name="Tools").count():
        page.get_by_label("Settings of the chat").click()
    page.get_by_role("tab", name="Tools").click()
    page.get_by_role("button", name="Insert an example").first.click()
    answer = say(page, "the weather in Oslo?")
    finished(answer)
    assert "get_weather" in answer.locator(".call").inner_text()
    assert json.loads(answer.locator(".call pre").inner_text()) == {"city": "Oslo"}
    page.get_by_label("Result of get_weather").fill('{"sky": "clear"}')
    page.get_by_role("button", name="Send the result").click()
    second = page.locator("article.assistant").nth(1)
    finished(second)
    assert "It is sunny in Oslo" in second.inner_text()


def test_hostile_markdown_does_nothing(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    answer = say(page, "hostile")
    finished(answer)
    assert "bold" in answer.inner_text()
    assert page.evaluate("window.hacked") is None
    inside = answer.locator(".md")
    assert inside.locator("img, script, b, [onclick], [onerror]").count() == 0
    assert inside.locator("a[href^='javascript']").count() == 0
    assert "<script>" in inside.inner_text(), "tags are shown as text"


def test_an_edit_is_a_branch_and_the_old_one_stays(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "hello"))
    page.get_by_label("Edit and ask again").click()
    page.get_by_label("Edit the message").fill("think hard")
    page.locator(".editing").get_by_role("button", name="Ask again").click()
    page.get_by_text("Forty-two.").wait_for()
    assert page.get_by_text("2/2").count() == 1
    page.get_by_label("Earlier version").first.click()
    page.get_by_text("Hello there.").wait_for()


def test_an_error_is_shown_with_what_the_server_said(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    answer = say(page, "fail")
    answer.get_by_role("alert").wait_for()
    assert "(503)" in answer.inner_text()


def test_five_thousand_tokens_keep_frames_short(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    page.evaluate(
        """() => { window.longest = 0; new PerformanceObserver((list) => {
            for (const e of list.getEntries()) window.longest = Math.max(window.longest, e.duration); }).observe({ type: "longtask" }); }"""
    )
    answer = say(page, "five thousand")
    finished(answer)
    assert answer.locator(".md-block").count() > 300
    # A frame may take 50 ms on a quiet machine; this one is shared, and a frame that renders all takes a second.
    assert page.evaluate("window.longest") < 250


@pytest.mark.parametrize("text", ["two megabytes", "deep quotes"])
def test_an_answer_that_markdown_cannot_bear_is_shown_as_it_is(tab: Tab, text: str) -> None:
    """Both froze the page for ten seconds and more when all of them was read as Markdown."""
    page = tab.open()
    pick(page, "scripted")
    page.evaluate(
        """() => { window.longest = 0; new PerformanceObserver((list) => {
            for (const e of list.getEntries()) window.longest = Math.max(window.longest, e.duration); }).observe({ type: "longtask" }); }"""
    )
    answer = say(page, text)
    finished(answer)
    length = page.evaluate("document.querySelector('.answer .md').textContent.length")
    assert length == {"two megabytes": 13000 * 161, "deep quotes": 2 * 15000 + 3}[text]
    assert page.evaluate("window.longest") < 2000


def test_a_loop_is_not_called_the_token_limit(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    choice = {"index": 0, "delta": {"content": "Ha! "}, "finish_reason": "length"}
    chunk = {"id": "c", "choices": [choice | {"stop_reason": "repetition_detected"}]}
    page.route(
        "**/v3/chat/completions",
        lambda route: route.fulfill(
            content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        ),
    )
    answer = say(page, "hello")
    finished(answer)
    assert "it only repeated itself" in answer.inner_text()
    assert "token limit" not in answer.inner_text()


def test_a_window_made_narrow_has_room_for_the_chat(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    panel = page.get_by_label("Settings of the chat").and_(page.locator("aside"))
    panel.wait_for()
    page.set_viewport_size({"width": 360, "height": 740})
    panel.wait_for(state="detached")
    assert page.get_by_label("Message", exact=True).bounding_box()["width"] > 200
    page.set_viewport_size({"width": 1280, "height": 860})
    panel.wait_for()


def test_each_paragraph_runs_in_the_direction_of_its_script(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "שלום עולם\nhello"))
    rows = page.evaluate(
        """() => { const text = document.querySelector(".bubble").firstChild; const at = (i) => { const r = document.createRange();
            r.setStart(text, i); r.setEnd(text, i + 1); return r.getBoundingClientRect(); };
            return [at(0).left > at(8).left, at(10).left < at(14).left, at(0).right - at(14).right]; }"""
    )
    assert rows[:2] == [True, True]


def test_a_new_chat_knows_nothing_of_the_one_before(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "hello"))
    for button in (
        page.locator("header").get_by_label("New chat"),
        page.get_by_role("button", name="New chat").first,
    ):
        button.click()
        page.locator(".start").wait_for()
        with page.expect_request("**/v3/chat/completions") as sent:
            finished(say(page, "hello again"))
        assert len(json.loads(sent.value.post_data)["messages"]) == 1
    assert page.locator(".chats li").count() == 3


def test_a_chat_is_renamed_by_keyboard(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "hello"))
    for key, name in (("Escape", "hello"), ("Enter", "another")):
        page.locator(".chat-name").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_label("Name of the chat").fill("another")
        page.keyboard.press(key)
        page.locator(".chat-name", has_text=name).wait_for()


def test_one_goes_on_writing_after_a_model_is_picked_by_keyboard(tab: Tab) -> None:
    page = tab.open()
    page.get_by_role("button", name=re.compile("^Model: (?!none)")).wait_for()
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type("hel")
    page.keyboard.press("Control+k")
    page.keyboard.type("scripted")
    page.get_by_role("option", name=re.compile("^scripted")).wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Model: scripted").wait_for()
    page.keyboard.type("lo")
    page.keyboard.press("Enter")
    page.locator("article.user", has_text="hello").wait_for()
    finished(page.locator("article.assistant"))


def test_a_file_that_holds_no_chat_is_not_imported(tab: Tab, tmp_path: Path) -> None:
    """One that was imported would end the page, now and whenever it is opened."""
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "hello"))
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    exported = tmp_path / "chats.json"
    download.value.save_as(exported)
    chat = json.loads(exported.read_text())["chats"][0]
    node = next(one for one in chat["nodes"].values() if one.get("role") == "assistant")
    root = chat["nodes"]["root"]
    broken: list[tuple[Any, str]] = [
        ({"nodes": {"root": {}}}, "are not in order"),
        ({**chat, "nodes": {"root": {**root, "children": ["root"]}}}, "is missing"),
        (
            {**chat, "nodes": {**chat["nodes"], node["id"]: {**node, "answers": [{"text": "hi"}]}}},
            "is incomplete",
        ),
        ({**chat, "params": 7}, "another type"),
        (None, "no messages"),
    ]
    file = tmp_path / "broken.json"
    chooser = page.locator(".rail input[type=file]")
    for value, words in broken:
        file.write_text(json.dumps({"chats": [chat, value]}))
        chooser.set_input_files(file)
        page.get_by_role("alert").get_by_text(
            re.compile(rf"broken.json holds no chats: of chat 2, .*{words}")
        ).wait_for()
        page.get_by_label("New chat").last.click()
    assert page.locator(".chats li").count() == 1
    chooser.set_input_files(exported)
    page.get_by_text("Hello there.").wait_for()
    page.reload()
    page.locator(".chats li").nth(1).wait_for()


def test_chats_are_kept_by_the_browser(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "hello, remember me"))
    page.reload()
    page.get_by_role("button", name=re.compile("hello, remember me")).first.click()
    page.get_by_text("Hello there.").wait_for()


def test_the_prompt_is_shown_before_it_is_sent(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "hello"))
    page.get_by_role("tab", name="Prompt").click()
    page.get_by_role("button", name="Text", exact=True).click()
    page.get_by_text("<|user|>hello").wait_for()


def test_what_capabilities_refuse_cannot_be_set(tab: Tab) -> None:
    """The scripted model takes no images, and the graph drafts nothing: the panel says so."""
    page = tab.open()
    pick(page, "scripted")
    rows = httpx.get(f"{tab.url}/v3/capabilities?model=scripted").json()["data"][0]["endpoints"]
    chat = next(e for e in rows if e["endpoint"] == "chat/completions")["parameters"]
    row = next(r for r in chat if r["name"] == "temperature")
    assert page.get_by_label("temperature", exact=True).get_attribute("placeholder") == str(
        row["default"]
    ).removesuffix(".0")
    page.get_by_label("temperature", exact=True).fill("7")
    page.get_by_text(f"expected {row['schema']['minimum']} to {row['schema']['maximum']}").wait_for()


def test_a_reload_keeps_what_had_come_of_an_answer(tab: Tab, console: Server) -> None:
    page = tab.open()
    pick(page, "scripted")
    answer = say(page, "endless")
    answer.get_by_text("keeper climbed").first.wait_for()
    page.reload()
    answer = page.locator("article.assistant").first
    answer.get_by_text("because its page was closed or reloaded").wait_for()
    assert "keeper climbed" in answer.inner_text()
    assert serious(page) == []
    with page.expect_request("**/v3/chat/completions") as sent:
        answer.get_by_label("Continue this answer").click()
    assert json.loads(sent.value.post_data)["continue_final_message"] is True
    page.keyboard.press("Escape")


def test_two_tabs_show_the_same_chats(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    finished(say(page, "hello from the first"))
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_text("Hello there.").wait_for()
    finished(say(other, "hello from the second"))
    page.locator("article.user", has_text="hello from the second").wait_for()
    finished(say(page, "once more"))
    other.locator("article.user", has_text="once more").wait_for()
    assert other.locator("article.user").count() == 3
    page.locator(".chats li").first.hover()
    page.get_by_role("button", name=re.compile("^Delete hello")).click()
    other.locator(".start").wait_for()
    other.close()


def test_a_long_text_that_is_pasted_is_attached(tab: Tab) -> None:
    """Five megabytes in a text box take the browser seconds for each key."""
    page = tab.open()
    pick(page, "scripted")
    page.evaluate(
        """() => { const data = new DataTransfer(); data.setData("text/plain", "think hard ".repeat(500000));
            document.querySelector(".composer textarea").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })); }"""
    )
    page.get_by_text("Pasted text · 5.5 MB").wait_for()
    answer = say(page, "of what?")
    answer.get_by_text("maximum context length").wait_for()
    page.locator("article.user").get_by_text("Pasted text, 5,500,000 characters").wait_for()
    assert page.locator("article.user").inner_text().count("think hard") < 300


def test_the_prompt_of_a_message_that_is_being_written_is_shown(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    page.get_by_role("tab", name="Prompt").click()
    page.get_by_text("The prompt is shown here while you write").wait_for()
    page.get_by_label("Message", exact=True).fill("not sent yet")
    page.get_by_role("button", name="Text", exact=True).click()
    page.get_by_text("<|user|>not sent yet").wait_for()
    page.get_by_role("tab", name="Code").click()
    page.get_by_text("not sent yet").first.wait_for()
    assert page.locator("article").count() == 0


def test_only_models_that_chat_are_compared(tab: Tab) -> None:
    page = tab.open()
    pick(page, "scripted")
    page.get_by_label("Compare with a second model").click()
    page.get_by_role("button", name=re.compile("^Second model: ")).click()
    offered = [text.split("\n")[0] for text in page.get_by_role("option").all_inner_texts()]
    assert {"No second model", "one-node", "fifteen-nodes"} <= set(offered)
    assert not {"scripted", "no-chat", "broken"} & set(offered), offered


@pytest.fixture(scope="module")
def with_mcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    wrong = '<tool_call>\n{"name": "wrong", "arguments": {}}\n</tool_call>'
    replies = [
        {"match": "<|tool|>5", "text": "<think>\nIt is done.\n</think>\nThe sum is five."},
        {"match": "<|tool|>", "text": "That did not work."},
        {"match": "please fail", "text": wrong},
        {"match": "tools:", "text": call},
        {"match": "", "text": "No tools here."},
    ]
    graph = script_graph(
        tmp_path_factory.mktemp("mcp") / "adder", script(replies=replies), 'tool_parser: "hermes3"'
    )
    server = ROOT / "tests/mcp_servers/server.py"
    with (graph / "graph.pbtxt").open("a") as file:
        file.write(
            'node { name: "Mcp" calculator: "McpServersCalculator" node_options: {\n'
            "[type.googleapis.com / google.protobuf.Struct]: { connect_seconds: 100 servers: { "
            f'label: "sums" command: ["{sys.executable}", "{server}"] }} }} }} }}\n'
        )
    running = start_process("--graphs_dir", str(graph.parent))
    yield running
    running.stop()


def test_tools_of_mcp_servers_run_in_the_server(browser: Any, with_mcp: Server) -> None:
    for tab in open_tab(browser, with_mcp.url):
        page = tab.open()
        answer = say(page, "what is 2 and 3?")
        finished(answer)
        assert "No tools here." in answer.inner_text()
        page.get_by_role("tab", name="Tools").click()
        page.get_by_label("sums").check()
        assert serious(page) == []
        answer = say(page, "and now?")
        finished(answer)
        text = answer.inner_text()
        assert "The sum is five." in text
        assert "of the MCP server sums" in text
        answer.get_by_text("Result", exact=True).click()
        assert answer.locator("pre", has_text=re.compile(r"^5$")).count() == 1
        assert re.search(r"\d+ tokens", text)
        assert "finished" in text
        answer = say(page, "please fail")
        finished(answer)
        assert "That did not work." in answer.inner_text()
        page.get_by_role("tab", name="Code").click()
        code = page.locator(".code-view").inner_text()
        assert f"{with_mcp.url}/v3/responses" in code
        assert '"server_label": "sums"' in code
        page.reload()  # the chat is stored with its calls
        page.get_by_text("The sum is five.").wait_for()
        assert page.get_by_text("of the MCP server sums").count() == 2
