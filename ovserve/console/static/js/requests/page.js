// Requests: the last five hundred, as they end, and one of them in detail. A capture adds what they carried.

import { html, useEffect, useMemo, useReducer, useState } from "../../vendor/ui.js";
import { follow, send } from "../api.js";
import { bytes, clock, count, seconds } from "../format.js";
import { Drawer, Empty, Failure, Icon, IconButton, Pill, Skeleton } from "../parts.js";
import { go, place, session, useStore } from "../session.js";
import { Detail } from "./detail.js";
import { RunningRequests } from "./running.js";
import { Legend, Times } from "./times.js";

const MOST = 500;
const kept = { rows: [], captured: new Set(), capture: null };

function useRequests() {
  const [, again] = useReducer((n) => n + 1, 0);
  const [error, setError] = useState(null);
  const [known, setKnown] = useState(kept.rows.length > 0);
  useEffect(
    () =>
      follow(
        "console/api/requests",
        (event) => {
          if (event.capture) kept.capture = { ...event.capture, at: Date.now() };
          if (event.requests) {
            const ids = new Set(event.requests.map((r) => r.id));
            kept.rows = [...event.requests.toReversed(), ...kept.rows.filter((r) => !ids.has(r.id))].slice(0, MOST);
            event.captured.forEach((id) => kept.captured.add(id));
          }
          setKnown(true);
          again();
        },
        (failure) => {
          if (!failure) kept.rows = []; // a new connection sends all of them
          setError(failure);
        },
      ),
    [],
  );
  return { error, known, again };
}

