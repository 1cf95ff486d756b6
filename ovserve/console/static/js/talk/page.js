// Talk: press, speak, hear. The graph that listens and answers is drawn beside it, at work.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/ui.js";
import { get } from "../api.js";
import { seconds } from "../format.js";
import { GraphStage, useGraph } from "../graph/page.js";
import { useLive } from "../graph/live.js";
import { Details, Empty, Failure, Icon, IconButton, Pill, Skeleton, StatePill } from "../parts.js";
import { ModelPicker } from "../picker.js";
import { go, place, session, useStore } from "../session.js";
import { Talk } from "./talk.js";
import { spansInWords, Waveform } from "./waveform.js";

const WIDE = matchMedia("(min-width: 1001px)");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** What a graph can do, by the outputs of the node that keeps its session. */
function abilitiesOf(graph) {
  const ports = graph?.nodes.find((n) => n.calculator === "RealtimeSessionCalculator")?.outputs.map((o) => o.port) ?? [];
  return { hears: ports.includes("UTTERANCE"), detects: ports.includes("UTTERANCE") && ports.includes("SOUND"), thinks: ports.includes("PROMPT") };
}

function useVoices(model) {
  const [voices, setVoices] = useState([]);
  useEffect(() => {
    let current = true;
    setVoices([]);
    if (model) get(`v3/audio/voices?model=${encodeURIComponent(model)}`).then((list) => current && setVoices(list.voices), () => {}); // a graph that does not speak has none
    return () => (current = false);
  }, [model]);
  return voices;
}

