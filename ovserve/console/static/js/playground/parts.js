// What all forms of the playground share: sending with its time and a stop, fields, a place to drop files.

import { html, useEffect, useRef, useState } from "../../vendor/ui.js";
import { call, ROOT } from "../api.js";
import { bytes, count, pretty, seconds } from "../format.js";
import { CopyButton, Failure, Icon } from "../parts.js";
import { session } from "../session.js";

/** { state, run, stop }: `run(work)` awaits `work(signal, show)`; `show(result)` draws one before the end. */
export function useRun() {
  const [state, setState] = useState({});
  const aborter = useRef(null);
  const stop = () => aborter.current?.abort();
  useEffect(() => stop, []);
  const run = async (work) => {
    stop();
    const mine = new AbortController();
    aborter.current = mine;
    const began = performance.now();
    const taken = () => (performance.now() - began) / 1000;
    const put = (value) => aborter.current === mine && setState(value);
    put({ busy: true });
    try {
      const result = await work(mine.signal, (part) => put({ busy: true, result: part, seconds: taken() }));
      put({ result, seconds: taken() });
    } catch (error) {
      if (error.name === "AbortError") setState((before) => (aborter.current === mine ? { ...before, busy: false, stopped: true } : before));
      else put({ error });
    }
  };
  return { state, run, stop };
}

export async function post(path, body, signal, headers) {
  const response = await call(path, { method: "POST", body, signal, headers });
  return { response, id: response.headers.get("x-request-id") || "" };
}

/** A form with its button; Ctrl+Enter sends from anywhere in it. */
export function RunForm({ run, work, ready = true, word = "Send", code, children }) {
  const { state, stop } = run;
  const box = useRef();
  const submit = (event) => {
    event.preventDefault();
    if (ready && !state.busy) run.run(work);
  };
  const onKey = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit(event);
  return html`<form class="playground-form" novalidate ref=${box} onSubmit=${submit} onKeyDown=${onKey}>
    ${children}
    <div class="row wrap">
      ${state.busy
        ? html`<button type="button" class="button" onClick=${stop}><${Icon} name="stop" size=${16} />Stop</button>`
        : html`<button class="button primary" disabled=${!ready} title="Ctrl+Enter">${word}</button>`}
      ${state.busy && html`<span class="waiting" aria-label="Working"><i></i><i></i><i></i></span>`}
      ${state.stopped && html`<span class="muted small">stopped</span>`}
      ${!state.busy && state.seconds !== undefined && html`<span class="muted small"><b class="num">${seconds(state.seconds)}</b>${state.result?.id ? html` · <a href=${`#/requests/${state.result.id}`}>request</a>` : ""}</span>`}
      <span class="grow"></span>
      ${code && html`<span class="muted small">curl</span><${CopyButton} text=${code} label="Copy as curl" />`}
    </div>
  </form>
  ${state.error && html`<${Failure} error=${state.error} title="No answer" />`}`;
}

export const Field = ({ label, hint, children }) =>
  html`<label class="field"><span class="field-name">${label}</span>${children}${hint && html`<span class="muted small">${hint}</span>`}</label>`;

export const Card = ({ title, about, tools, children }) =>
  html`<section class="card"><header class="card-head"><h2>${title}</h2>${about && html`<span class="muted small">${about}</span>`}${tools}</header>${children}</section>`;

export const Raw = ({ value }) => {
  const text = typeof value === "string" ? value : pretty(value);
  return html`<details class="fold"><summary><${Icon} name="right" size=${16} /><span>The answer as JSON</span></summary>
    <div class="code"><div class="code-head"><span>${count(text.length)} characters${text.length > 20000 ? ", of which the first 20,000 are shown" : ""}</span><${CopyButton} text=${text} /></div><pre tabindex="0" class="wrapped"><code>${text.slice(0, 20000)}</code></pre></div></details>`;
};

/** The schema of a parameter, as /v3/capabilities has it. */
export const known = (parameters, name) => parameters.find((row) => row.name === name && !/rejected|refused|ignored/.test(row.status));

/** An object without what is not set. */
export const given = (values) => Object.fromEntries(Object.entries(values).filter(([, v]) => v !== "" && v !== null && v !== undefined && !Number.isNaN(v)));

const quoted = (text) => text.replaceAll("'", "'\\''");
const key = () => (session.value.who?.keys_required ? "  -H 'Authorization: Bearer '\"$API_KEY\" \\\n" : "");

export const curlJson = (path, body) =>
  `curl ${location.origin}${ROOT}${path} \\\n  -H 'Content-Type: application/json' \\\n${key()}  -d '${quoted(pretty(body))}'`;

export const curlForm = (path, fields) =>
  `curl ${location.origin}${ROOT}${path} \\\n${key()}${Object.entries(fields).map(([name, value]) => `  -F '${name}=${quoted(String(value))}'`).join(" \\\n")}`;

/** A place for one file: drop it, choose it, or press Enter on it. */
export function DropFile({ label, accept, file, onFile, icon = "attach" }) {
  const [over, setOver] = useState(false);
  const chooser = useRef();
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files[0]) onFile(event.dataTransfer.files[0]);
  };
  return html`<div class="field">
    <button type="button" class="drop ${over ? "over" : ""}" onClick=${() => chooser.current.click()} onDragOver=${(e) => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${onDrop}>
      <${Icon} name=${icon} size=${24} />
      ${file ? html`<span><b>${file.name}</b> <span class="muted num">${bytes(file.size)}</span></span>` : html`<span>${label}<br /><span class="muted small">Drop a file here, or press to choose one</span></span>`}
    </button>
    <input ref=${chooser} type="file" hidden accept=${accept} aria-label=${label} onChange=${(e) => { if (e.target.files[0]) onFile(e.target.files[0]); e.target.value = ""; }} />
  </div>`;
}

/** An address for a blob, given back when it changes or goes. */
export function useUrl(blob) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    if (!blob) {
      setUrl("");
      return undefined;
    }
    const made = URL.createObjectURL(blob);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return url;
}
