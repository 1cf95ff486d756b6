// Transcriptions and translations: a recording is dropped, and its text comes, with times if they are asked for.

import { html, useRef, useState } from "../../vendor/ui.js";
import { ApiError, events } from "../api.js";
import { rate, seconds } from "../format.js";
import { CopyButton } from "../parts.js";
import { Card, curlForm, DropFile, Field, given, known, post, Raw, RunForm, useRun, useUrl } from "./parts.js";

export function Transcriptions({ model, endpoint, parameters }) {
  const [file, setFile] = useState(null);
  const [language, setLanguage] = useState("");
  const [prompt, setPrompt] = useState("");
  const [times, setTimes] = useState(false);
  const player = useRef();
  const url = useUrl(file);
  const run = useRun();
  const row = (name) => known(parameters, name);
  const fields = () => given({ model, language, prompt, ...(times ? { response_format: "verbose_json" } : row("stream") ? { stream: "true" } : {}) });
  const work = async (signal, show) => {
    const form = new FormData();
    for (const [name, value] of Object.entries(fields())) form.append(name, value);
    form.append("file", file, file.name);
    const { response, id } = await post(`v3/${endpoint}`, form, signal);
    const type = response.headers.get("content-type") || "";
    if (type.startsWith("text/event-stream")) return streamed(response, id, show);
    const value = type.startsWith("application/json") ? await response.json() : { text: await response.text() };
    return { id, text: value.text, segments: value.segments, language: value.language, duration: value.duration, value };
  };
  const { result, seconds: taken, busy } = run.state;
  const length = result?.duration ?? player.current?.duration;
  const about = [result?.language, length ? `${seconds(length)} of audio` : "", !busy && length && taken ? `${rate(length / taken)} times as fast as it is heard` : ""].filter(Boolean).join(", ");
  const seek = (at) => {
    if (!player.current) return;
    player.current.currentTime = at;
    player.current.play().catch(() => {});
  };
  return html`<${RunForm} run=${run} work=${work} ready=${Boolean(file)} word=${endpoint.endsWith("translations") ? "Translate" : "Transcribe"} code=${() => curlForm(`v3/${endpoint}`, { ...fields(), file: `@${file?.name ?? "audio.wav"}` })}>
      <${DropFile} label="Recording" accept="audio/*,video/*" icon="play" file=${file} onFile=${setFile} />
      ${url && html`<audio controls ref=${player} src=${url}></audio>`}
      <div class="fields">
        ${row("language") && html`<${Field} label="Language"><input value=${language} placeholder="found in the audio" onInput=${(e) => setLanguage(e.target.value)} /><//>`}
        ${row("prompt") && html`<${Field} label="Names and spelling"><input value=${prompt} placeholder="none" onInput=${(e) => setPrompt(e.target.value)} /><//>`}
      </div>
      <label class="check"><input type="checkbox" checked=${times} onChange=${(e) => setTimes(e.target.checked)} />With times of segments</label>
    <//>
    ${result && html`<${Card} title="Text" about=${about} tools=${html`<${CopyButton} text=${result.text} label="Copy the text" />`}>
      ${result.segments?.length
        ? html`<ol class="segments-list">${result.segments.map((s) => html`<li key=${s.id}><button type="button" class="link num" aria-label=${`Play from ${seconds(s.start)}`} onClick=${() => seek(s.start)}>${clock(s.start)}</button><span>${s.text.trim()}</span></li>`)}</ol>`
        : html`<p class="playground-text card-body">${result.text || html`<span class="muted">${busy ? "…" : "No speech was found."}</span>`}</p>`}<//>`}
    ${result?.value && html`<${Raw} value=${result.value} />`}`;
}

async function streamed(response, id, show) {
  const made = { id, text: "", segments: [] };
  for await (const data of events(response)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, event.error);
    if (event.delta) made.text += event.delta;
    if (event.type === "transcript.text.done") Object.assign(made, { text: event.text, duration: event.usage?.seconds });
    show({ ...made });
  }
  return made;
}

const clock = (s) => `${Math.floor(s / 60)}:${(s % 60).toFixed(1).padStart(4, "0")}`;