export default function TalkPage() {
  const { who, models, modelsError } = useStore(session);
  const { rest } = useStore(place);
  const talkers = models?.filter((m) => m.talks) ?? [];
  const name = rest[0] || talkers.find((m) => m.state === "AVAILABLE")?.id || talkers[0]?.id || "";
  const model = talkers.find((m) => m.id === name);
  const [live] = useLive(model ? name : "");
  const [{ found, error }, load] = useGraph(model ? name : "", `${model?.created}${model?.state}${live?.revision ?? ""}`);
  const [drawn, setDrawn] = useState(WIDE.matches);
  return html`<main class="page" id="main" tabindex="-1">
    <header class="page-head chat-like"><h1 class=${talkers.length ? "off-screen" : ""}>Talk</h1>
      ${talkers.length > 0 && html`<${ModelPicker} models=${talkers} value=${name} hotkey label="Model" onPick=${(id) => go("talk", id)} />`}
      ${model && model.state !== "AVAILABLE" && html`<${StatePill} state=${model.state} reason=${model.reason} />`}
      ${live && html`<${Pill} tone=${live.running ? "accent" : "wide-only"}><b class="num">${live.running}</b> running<//>`}
      <span class="grow"></span>
      ${model && html`<button type="button" class="button small" aria-pressed=${drawn} onClick=${() => setDrawn(!drawn)}><${Icon} name="graph" size=${16} />${drawn ? "Hide graph" : "Show graph"}</button>`}
    </header>
    <div class="talk-columns ${drawn ? "with-graph" : ""}">
      ${modelsError && !models ? html`<${Failure} error=${modelsError} />` : null}
      ${models && !model && html`<${Empty} icon="mic" title=${rest[0] ? "This model cannot be talked with" : "No model to talk with is served"}>${rest[0] ? `${rest[0]} is not a realtime graph that is ready.` : "It appears here as soon as the server has loaded a realtime graph, such as graphs/realtime."}<//>`}
      ${model && !found && !error && html`<div class="panel-note grow"><${Skeleton} lines=${8} /></div>`}
      ${model && error && html`<div class="panel-note grow"><${Failure} error=${error} title="The graph cannot be shown" retry=${load} /></div>`}
      ${model && found && html`<${Conversation} key=${name} model=${name} able=${abilitiesOf(found.graph)} />`}
      ${model && drawn && found?.graph && html`<${GraphStage} found=${found} live=${live} who=${who} dots=${!calm.matches} onLines=${() => go("graph", name)} />`}
    </div>
  </main>`;
}

function Conversation({ model, able }) {
  const talk = useMemo(() => new Talk(model), []);
  useEffect(() => () => talk.close(), []);
  const state = useStore(talk.state);
  const voices = useVoices(model);
  const [settings, setSettings] = useState({ handsFree: able.detects, voice: "", instructions: "" });
  const busy = state.responding || state.playing;
  const change = (part) => {
    const next = { ...settings, ...part };
    setSettings(next);
    if (state.phase !== "off") talk.configure(next);
  };
  useEffect(() => {
    const onKey = (event) => event.key === "Escape" && !event.defaultPrevented && talk.interrupt();
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const spoke = state.entries.some((entry) => entry.role === "assistant");
  return html`<section class="talk" aria-label="Conversation">
    <${Transcript} state=${state} able=${able} retry=${() => talk.connect(settings)} />
    <div class="talk-foot">
      ${able.hears && html`<${Microphone} talk=${talk} state=${state} settings=${settings} />`}
      <div class="row talk-settings">
        ${able.detects && html`<div class="segments" role="group" aria-label="Turns">
          <button type="button" aria-pressed=${settings.handsFree} disabled=${state.held} onClick=${() => change({ handsFree: true })}>Hands-free</button>
          <button type="button" aria-pressed=${!settings.handsFree} disabled=${state.held} onClick=${() => change({ handsFree: false })}>Push to talk</button></div>`}
        ${voices.length > 0 && html`<label class="check">Voice <select value=${settings.voice} disabled=${state.phase !== "off" && spoke} title=${state.phase !== "off" && spoke ? "A session keeps the voice that has spoken" : undefined} onChange=${(e) => change({ voice: e.target.value })}>
          <option value="">default</option>${voices.map((v) => html`<option key=${v.id} value=${v.id}>${v.name}${v.language ? ` (${v.language})` : ""}</option>`)}</select></label>`}
        <span class="grow"></span>
        ${state.phase === "on" && html`<${IconButton} icon="close" label="End the session" onClick=${() => talk.close()} />`}
      </div>
      ${able.thinks && html`<${Write} talk=${talk} settings=${settings} busy=${busy} />
        <${Details} summary="Instructions"><textarea rows="3" aria-label="Instructions" placeholder="How the model is to answer" value=${settings.instructions} onInput=${(e) => setSettings({ ...settings, instructions: e.target.value })} onChange=${(e) => change({ instructions: e.target.value })}></textarea><//>`}
    </div>
  </section>`;
}

function Microphone({ talk, state, settings }) {
  const on = state.mic === "on";
  const said = state.mic === "opening" ? "opening the microphone" : !on ? "microphone off" : state.speech || state.held ? "you speak" : state.playing ? "the model speaks" : settings.handsFree ? "listening" : "hold the button while you speak";
  const toggle = () => (state.mic === "off" ? talk.startMicrophone(settings) : talk.stopMicrophone());
  return html`<div class="talk-mic">
    <${Waveform} track=${talk.track} live=${on} />
    <p class="row small muted"><span class="row" role="status"><i class="dot ${state.speech || state.held ? "good" : on && state.playing ? "accent" : ""}"></i>${said}</span><span class="grow"></span><i class="speech-mark"></i><span class="num">${settings.handsFree ? spansInWords(talk.track) : "sent"}</span></p>
    <div class="row">
      <button type="button" class="button ${on ? "" : "primary"} talk-button" disabled=${state.mic === "opening"} onClick=${toggle}><${Icon} name=${on ? "stop" : "mic"} />${on ? "Stop microphone" : state.mic === "opening" ? "Opening" : "Start talking"}</button>
      ${on && !settings.handsFree && html`<${Hold} talk=${talk} held=${state.held} />`}
    </div>
  </div>`;
}

/** A button that is held with the pointer, the space bar or Enter. A click without either, as aids for access make one, turns it on and off. */
function Hold({ talk, held }) {
  const down = () => talk.press();
  const up = () => talk.release();
  const isKey = (event) => event.key === " " || event.key === "Enter";
  return html`<button type="button" class="button primary talk-button hold ${held ? "held" : ""}" aria-pressed=${held}
      onPointerDown=${(e) => { if (e.button) return; e.currentTarget.setPointerCapture(e.pointerId); down(); }} onPointerUp=${up} onPointerCancel=${up} onBlur=${up} onContextMenu=${(e) => e.preventDefault()}
      onKeyDown=${(e) => { if (!isKey(e)) return; e.preventDefault(); if (!e.repeat) down(); }} onKeyUp=${(e) => { if (!isKey(e)) return; e.preventDefault(); up(); }}
      onClick=${(e) => e.detail === 0 && (held ? up() : down())}>
    <${Icon} name="mic" />${held ? "Let go to send" : "Hold to talk"}</button>`;
}

function Write({ talk, settings, busy }) {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (!text.trim()) return;
    setText("");
    talk.say(text.trim(), settings);
  };
  return html`<form class="row" onSubmit=${submit}>
    <input aria-label="Message" placeholder="Write instead of speaking" autocomplete="off" value=${text} onInput=${(e) => setText(e.target.value)} />
    ${busy && html`<button type="button" class="button" aria-label="Stop the answer" title="Stop the answer (Esc)" onClick=${() => talk.interrupt()}><${Icon} name="stop" size=${16} /></button>`}
    <button class="button primary" aria-label="Send" title="Send (Enter)" disabled=${!text.trim()}><${Icon} name="send" size=${16} /></button>
  </form>`;
}

const WORDS = { hearing: "listening", writing: "writing down", answering: "answering" };

function Transcript({ state, able, retry }) {
  const box = useRef();
  const follows = useRef(true); // unless the reader has scrolled up
  useLayoutEffect(() => {
    if (follows.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const onScroll = () => (follows.current = box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 40);
  return html`<div class="talk-lines" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="Transcript">
    ${state.error && html`<${Failure} error=${state.error} title="The session could not be opened" retry=${retry} />`}
    ${!state.entries.length && !state.error && html`<${Empty} icon=${able.hears ? "mic" : "chat"} title=${able.hears ? "Press, speak, hear" : "Write, and read the answer"}>${able.hears ? "What both sides say appears here as it is said. A loudspeaker beside the microphone may interrupt the answer: headphones are best." : "This graph has no node that hears."}<//>`}
    ${state.entries.map((entry) => html`<${Line} key=${entry.id} entry=${entry} />`)}
  </div>`;
}

function Line({ entry }) {
  const { role, text, status, wait, heard } = entry;
  if (role === "problem") return html`<p class="talk-problem" role="alert"><${Icon} name="warning" size=${16} /><span>${text}</span></p>`;
  if (role === "note") return html`<p class="muted small talk-note">${text}</p>`;
  const after = [wait !== undefined && `began after ${seconds(wait / 1000)}`, heard !== undefined ? `interrupted, ${seconds(heard / 1000)} heard` : status === "cancelled" && "interrupted"].filter(Boolean).join(" · ");
  return html`<article class="talk-line ${role}">
    <h2 class="small muted">${role === "user" ? "You" : role === "assistant" ? "Model" : role}</h2>
    <p dir="auto">${text || html`<span class="muted">${WORDS[status] ? html`${WORDS[status]} <span class="waiting" aria-hidden="true"><i></i><i></i><i></i></span>` : role === "user" ? "(nothing was understood)" : "(no text)"}</span>`}</p>
    ${after && html`<p class="muted small num">${after}</p>`}
  </article>`;
}
