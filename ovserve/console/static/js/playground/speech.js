// Speech: a text, heard. The voices are those that the server lists for this model.

import { html, useEffect, useState } from "../../vendor/ui.js";
import { get } from "../api.js";
import { bytes, rate, seconds } from "../format.js";
import { Card, curlJson, Field, given, known, post, RunForm, useRun, useUrl } from "./parts.js";

const EXAMPLE = "Hello. How can I help you today?";

function useVoices(model) {
  const [voices, setVoices] = useState([]);
  useEffect(() => {
    let current = true;
    get("v3/audio/voices").then(
      (list) => current && setVoices((list.voices ?? list.data ?? []).filter((v) => !v.model || v.model === model)),
      () => {}, // a server without the list: the voice is typed
    );
    return () => (current = false);
  }, [model]);
  return voices;
}

export function Speech({ model, endpoint, parameters }) {
  const [text, setText] = useState(EXAMPLE);
  const [voice, setVoice] = useState("");
  const [speed, setSpeed] = useState("");
  const [format, setFormat] = useState("");
  const voices = useVoices(model);
  const formats = known(parameters, "response_format")?.schema?.enum ?? [];
  const run = useRun();
  const body = () => given({ model, input: text, voice, speed: speed === "" ? undefined : Number(speed), response_format: format });
  const work = async (signal) => {
    const { response, id } = await post(`v3/${endpoint}`, body(), signal);
    return { id, blob: await response.blob(), format: format || "wav" };
  };
  const { result, seconds: taken } = run.state;
  return html`<${RunForm} run=${run} work=${work} ready=${Boolean(text.trim())} word="Speak" code=${() => `${curlJson(`v3/${endpoint}`, body())} \\\n  --output speech.${format || "wav"}`}>
      <${Field} label="Text"><textarea rows="4" value=${text} onInput=${(e) => setText(e.target.value)}></textarea><//>
      <div class="fields">
        <${Field} label="Voice">${voices.length
          ? html`<select value=${voice} onChange=${(e) => setVoice(e.target.value)}><option value="">default</option>${voices.map((v) => html`<option key=${v.id} value=${v.id}>${v.name || v.id}${v.language ? ` (${v.language})` : ""}</option>`)}</select>`
          : html`<input value=${voice} placeholder="default" onInput=${(e) => setVoice(e.target.value)} />`}<//>
        ${known(parameters, "speed") && html`<${Field} label="Speed"><input type="number" min="0.25" max="4" step="0.05" placeholder="1" value=${speed} onInput=${(e) => setSpeed(e.target.value)} /><//>`}
        ${formats.length > 0 && html`<${Field} label="Format"><select value=${format} onChange=${(e) => setFormat(e.target.value)}><option value="">default</option>${formats.map((f) => html`<option key=${f}>${f}</option>`)}</select><//>`}
      </div>
    <//>
    ${result && html`<${Heard} result=${result} taken=${taken} />`}`;
}

function Heard({ result, taken }) {
  const url = useUrl(result.blob);
  const [heard, setHeard] = useState({}); // which sound, and its length: metadata may come before an effect runs
  const length = heard.url === url ? heard.length : null;
  const about = [bytes(result.blob.size), length ? `${seconds(length)} of audio` : "", length && taken ? `${rate(length / taken)} times as fast as it is heard` : ""].filter(Boolean).join(", ");
  return html`<${Card} title="Speech" about=${about} tools=${html`<a class="small" href=${url} download=${`speech.${result.format}`}>Download</a>`}>
    <div class="card-body">${url && (result.format === "pcm"
      ? html`<p class="muted">Raw samples cannot be played here; download them, or choose another format.</p>`
      : html`<audio controls src=${url} onLoadedMetadata=${(e) => setHeard({ url, length: Number.isFinite(e.target.duration) ? e.target.duration : null })}></audio>`)}</div><//>`;
}