const failed = (status) => (typeof status === "number" ? status >= 400 : status !== "OK"); // gRPC's are words
const tone = (status) => (typeof status !== "number" ? (failed(status) ? "warn" : "good") : status === 499 ? "warn" : status >= 500 ? "bad" : status >= 400 ? "warn" : "good");
const endpoint = (row) => row.path.replace(/^\/(openai\/)?(v3|v1)?(\/v1)?\//, "");

export default function RequestsPage() {
  const { error, known, again } = useRequests();
  const { who } = useStore(session);
  const { rest } = useStore(place);
  const [query, setQuery] = useState("");
  const [failedOnly, setFailedOnly] = useState(false);
  const rows = useMemo(() => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    return kept.rows.filter((row) => {
      if (failedOnly && !failed(row.status)) return false;
      const text = `${row.id} ${row.model} ${row.path} ${row.key} ${row.status}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }, [kept.rows, query, failedOnly]);
  const keys = who.keys_required && who.admin;
  const open = rest[0];
  return html`<main class="page" id="main" tabindex="-1">
    <header class="page-head"><h1>Requests</h1><span class="grow"></span>
      ${who.capture !== "off" && kept.capture && !kept.capture.active && html`<${StartCapture} done=${(state) => { kept.capture = { ...state, at: Date.now() }; again(); }} />`}
      <label class="check"><input type="checkbox" checked=${failedOnly} onChange=${(e) => setFailedOnly(e.target.checked)} />Failed only</label>
      <input type="search" class="short" aria-label="Search requests" placeholder="Search" value=${query} onInput=${(e) => setQuery(e.target.value)} />
    </header>
    ${kept.capture && (kept.capture.active || kept.capture.records > 0) && html`<${CaptureBar} capture=${kept.capture} admin=${who.admin} again=${again} />`}
    <div class="page-body" tabindex="0"><div class="page-inner">
      ${error && html`<${Failure} error=${error} title="The requests are not followed; trying again" />`}
      <${RunningRequests} endpoint=${endpoint} keys=${keys} />
      ${!known && !error && html`<${Skeleton} lines=${8} />`}
      ${known && !rows.length && html`<${Empty} icon="requests" title=${kept.rows.length ? "No request fits" : "No request yet"}
        action=${!kept.rows.length && html`<a class="button" href="#/chat">Open the chat</a>`}>${kept.rows.length ? "" : "Each request to a model appears here when it ends. Prompts and answers are not kept unless an administrator starts a capture."}<//>`}
      ${rows.length > 0 &&
      html`<section class="card"><div class="table-wrap" tabindex="0" role="region" aria-label="Requests"><table class="requests-table">
        <thead><tr><th>Time</th><th>Status</th><th>Model</th><th class="wide">Endpoint</th>${keys && html`<th class="wide">Key</th>`}
          <th class="right wide">Prompt</th><th class="right">Generated</th><th class="times-cell wide" title="Where the time went"><${Legend} /></th><th class="right">Total</th></tr></thead>
        <tbody>${rows.map((row) => drawn(row, keys, row.id === open, kept.captured.has(row.id)))}</tbody>
      </table></div></section>`}
    </div></div>
    ${open && html`<${Drawer} title=${headline(open)} wide onClose=${() => go("requests")} actions=${html`<${Neighbours} rows=${rows} id=${open} />`}><${Detail} id=${open} key=${open} /><//>`}
  </main>`;
}

/** How long a request took and when it began. */
function headline(id) {
  const row = kept.rows.find((r) => r.id === id);
  return row ? `${seconds(row.seconds)} at ${clock(row.at * 1000)}` : "Request";
}

/** Steps to the requests above and below in the list. */
function Neighbours({ rows, id }) {
  const at = rows.findIndex((row) => row.id === id);
  const to = (row) => ({ disabled: at < 0 || !row, onClick: () => go("requests", row.id) });
  return html`<span class="muted small num grow steps">${at < 0 ? "" : `${count(at + 1)} of ${count(rows.length)}`}</span>
    <${IconButton} icon="left" label="Previous request" ...${to(rows[at - 1])} />
    <${IconButton} icon="right" label="Next request" ...${to(rows[at + 1])} />`;
}

const elements = new WeakMap(); // row -> { stamp, element }

/** The same element as long as nothing of it changes, which is not looked at again: there are up to 500. */
function drawn(row, keys, open, captured) {
  const stamp = `${keys} ${open} ${captured}`;
  if (elements.get(row)?.stamp !== stamp) elements.set(row, { stamp, element: html`<${RequestRow} key=${row.id} ...${{ row, keys, open, captured }} />` });
  return elements.get(row).element;
}

const RequestRow = ({ row, keys, open, captured }) =>
  html`<tr class="press ${open ? "open" : ""}" onClick=${() => go("requests", row.id)}>
    <td class="num"><a href=${`#/requests/${encodeURIComponent(row.id)}`} onClick=${(e) => e.stopPropagation()}>${clock(row.at * 1000)}</a></td>
    <td><${Pill} tone=${tone(row.status)} title=${row.failure}>${row.status}<//>${captured && html` <span class="muted" title="Captured"><${Icon} name="record" size=${14} /></span>`}</td>
    <td class="model" title=${row.model}>${row.model || html`<span class="muted">–</span>`}</td>
    <td class="wide muted endpoint" title=${row.failure || endpoint(row)}>${endpoint(row)}${row.error && html` · ${row.error}${row.param && ` ${row.param}`}`}</td>
    ${keys && html`<td class="wide muted">${row.key || "–"}</td>`}
    <td class="right num wide">${row.prompt_tokens ? count(row.prompt_tokens) : "–"}${row.cached_tokens > 1 && html`<small class="muted" title="of them cached"> (${count(row.cached_tokens)})</small>`}</td>
    <td class="right num">${row.generated_tokens ? count(row.generated_tokens) : "–"}</td>
    <td class="times-cell wide"><${Times} row=${row} /></td>
    <td class="right num">${seconds(row.seconds)}</td>
  </tr>`;

function StartCapture({ done }) {
  const [minutes, setMinutes] = useState("5");
  const [error, setError] = useState(null);
  const start = async () => {
    try {
      done(await send("console/api/capture", { minutes: Number(minutes) }, { admin: true }));
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<span class="row">
    ${error && html`<span class="bad-text small">${error.message}</span>`}
    <button type="button" class="button small" onClick=${start} title="Keep bodies, prompts and answers in the server's memory for a while"><${Icon} name="record" size=${16} />Capture</button>
    <select class="minutes" aria-label="For how long" value=${minutes} onChange=${(e) => setMinutes(e.target.value)}>
      <option value="1">1 min</option><option value="5">5 min</option><option value="30">30 min</option></select>
  </span>`;
}

function CaptureBar({ capture, admin, again }) {
  const [, tick] = useReducer((n) => n + 1, 0);
  const [error, setError] = useState(null);
  useEffect(() => {
    const timer = setInterval(tick, 1000);
    return () => clearInterval(timer);
  }, []);
  const left = capture.seconds_left === null ? null : capture.seconds_left - (Date.now() - capture.at) / 1000;
  const active = capture.active && (left === null || left > 0);
  const set = async (body) => {
    setError(null);
    try {
      kept.capture = { ...(await send("console/api/capture", body, { admin: true })), at: Date.now() };
      if (body.clear) kept.captured.clear();
      again();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<div class="capture-bar" role="status">
    ${active && html`<i class="dot"></i>`}
    <span class="grow">${active ? html`Bodies, prompts and answers are captured${left === null ? "" : html` for another <b class="num">${seconds(Math.max(0, Math.ceil(left)))}</b>`}` : "The capture has ended"};
      ${" "}<b class="num">${count(capture.records)}</b> request${capture.records === 1 ? "" : "s"} in memory, <span class="num">${bytes(capture.bytes)}</span></span>
    ${error && html`<span class="bad-text small" role="alert">${error.message}</span>`}
    ${admin && active && html`<button type="button" class="button small" onClick=${() => set({ minutes: 0 })}>Stop</button>`}
    ${admin && html`<button type="button" class="button small" onClick=${() => set({ minutes: 0, clear: true })}>Forget all</button>`}
  </div>`;
}
