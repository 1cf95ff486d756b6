// A session over the Realtime API: what was said on both sides, the microphone, and the sound of the answers.

import { ApiError, ROOT, send } from "../api.js";
import { store } from "../session.js";
import { decoded, encoded, openMicrophone, Player, RATE } from "./audio.js";
import { Track } from "./waveform.js";

const KEY_SECONDS = 60; // that the short-lived key of a connection is valid
const LEAST = RATE / 10; // samples that the server takes as a turn
const BRIEFLY = 300; // ms of a press that is a mistake
const PROMPTLY = 10000; // ms until a connection counts as failed

const EMPTY = { phase: "off", error: null, mic: "off", held: false, speech: false, responding: false, playing: false, entries: [], session: null };

/** `state` is a store. Entries of it: { id, role: "user" | "assistant" | "problem" | "note", text, status, wait, heard }. */
export class Talk {
  constructor(model) {
    this.model = model;
    this.state = store(EMPTY);
    this.track = new Track();
    this.player = new Player(() => this.state.patch({ playing: this.player.playing }));
    this.socket = null;
    this.microphone = null;
    this.config = null; // { handsFree, voice, instructions }
    this.sent = 0; // samples of the turn that is pressed
    this.pressed = 0; // when
    this.asked = 0; // when the turn that waits for its answer ended
    this.cut = new Set(); // items that were interrupted, of which no more is played
    this.numbers = 0;
    this.attempt = null; // to connect, the latest
    this.awaited = false; // a turn that was committed here, to be answered once its item is there
  }

  // ---- what the page does

  /** Open the session, unless it is. Returns whether it is open. */
  async connect(config) {
    this.config = config;
    if (this.state.value.phase !== "off") return this.state.value.phase === "on";
    this.track = new Track();
    this.cut.clear();
    this.state.set({ ...EMPTY, phase: "connecting", mic: this.state.value.mic });
    const mine = (this.attempt = {});
    try {
      // The key of the page stays in a header. What opens the socket is a key that expires, and what is wrong
      // has a status and a sentence here: of a socket that is refused, a browser tells nothing.
      const secret = await send("v3/realtime/client_secrets", { session: { model: this.model }, expires_after: { anchor: "created_at", seconds: KEY_SECONDS } });
      if (this.attempt !== mine) return false; // closed meanwhile
      await this.open(secret.value);
      this.configure(this.config);
      this.state.patch({ phase: "on" });
    } catch (error) {
      if (this.attempt !== mine) return false;
      this.close();
      this.state.patch({ error });
    }
    return this.state.value.phase === "on";
  }

