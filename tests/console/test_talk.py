"""The page Talk, with a microphone that is a file: voice activity is real, the models are scripted or tiny."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovserve.access.keys import entry_text
from tests.conftest import Server, start_process
from tests.console.conftest import Tab, launched, open_tab, serious, serious_when_dark
from tests.http.test_realtime import SCRIPT, text_graph
from tests.http.test_realtime_audio import speaking_graph
from tests.speech import RECORDING, samples, wav

pytestmark = pytest.mark.long

KEY = "ovs-talker/with+signs=that.a.subprotocol.cannot.hold"
STORY = {"match": "a long tale", "text": "And then they went on. ", "repeat": 40, "step_seconds": 0.005}
PHONE = {"width": 390, "height": 844}


WRITES = """
input_stream: "HTTP_REQUEST_PAYLOAD:event"
output_stream: "HTTP_RESPONSE_PAYLOAD:reply"
node {{
  calculator: "RealtimeSessionCalculator"
  input_side_packet: "STT_NODE_RESOURCES:ears"
  input_stream: "HTTP_REQUEST_PAYLOAD:event"
  input_stream: "ACTIVITY:activity"
  input_stream: "TRANSCRIPT:transcript"
  input_stream_info {{ tag_index: "ACTIVITY" back_edge: true }}
  input_stream_info {{ tag_index: "TRANSCRIPT" back_edge: true }}
  output_stream: "HTTP_RESPONSE_PAYLOAD:reply"
  output_stream: "SOUND:sound"
  output_stream: "UTTERANCE:utterance"
}}
node {{
  calculator: "VoiceActivityCalculator"
  input_side_packet: "VAD_NODE_RESOURCES:vad"
  input_stream: "SOUND:sound"
  output_stream: "ACTIVITY:activity"
}}
node {{
  calculator: "RealtimeTranscribeCalculator"
  input_side_packet: "STT_NODE_RESOURCES:ears"
  input_stream: "UTTERANCE:utterance"
  output_stream: "TRANSCRIPT:transcript"
  node_options: {{ [type.googleapis.com / mediapipe.S2tCalculatorOptions]: {{ models_path: "{ears}" }} }}
}}
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its microphone plays a sentence again and again, with pauses in which answers begin."""
    sentence, pause = samples(RECORDING)[: 16_000 * 2], np.zeros(16_000 * 10, np.int16)
    heard = tmp_path_factory.mktemp("microphone") / "heard.wav"
    heard.write_bytes(wav(np.concatenate([pause[:16_000], sentence, pause[16_000:]])))
    microphone = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={heard}",
        "--autoplay-policy=no-user-gesture-required",
    ]
    with launched(*microphone) as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph that hears and speaks, one of text alone, and one that only writes down."""
    folder = tmp_path_factory.mktemp("talk")
    (folder / "graphs").mkdir()
    speaking_graph(folder).rename(folder / "graphs/voice")
    (folder / "model.script.json").write_text(json.dumps(SCRIPT | {"replies": [STORY, *SCRIPT["replies"]]}))
    (folder / "graphs/writes").mkdir()
    (folder / "graphs/writes/graph.pbtxt").write_text(WRITES.format(ears=folder / "ears"))
    text = text_graph(folder / "graphs/text", "model.script.json")
    (text / "model.script.json").write_text(json.dumps(SCRIPT))
    return folder / "graphs"


@pytest.fixture(scope="module")
def console(served: Path) -> Iterator[Server]:
    server = start_process("--graphs_dir", str(served))
    yield server
    server.stop()


