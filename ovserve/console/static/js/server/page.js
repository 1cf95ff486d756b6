// Server: the models with their engines, the log, the options in force and the keys. For administrators.

import { html, useState } from "../../vendor/ui.js";
import { get, send } from "../api.js";
import { bytes, count, seconds, visible } from "../format.js";
import { Confirm, Empty, Failure, Icon, Pill, Skeleton, Tabs } from "../parts.js";
import { go, loadModels, place, usePolling, useStore } from "../session.js";
import { Logs } from "./logs.js";

const POLL = 3000; // ms

function useServer() {
  const [state, setState] = useState({});
  const load = () =>
    get("console/api/server", { admin: true }).then(
      (info) => setState({ info }),
      (error) => setState((before) => ({ ...before, error })),
    );
  usePolling(load, POLL);
  return [state, load];
}

const TABS = [["models", "Models"], ["log", "Log"], ["options", "Options"], ["keys", "Keys"]];

export default function ServerPage() {
  const [{ info, error }, load] = useServer();
  const { rest } = useStore(place);
  const tab = TABS.some(([name]) => name === rest[0]) ? rest[0] : "models";
  return html`<main class="page" id="main" tabindex="-1">
    <header class="page-head"><h1>Server</h1></header>
    <${Tabs} label="Parts of the server" tabs=${TABS} value=${tab} onChange=${(name) => go("server", name)} />
    <div tabindex="0" class="page-body ${tab === "log" ? "flush" : ""}">
      ${error && html`<div class="page-inner spaced"><${Failure} error=${error} title="The server's state could not be read" retry=${load} /></div>`}
      ${tab === "log" ? html`<${Logs} />` : !info ? !error && html`<${Skeleton} lines=${8} />` : html`<div class="page-inner">
        ${tab === "models" && html`<${Models} info=${info} load=${load} away=${Boolean(error)} />`}
        ${tab === "options" && html`<${Options} options=${info.options} />`}
        ${tab === "keys" && html`<${Keys} keys=${info.keys} />`}
      </div>`}
    </div>
  </main>`;
}

const TONES = { AVAILABLE: "good", RESTARTING: "warn", FAILED: "bad", START: "warn", LOADING: "warn", UNLOADING: "warn" };
const WORDS = { AVAILABLE: "ready", RESTARTING: "restarting", FAILED: "failed", START: "waiting", LOADING: "loading", UNLOADED: "idle", UNLOADING: "unloading", END: "not served" };