  open(key) {
    const url = new URL(`${ROOT}v3/realtime?model=${encodeURIComponent(this.model)}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, ["realtime", `openai-insecure-api-key.${key}`]);
    this.socket = socket;
    return new Promise((yes, no) => {
      const late = setTimeout(() => no(new ApiError("The server does not open the session. It may be busy.")), PROMPTLY);
      socket.onmessage = ({ data }) => {
        if (this.socket !== socket) return;
        const event = JSON.parse(data);
        this.on(event);
        if (event.type === "session.created") {
          clearTimeout(late);
          yes();
        }
      };
      socket.onclose = ({ code, reason }) => {
        clearTimeout(late);
        no(new ApiError("The session could not be opened: the server refused the connection, or a proxy on the way does not pass WebSockets on."));
        if (this.socket !== socket) return;
        if (this.state.value.phase === "on") this.problem(`The session has ended${reason ? `: ${reason}` : ""} (${code}).`);
        this.close();
      };
    });
  }

  /** Take over settings; in a session, those that have changed. */
  configure(config) {
    const detected = this.config.handsFree;
    this.config = config;
    const { session, mic } = this.state.value;
    if (!session) return;
    if (detected && !config.handsFree && mic === "on") this.commit(); // nothing else would end the turn
    const input = { transcription: {} };
    input.turn_detection = config.handsFree ? { type: "server_vad" } : null;
    const update = { type: session.type, audio: { input } };
    if (session.type === "realtime") {
      update.instructions = config.instructions;
      if (config.voice) update.audio.output = { voice: config.voice };
    }
    this.emit({ type: "session.update", session: update });
  }

  async startMicrophone(config) {
    this.state.patch({ mic: "opening" });
    this.player.open(); // now, while the press counts
    if (!(await this.connect(config))) return;
    try {
      const microphone = await openMicrophone((samples) => this.hear(samples), () => this.stopMicrophone());
      if (this.state.value.phase !== "on") {
        microphone.close(); // the session ended meanwhile
        return;
      }
      this.microphone = microphone;
      this.state.patch({ mic: "on" });
    } catch (error) {
      this.problem(error.message);
      this.state.patch({ mic: "off" });
    }
  }

  async stopMicrophone() {
    const { microphone, socket } = this;
    const { mic, held } = this.state.value;
    if (!microphone || mic === "off") return;
    this.state.patch({ mic: "off", held: false });
    if (this.config.handsFree) await microphone.flush();
    microphone.close();
    if (this.microphone === microphone) this.microphone = null;
    if (this.socket !== socket) return; // the session has ended meanwhile
    if (held) this.emit({ type: "input_audio_buffer.clear" });
    else if (this.state.value.speech) this.commit(); // no silence will follow that ends the turn
  }

  /** Push to talk: from here on the microphone is sent. */
  press() {
    if (this.state.value.held || this.state.value.mic !== "on") return;
    this.interrupt();
    this.sent = 0;
    this.pressed = performance.now();
    this.track.begin(this.track.ms);
    this.state.patch({ held: true });
  }

  async release() {
    if (!this.state.value.held) return;
    const brief = performance.now() - this.pressed < BRIEFLY;
    await this.microphone?.flush();
    if (!this.state.value.held) return;
    this.state.patch({ held: false });
    this.track.end(this.track.ms);
    if (!brief && this.sent >= LEAST) this.commit();
    else {
      this.emit({ type: "input_audio_buffer.clear" });
      this.add({ role: "note", text: "Hold the button down while you speak." });
    }
  }

  commit() {
    this.asked = performance.now();
    this.awaited = this.state.value.session.type === "realtime";
    this.emit({ type: "input_audio_buffer.commit" });
  }

  async say(text, config) {
    this.player.open();
    if (!(await this.connect(config))) return;
    this.interrupt();
    this.asked = performance.now();
    this.emit({ type: "conversation.item.create", item: { type: "message", role: "user", content: [{ type: "input_text", text }] } });
    this.emit({ type: "response.create" });
  }

  /** End the answer, and tell the server how much of it was heard. */
  interrupt() {
    if (this.state.value.responding) this.emit({ type: "response.cancel" });
    this.fallSilent();
  }

  fallSilent() {
    for (const [item, ms] of this.player.stop()) {
      this.cut.add(item);
      this.change(item, { heard: ms });
      this.emit({ type: "conversation.item.truncate", item_id: item, content_index: 0, audio_end_ms: ms });
    }
  }

  close() {
    const { socket } = this;
    this.socket = this.attempt = null;
    this.microphone?.close();
    this.microphone = null;
    this.player.close();
    socket?.close(1000);
    this.track.end(this.track.ms);
    const entries = this.state.value.entries.filter((entry) => entry.status !== "hearing");
    this.state.patch({ ...EMPTY, entries });
  }

  // ---- what goes out and comes in

  emit(event) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  hear(samples) {
    if (!samples.length || !(this.config.handsFree || this.state.value.held)) return;
    this.sent += samples.length;
    this.track.add(samples);
    this.emit({ type: "input_audio_buffer.append", audio: encoded(samples) });
  }

  on(event) {
    ON[event.type]?.(this, event);
  }

  // ---- entries

  add(entry, previous) {
    const { entries } = this.state.value;
    const made = { id: `own-${(this.numbers += 1)}`, text: "", status: "", ...entry };
    const at = previous ? entries.findIndex((other) => other.id === previous) : -1;
    const place = at < 0 ? entries.length : at + 1;
    this.state.patch({ entries: [...entries.slice(0, place), made, ...entries.slice(place)] });
  }

  find(id) {
    return this.state.value.entries.find((entry) => entry.id === id);
  }

  change(id, values) {
    const { entries } = this.state.value;
    this.state.patch({ entries: entries.map((entry) => (entry.id === id ? { ...entry, ...(typeof values === "function" ? values(entry) : values) } : entry)) });
  }

  problem(text) {
    this.add({ role: "problem", text });
  }

  /** More text of an answer; the first of it tells how long the answer took to begin. */
  more(id, text) {
    const wait = this.asked ? performance.now() - this.asked : undefined;
    this.asked = 0;
    this.change(id, (entry) => ({ text: entry.text + text, wait: entry.wait ?? wait }));
  }
}

// What the server did by itself while the event that asks for it was on the way: an answer ended, a turn ended, an answer began.
const NO_TURN = "input_audio_buffer_commit_empty";
const HARMLESS = ["response_cancel_not_active", NO_TURN, "conversation_already_has_active_response"];

const textOf = (item) => item.content.map((part) => part.text ?? part.transcript ?? "").join("");

const ON = {
  "session.created": (talk, { session }) => talk.state.patch({ session }),
  "session.updated": (talk, { session }) => talk.state.patch({ session }),
  "input_audio_buffer.speech_started": (talk, event) => {
    talk.fallSilent(); // the server has cancelled the answer
    talk.track.begin(event.audio_start_ms);
    talk.state.patch({ speech: true });
    talk.add({ id: event.item_id, role: "user", status: "hearing" });
    if (!talk.microphone && talk.state.value.mic === "off") talk.commit(); // this event was on the way when it was stopped
  },
  "input_audio_buffer.speech_stopped": (talk, event) => {
    talk.asked = performance.now();
    talk.track.end(event.audio_end_ms);
    talk.state.patch({ speech: false });
  },
  "input_audio_buffer.committed": (talk, event) => {
    talk.track.end(talk.track.ms); // unless it has ended
    talk.state.patch({ speech: false });
    if (talk.awaited) talk.emit({ type: "response.create" });
    talk.awaited = false;
    if (talk.find(event.item_id)) talk.change(event.item_id, { status: "writing" });
  },
  "input_audio_buffer.cleared": (talk) => {
    talk.track.end(talk.track.ms);
    talk.state.patch({ speech: false, entries: talk.state.value.entries.filter((entry) => entry.status !== "hearing") });
  },
  "conversation.item.added": (talk, { item, previous_item_id }) => {
    if (item.type !== "message" || talk.find(item.id)) return;
    const spoken = item.role === "user" && item.content.some((part) => part.type === "input_audio");
    talk.add({ id: item.id, role: item.role, text: textOf(item), status: spoken ? "writing" : item.role === "assistant" ? "answering" : "" }, previous_item_id);
  },
  "conversation.item.input_audio_transcription.delta": (talk, event) => talk.change(event.item_id, (entry) => ({ text: entry.text + event.delta })),
  "conversation.item.input_audio_transcription.completed": (talk, event) => talk.change(event.item_id, { text: event.transcript.trim(), status: "heard" }),
  "conversation.item.input_audio_transcription.failed": (talk, event) => {
    talk.change(event.item_id, { status: "heard" });
    talk.problem(`The speech could not be written down: ${event.error.message}`);
  },
  "response.created": (talk) => talk.state.patch({ responding: true }),
  "response.output_text.delta": (talk, event) => talk.more(event.item_id, event.delta),
  "response.output_audio_transcript.delta": (talk, event) => talk.more(event.item_id, event.delta),
  "response.output_audio.delta": (talk, event) => {
    if (!talk.cut.has(event.item_id)) talk.player.add(event.item_id, decoded(event.delta));
  },
  "response.done": (talk, { response }) => {
    talk.state.patch({ responding: false });
    const { status, status_details: details } = response;
    for (const item of response.output) talk.change(item.id, { status });
    if (status === "failed") talk.problem(`The answer failed: ${details.error.message}`);
    const why = details?.error?.code === "repetition_detected" ? "it only repeated itself." : "it has as many tokens as a response may have.";
    if (status === "incomplete") talk.add({ role: "note", text: `The answer was cut off: ${why}` });
  },
  error: (talk, { error }) => {
    if (error.code === NO_TURN) talk.awaited = false;
    if (!HARMLESS.includes(error.code)) talk.problem(error.message);
  },
};