class Frames:
    """The events that went over the page's WebSockets."""

    def __init__(self, page: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        page.on("websocket", self._follow)

    def _follow(self, socket: Any) -> None:
        socket.on("framesent", lambda data: self.sent.append(json.loads(data)))
        socket.on("framereceived", lambda data: self.received.append(json.loads(data)))

    def of(self, events: list[dict[str, Any]], type_: str) -> list[dict[str, Any]]:
        return [event for event in events if event["type"] == type_]

    def audio(self, events: list[dict[str, Any]], field: str) -> bytes:
        return b"".join(base64.b64decode(event[field]) for event in events)


def begun(tab: Tab, model: str) -> tuple[Any, Frames]:
    frames = Frames(tab.page)
    return tab.open(f"talk/{model}", ready=".talk"), frames


def test_one_presses_speaks_hears_and_interrupts(tab: Tab) -> None:
    page, frames = begun(tab, "voice")
    page.get_by_text("Instructions").click()
    page.get_by_label("Instructions").fill("Tell a long tale")
    page.get_by_role("button", name="Start talking").click()
    page.get_by_text("speech since").wait_for()
    page.locator(".talk-line.user").wait_for()
    page.get_by_text("speech from").wait_for()
    page.locator(".talk-line.assistant").get_by_text("And then they went on.").first.wait_for()
    page.get_by_text("the model speaks").wait_for()
    page.get_by_role("button", name="Stop the answer").wait_for()
    # The graph beside it is counted meanwhile.
    page.wait_for_function("() => document.querySelectorAll('.edge.flowing').length > 3")
    page.get_by_role("button", name="VoiceActivity").click()
    page.get_by_text("frames, speech").wait_for()
    # The next sentence interrupts.
    page.get_by_text("interrupted,").first.wait_for()
    page.get_by_role("button", name="Stop microphone").click()
    page.get_by_text("microphone off").wait_for()
    truncate = frames.of(frames.sent, "conversation.item.truncate")[0]
    truncated = frames.of(frames.received, "conversation.item.truncated")[0]
    kinds = [event["type"] for event in frames.received]
    assert "error" not in kinds
    item = truncate["item_id"]
    spoken = frames.audio(
        [e for e in frames.of(frames.received, "response.output_audio.delta") if e["item_id"] == item],
        "delta",
    )
    assert truncated["item_id"] == item
    assert 0 < truncate["audio_end_ms"] == truncated["audio_end_ms"] <= len(spoken) / 48
    # What is sent is what the microphone heard, on the clock of the server.
    sent = frames.audio(frames.of(frames.sent, "input_audio_buffer.append"), "audio")
    loudness = np.abs(np.frombuffer(sent, "<i2").astype(int))
    begin, end = (
        frames.of(frames.received, f"input_audio_buffer.speech_{word}")[0] for word in ("started", "stopped")
    )
    speech = loudness[begin["audio_start_ms"] * 24 : end["audio_end_ms"] * 24]
    assert speech.mean() > 10 * loudness[: max(2400, begin["audio_start_ms"] * 24 - 4800)].mean()


def test_the_waveform_marks_what_was_recognised(tab: Tab) -> None:
    """Bars in speech have the colour of the legend's mark as ground, others have not."""
    page, _ = begun(tab, "voice")
    page.get_by_role("button", name="Start talking").click()
    page.get_by_text("speech since").wait_for()
    page.get_by_text("speech from").wait_for()
    page.get_by_role("button", name="Stop microphone").click()
    page.get_by_text("microphone off").wait_for()
    marked = """() => {
      const canvas = document.querySelector(".waveform");
      const mark = getComputedStyle(document.querySelector(".speech-mark")).backgroundColor.match(/\\d+/g).join();
      const { data, width } = canvas.getContext("2d").getImageData(0, 1, canvas.width, 1);
      let found = 0;
      for (let x = 0; x < width; x += 1) found += data.slice(4 * x, 4 * x + 3).join() === mark;
      return found / width;
    }"""
    share = page.evaluate(marked)
    assert 0.1 < share < 0.95, share


# A busy page: chunks of the microphone wait for it when the button is pressed, more than begin a turn.
PRESS_LATE = """(name) => {
  const until = performance.now() + 500;
  while (performance.now() < until);
  [...document.querySelectorAll("button")].find((button) => button.textContent === name).click();
}"""


@pytest.mark.parametrize("end", ["Stop microphone", "Push to talk"])
def test_a_turn_that_is_open_when_nothing_more_is_sent_ends(tab: Tab, end: str) -> None:
    page, frames = begun(tab, "voice")
    page.get_by_text("Instructions").click()
    page.get_by_label("Instructions").fill("Greet, whatever was understood.")
    page.get_by_role("button", name="Start talking").click()
    page.get_by_text("speech since").wait_for()
    page.evaluate(PRESS_LATE, end)
    page.wait_for_function("() => !document.querySelector('.talk-line.user .waiting')")
    page.wait_for_function("() => !document.querySelector('[aria-label=\"Stop the answer\"]')")
    page.get_by_text("Hello there, friend.").wait_for()
    assert frames.of(frames.sent, "input_audio_buffer.commit")
    statuses = [event["response"]["status"] for event in frames.of(frames.received, "response.done")]
    assert "failed" not in statuses


def test_push_to_talk_with_the_keyboard(tab: Tab) -> None:
    page, frames = begun(tab, "voice")
    page.get_by_text("Instructions").click()  # what is held may be the pause, in which nothing is understood
    page.get_by_label("Instructions").fill("Greet, whatever was understood.")
    page.get_by_role("button", name="Push to talk").click()
    page.get_by_role("button", name="Start talking").click()
    hold = page.get_by_role("button", name="Hold to talk")
    hold.focus()
    page.keyboard.press("Space")
    page.get_by_text("Hold the button down while you speak.").wait_for()
    assert not frames.of(frames.sent, "input_audio_buffer.commit")
    page.keyboard.down("Space")
    page.get_by_text("you speak", exact=True).wait_for()
    for _ in range(600):  # a busy machine may record nothing for a second
        if len(frames.of(frames.sent, "input_audio_buffer.append")) >= 12:
            break
        page.wait_for_timeout(100)
    page.keyboard.up("Space")
    page.get_by_text("Hello there, friend.").wait_for()
    (commit,) = frames.of(frames.sent, "input_audio_buffer.commit")
    after = frames.sent[frames.sent.index(commit) + 1 :]
    assert [event["type"] for event in after] == ["response.create"], "nothing is sent after the button"
    assert (
        frames.of(frames.received, "session.updated")[-1]["session"]["audio"]["input"]["turn_detection"]
        is None
    )
    assert not frames.of(frames.received, "input_audio_buffer.speech_started")
    assert not frames.of(frames.received, "error")


def test_one_writes_to_a_graph_of_text_and_stops_its_answer(tab: Tab) -> None:
    page, frames = begun(tab, "text")
    assert page.get_by_role("button", name="Start talking").count() == 0
    page.get_by_label("Message").fill("Hi")
    page.keyboard.press("Enter")
    page.get_by_text("Hello there, friend.").wait_for()
    page.get_by_label("Message").fill("Tell me a long story")
    page.keyboard.press("Enter")
    page.get_by_text("And then they went on.").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("interrupted").wait_for()
    page.get_by_label("Message").fill("Are you a pirate?")
    page.keyboard.press("Enter")
    page.locator(".talk-line.assistant").nth(2).wait_for()
    assert not frames.of(frames.received, "error")
    page.get_by_role("button", name="End the session").click()
    page.get_by_text("running").filter(has_text="0").wait_for(state="attached")


def test_a_graph_that_only_writes_down_answers_nothing(tab: Tab) -> None:
    page, frames = begun(tab, "writes")
    assert page.get_by_label("Message").count() == 0
    page.get_by_role("button", name="Start talking").click()
    page.get_by_text("speech from").wait_for()
    page.get_by_role("button", name="Stop microphone").click()
    page.wait_for_function("() => !document.querySelector('.talk-line .waiting')")
    assert page.locator(".talk-line.user").count() > 0
    for _ in range(600):  # text comes while one speaks, and the whole of it later
        if frames.of(frames.received, "conversation.item.input_audio_transcription.completed"):
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail("the transcript was never completed")
    assert not frames.of(frames.received, "error")


def test_a_voice_that_is_picked_speaks(tab: Tab) -> None:
    page, frames = begun(tab, "voice")
    page.get_by_role("combobox", name="Voice").select_option("bm_two")
    page.get_by_label("Message").fill("Hi")
    page.keyboard.press("Enter")
    page.get_by_text("Hello there, friend.").wait_for()
    page.wait_for_function("() => !document.querySelector('[aria-label=\"Stop the answer\"]')")
    assert frames.of(frames.received, "response.done")[0]["response"]["audio"]["output"]["voice"] == "bm_two"
    assert page.get_by_role("combobox", name="Voice").is_disabled(), (
        "a session keeps the voice that has spoken"
    )


def test_the_page_is_accessible_and_fits(browser: Any, console: Server) -> None:
    for size in ({"width": 1280, "height": 860}, PHONE):
        for tab in open_tab(browser, console.url, color_scheme="light", viewport=size):
            page, _ = begun(tab, "voice")
            assert serious(page) == []
            assert serious_when_dark(page) == []
            page.get_by_role("button", name="Push to talk").click()
            page.get_by_label("Message").fill("Hi")
            page.keyboard.press("Enter")
            page.get_by_text("Hello there, friend.").wait_for()
            page.get_by_role("button", name="Start talking").click()
            page.get_by_role("button", name="Hold to talk").wait_for()
            page.wait_for_timeout(300)
            assert serious(page) == []
            assert serious_when_dark(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
            outside = "[...document.querySelectorAll('.talk-foot *')].filter((e) => e.getBoundingClientRect().right > innerWidth).length"
            assert page.evaluate(outside) == 0


def test_what_goes_wrong_is_told(tab: Tab, console: Server) -> None:
    page, _ = begun(tab, "voice")
    page.route("**/v3/realtime/client_secrets", lambda route: route.abort())
    page.get_by_role("button", name="Start talking").click()
    page.get_by_role("alert").get_by_text("The server does not answer").wait_for()
    page.unroute("**/v3/realtime/client_secrets")
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("button", name="End the session").wait_for()
    page.get_by_role("button", name="End the session").click()
    page.evaluate(
        "void (navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('no', 'NotAllowedError') })"
    )
    page.get_by_role("button", name="Start talking").click()
    page.get_by_role("alert").get_by_text("does not give the microphone to this page").wait_for()
    assert page.get_by_role("button", name="Start talking").is_enabled()
    page = tab.open("talk/nothing")
    page.get_by_text("nothing is not a realtime graph").wait_for()


def test_a_key_stays_in_headers(browser: Any, served: Path, tmp_path: Path) -> None:
    """Keys may hold what a subprotocol cannot, so a socket is opened by a key that expires."""
    (tmp_path / "keys.toml").write_text(entry_text("talker", KEY))
    server = start_process("--graphs_dir", str(served), "--api_keys_file", str(tmp_path / "keys.toml"))
    try:
        urls: list[str] = []
        for tab in open_tab(browser, server.url):
            tab.page.on("websocket", lambda socket: urls.append(socket.url))
            page = tab.open("talk/text")
            page.get_by_label("API key", exact=True).fill(KEY)
            page.get_by_role("button", name="Continue").click()
            page.get_by_label("Message").fill("Hi")
            page.keyboard.press("Enter")
            page.get_by_text("Hello there, friend.").wait_for()
            assert urls == [f"{server.url.replace('http', 'ws')}/v3/realtime?model=text"]
    finally:
        server.stop()


def test_pages_are_shown_where_they_make_sense(tab: Tab) -> None:
    page = tab.open("chat")
    page.get_by_role("link", name="Open Talk").click()
    page.locator(".talk").wait_for()
    page.get_by_role("link", name="Chat", exact=True).click()
    page.get_by_role("link", name="Talk", exact=True).click()
    page.locator(".talk").wait_for()


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 48_000])
def test_sound_of_any_rate_is_sent_at_24_khz(tab: Tab, rate: int) -> None:
    """Browsers may not convert the microphone's own rate; then the worklet does. A tone keeps its pitch."""
    page = tab.open("talk/text", ready=".talk")
    tone = np.array(page.evaluate(TONE, rate), float)
    assert tone.size == 48_000
    spectrum = np.abs(np.fft.rfft(tone * np.hanning(tone.size)))
    assert spectrum.argmax() / 2 == pytest.approx(440, abs=1)
    assert np.sqrt((tone**2).mean()) / 32_768 == pytest.approx(0.707, abs=0.02)


TONE = """async (rate) => {
  const context = new OfflineAudioContext(1, rate * 2, rate);
  await context.audioWorklet.addModule("js/talk/microphone.js");
  const tone = new OscillatorNode(context, { frequency: 440 });
  const microphone = new AudioWorkletNode(context, "microphone");
  const heard = [];
  const all = new Promise((yes) => {
    microphone.port.onmessage = ({ data }) => heard.push(...data) === 48000 && yes();
  });
  tone.connect(microphone).connect(context.destination);
  tone.start();
  await context.startRendering();
  await all;
  return heard;
}"""