function Models({ info, load, away }) {
  const [busy, setBusy] = useState("");
  const [result, setResult] = useState(null);
  const [query, setQuery] = useState("");
  const [leaving, setLeaving] = useState(null); // the model that would be unloaded
  const act = async (what, name, path) => {
    setBusy(name || "all");
    setResult(null);
    try {
      await send(path, {}, { admin: true });
      setResult({ good: `${name || "The configuration"} was ${what}.` });
    } catch (error) {
      setResult({ error });
    }
    setBusy("");
    load();
    loadModels();
  };
  const shown = info.models.filter((m) => m.name.toLowerCase().includes(query.toLowerCase()));
  const engines = info.models.flatMap((m) => m.engines);
  const pids = new Map(engines.map((e) => [e.pid, e.memory]));
  const held = [...pids.values()].reduce((a, b) => a + b, 0);
  return html`
    <dl class="figures">
      <div><dt>Version</dt><dd>${info.version}</dd></div>
      <div><dt>Up for</dt><dd class="num">${seconds(Date.now() / 1000 - info.started)}</dd></div>
      <div><dt>Server process</dt><dd class="num">${bytes(info.memory)}<small>pid ${info.pid}</small></dd></div>
      <div><dt>Engines</dt><dd class="num">${bytes(held)}<small>${pids.size} process${pids.size === 1 ? "" : "es"}</small></dd></div>
      <div><dt>Free memory of this ${info.limit}</dt><dd class="num">${bytes(info.available)}</dd></div>
    </dl>
    ${info.fault && html`<${Failure} error=${{ message: info.fault }} title="The configuration on disk is not used" />`}
    ${leaving && html`<${Confirm} title=${`Unload ${visible(leaving.name)}?`} action="Unload" onNo=${() => setLeaving(null)} onYes=${() => { setLeaving(null); act("unloaded", leaving.name, `${pathOf(leaving)}/unload`); }}>
      Requests to it are rejected until it is loaded again.${leaving.running > 0 ? ` ${count(leaving.running)} running ${leaving.running === 1 ? "request ends" : "requests end"} first.` : ""}<//>`}
    ${result?.error && html`<${Failure} error=${result.error} />`}
    ${result?.good && html`<p class="good-text" role="status">${result.good}</p>`}
    <section class="card">
      <header class="card-head">
        <h2>Models <span class="muted num">${count(info.models.length)}</span></h2>
        ${info.models.length > 8 && html`<input type="search" class="short" aria-label="Search models" placeholder="Search" value=${query} onInput=${(e) => setQuery(e.target.value)} />`}
        <button type="button" class="button small" disabled=${Boolean(busy)} onClick=${() => act("read again", "", "v1/config/reload")}>
          <${Icon} name="redo" size=${16} />${busy === "all" ? "Reloading" : "Reload"}</button>
      </header>
      ${shown.length
        ? html`<div class="table-wrap" tabindex="0" role="region" aria-label="Models"><table>
            <thead><tr><th>Name</th><th>State</th><th class="right wide">Context</th><th class="right wide">Running</th><th class="wide">Engine</th><th class="right wide">Memory</th><th><span class="off-screen">Actions</span></th></tr></thead>
            <tbody>${shown.map((model) => html`<${ModelRow} key=${model.name} ...${{ model, busy, act, away, onUnload: setLeaving }} />`)}</tbody>
          </table></div>`
        : html`<${Empty} icon="server" title=${query ? "No model is called like that" : "Nothing is served"}>${query ? "" : "Add a graph to what the server was started with, then press Reload."}<//>`}
    </section>
    <section class="card"><header class="card-head"><h2>Versions</h2></header><div class="card-body">
      <dl class="facts">
        <dt>Machine</dt><dd>${info.machine}</dd><dt>Python</dt><dd>${info.python}</dd>
        ${Object.entries(info.packages).map(([name, version]) => [html`<dt key=${name}>${name}</dt>`, html`<dd>${version}</dd>`])}
      </dl></div></section>`;
}

const pathOf = (model) => `v2/repository/models/${encodeURIComponent(model.name)}`;

function ModelRow({ model, busy, act, away, onUnload }) {
  const served = model.state !== "END" && model.state !== "UNLOADING";
  return html`<tr>
    <td><a class="name" href=${`#/graph/${encodeURIComponent(model.name)}`} title=${model.graph}>${visible(model.name)}</a>
      ${model.parent && html`<p class="small muted">LoRA adapter of ${model.parent}</p>`}
      ${model.reason && html`<p class="small reason ${model.state === "FAILED" ? "bad-text" : "muted"}">${model.reason}</p>`}</td>
    <td>${away ? html`<${Pill}><i class="dot"></i>not known<//>` : html`<${Pill} tone=${TONES[model.state] || ""}><i class="dot"></i>${WORDS[model.state] || model.state}<//>`}</td>
    <td class="right num wide">${count(model.context)}</td>
    <td class="right num wide">${count(model.running)}</td>
    <td class="wide">${model.engines.map((e) => html`<span class="engine" key=${e.packet} title=${`${e.packet}: pid ${e.pid}, ${e.state}`}>${e.kind}${e.device ? ` on ${e.device}` : ""}${e.restarts > 0 && html` <span class="warn-text small">restarted ${e.restarts === 1 ? "once" : `${count(e.restarts)} times`}</span>`}</span>`)}${!model.engines.length && "–"}</td>
    <td class="right num wide">${model.engines.length ? bytes(model.engines.reduce((sum, e) => sum + e.memory, 0)) : "–"}</td>
    <td class="right actions">
      ${served && model.state !== "FAILED"
        ? html`<button type="button" class="button small" disabled=${Boolean(busy)} onClick=${() => onUnload(model)}>Unload</button>`
        : html`<button type="button" class="button small" disabled=${Boolean(busy)} onClick=${() => act("loaded", model.name, `${pathOf(model)}/load`)}>${busy === model.name ? "Loading" : "Load"}</button>`}
    </td>
  </tr>`;
}

function Options({ options }) {
  const [query, setQuery] = useState("");
  const [changed, setChanged] = useState(false);
  const rows = Object.entries(options).filter(
    ([name, { value, default: standard }]) => name.includes(query.toLowerCase()) && (!changed || value !== standard),
  );
  return html`<section class="card">
    <header class="card-head"><h2>Options in force</h2>
      <label class="check"><input type="checkbox" checked=${changed} onChange=${(e) => setChanged(e.target.checked)} />Changed only</label>
      <input type="search" class="short" aria-label="Search options" placeholder="Search" value=${query} onInput=${(e) => setQuery(e.target.value)} /></header>
    ${rows.length
      ? html`<div class="table-wrap" tabindex="0" role="region" aria-label="Options"><table class="options"><thead><tr><th>Option</th><th>Value</th><th class="wide">Default</th></tr></thead><tbody>
          ${rows.map(([name, { value, default: standard }]) => html`<tr key=${name}>
            <td><code>--${name}</code></td>
            <td class=${value !== standard ? "changed" : ""}><code>${shown(value)}</code></td><td class="muted wide"><code>${shown(standard)}</code></td></tr>`)}
        </tbody></table></div>`
      : html`<${Empty} title=${changed && !query ? "Every option has its default" : "No option is called like that"} />`}
  </section>`;
}

const shown = (value) => (value === "" ? "–" : String(value));

function Keys({ keys }) {
  if (!keys.length) {
    return html`<section class="card"><${Empty} icon="key" title="No API key is configured">Everyone who can reach this server may use and change it. Set --api_key_file or --api_keys_file to require keys.<//></section>`;
  }
  const limits = (key) => Object.entries(key.limits).map(([name, value]) => {
    const [what, per, span] = name.split("_");
    const left = per === "per" && (span === "day" ? Math.max(0, value - key.today[what]) : key.remaining[what]);
    return html`<span class="limit" key=${name}>${name.replaceAll("_", " ")}: ${count(value)}${per === "per" && html`<span class=${left > 0 ? "muted" : "warn-text"}>, ${count(left)} left</span>`}</span>`;
  });
  return html`<section class="card"><header class="card-head"><h2>Keys <span class="muted num">${keys.length}</span></h2></header>
    <div class="table-wrap" tabindex="0" role="region" aria-label="Keys"><table><thead><tr><th>Name</th><th>Right</th><th>Models</th><th>Limits</th><th class="right">Running</th><th>Expires</th></tr></thead><tbody>
      ${keys.map((key) => html`<tr key=${key.name}><td class="name">${key.name || "(the one key)"}</td>
        <td>${key.admin ? html`<${Pill} tone="accent">admin<//>` : html`<${Pill}>use<//>`}</td>
        <td>${key.models ? key.models.join(", ") : html`<span class="muted">all</span>`}</td>
        <td class="num">${Object.keys(key.limits).length ? limits(key) : html`<span class="muted">none</span>`}</td><td class="right num">${key.running}</td>
        <td class="num">${key.expires ? new Date(key.expires * 1000).toLocaleDateString("en-GB") : html`<span class="muted">never</span>`}</td></tr>`)}
    </tbody></table></div></section>`;
}
