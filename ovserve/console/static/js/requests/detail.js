// One request: its times, its tokens, and with a capture what each part of the graph made of it.

import { Fragment, html, useEffect, useMemo, useState } from "../../vendor/ui.js";
import { get, send } from "../api.js";
import { chatOf } from "../chat/tree.js";
import { clock, count, prettyText, rate, seconds } from "../format.js";
import { CopyButton, Details, Failure, Icon, Loaded, Pill, Skeleton, Tabs } from "../parts.js";
import { Plain } from "../plain.js";
import { Tokens } from "../tokens.js";
import { Replays } from "./replay.js";
import { Times, TimesLegend } from "./times.js";

export const Detail = ({ id }) =>
  html`<div class="detail"><${Loaded} ask=${() => get(`console/api/requests/${encodeURIComponent(id)}`, { admin: true })} deps=${[id]} title="The request cannot be shown" lines=${10}>
    ${({ request, capture }) => html`<${Request} row=${request} capture=${capture} />`}
  <//></div>`;

function Request({ row, capture }) {
  const decode = row.first_token !== null ? row.seconds - row.first_token : 0;
  const facts = [
    ["Began", `${new Date(row.at * 1000).toLocaleDateString("en-GB")} ${clock(row.at * 1000)}`],
    ["Path", html`<code>${row.method} ${row.path}</code>`],
    ["Model", row.model || "–"],
    row.key && ["Key", row.key],
    ["Request id", html`<code>${row.id}</code><${CopyButton} text=${row.id} label="Copy the id" />`],
    row.prompt_tokens > 0 && ["Prompt", html`<b class="num">${count(row.prompt_tokens)}</b> tokens${row.cached_tokens !== null ? `, ${count(row.cached_tokens)} cached` : ""}`],
    row.generated_tokens > 0 && ["Generated", html`<b class="num">${count(row.generated_tokens)}</b> tokens${decode > 0 && row.generated_tokens > 1 ? `, ${rate((row.generated_tokens - 1) / decode)} per second` : ""}`],
    row.drafted_tokens > 0 && ["Speculative", html`<b class="num">${count(row.accepted_tokens)}</b> of <b class="num">${count(row.drafted_tokens)}</b> drafted tokens accepted, ${Math.round((100 * row.accepted_tokens) / row.drafted_tokens)} %`],
    row.repeated && ["Repeated", "its engine ended before anything was sent, so it was made again"],
  ].filter(Boolean);
  return html`<${Fragment}>
    <section class="timeline">
      <div class="row between"><h3>Where the time went</h3><${Pill} tone=${row.status >= 500 ? "bad" : row.status >= 400 ? "warn" : "good"}>${row.status}<//></div>
      <${Times} row=${row} /><${TimesLegend} row=${row} />
    </section>
    ${row.failure && html`<${Failure} error=${{ message: row.failure }} title=${row.refused ? `Answered with ${row.status}: ${row.error}${row.param ? `, ${row.param}` : ""}` : "The answer broke off"} />`}
    <dl class="facts request-facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd class="row wrap">${value}</dd></div>`)}</dl>
    ${capture ? html`<${Captured} row=${row} capture=${capture} />` : html`<p class="muted">What this request carried was not captured. Start a capture on this page before sending it again.</p>`}
  <//>`;
}

function Captured({ row, capture }) {
  const { entries } = capture;
  const of = (kind) => entries.filter((entry) => entry.kind === kind);
  const [body] = of("body");
  const [prompt] = of("prompt");
  const deltas = of("delta");
  const parsed = of("parsed");
  const answer = of("answer").map((e) => e.text).join("");
  const tabs = [
    prompt && ["prompt", "Prompt"],
    deltas.length && ["output", "Output"],
    body && ["body", "Body"],
    answer && ["answer", "Answer"],
    ["packets", "Packets"],
    body && ["replay", "Replay"],
  ].filter(Boolean);
  const [tab, setTab] = useState(tabs[0][0]);
  const source = useMemo(() => {
    try {
      return JSON.parse(body?.text ?? "");
    } catch {
      return null;
    }
  }, [body]);
  return html`<section class="captured">
    <div class="row between wrap">
      <h3>Captured${capture.cut ? ", cut where it was too large" : ""}</h3>
      ${source?.messages && html`<button type="button" class="button small" onClick=${async () => (await import("../chat/page.js")).openChat(chatOf(source))}><${Icon} name="chat" size=${16} />Open in chat</button>`}
    </div>
    ${deltas.length > 1 && html`<${Strip} deltas=${deltas} end=${row.seconds} />`}
    <${Tabs} label="What was captured" tabs=${tabs} value=${tab} onChange=${setTab} />
    <div class="captured-body" role="tabpanel">
      ${tab === "prompt" && html`<${Prompt} prompt=${prompt} model=${row.model} />`}
      ${tab === "output" && html`<${Output} deltas=${deltas} parsed=${parsed} model=${row.model} />`}
      ${tab === "body" && html`<${Text} text=${prettyText(body.text)} label="the body as it came" />`}
      ${tab === "answer" && html`<${Text} text=${prettyText(answer)} label="what was sent" />`}
      ${tab === "packets" && html`<${Packets} entries=${entries} />`}
      ${tab === "replay" && html`<${Replays} row=${row} body=${body} parsed=${parsed} />`}
    </div>
  </section>`;
}

const Text = ({ text, label }) =>
  html`<div class="code"><div class="code-head"><span>${label}</span><${CopyButton} text=${text} /></div><pre tabindex="0" class="wrapped"><${Plain} text=${text} /></pre></div>`;

/** A mark for each delta at its time, so that pauses are seen. */
function Strip({ deltas, end }) {
  const marks = deltas.filter((d) => d.tokens).slice(0, 2000);
  const gaps = marks.slice(1).map((d, i) => d.t - marks[i].t);
  const longest = Math.max(0, ...gaps);
  return html`<div class="strip-box">
    <svg class="strip" viewBox="0 0 1000 34" preserveAspectRatio="none" role="img" aria-label=${`${marks.length} deltas; the longest pause is ${seconds(longest)}`}>
      ${marks.map((d, i) => html`<rect key=${i} x=${(1000 * d.t) / end} y=${17 - Math.min(14, 4 + 3 * d.tokens)} width="1.6" height=${2 * Math.min(14, 4 + 3 * d.tokens)}><title>${`${seconds(d.t)}: ${JSON.stringify(d.text ?? "")}`}</title></rect>`)}
    </svg>
    <p class="muted small">Tokens over time; the longest pause between two is <b class="num">${seconds(longest)}</b>.</p>
  </div>`;
}

/** Ids and pieces of a text come from the model's own tokenizer, asked now. */
function useTokens(model, text) {
  const [state, setState] = useState({});
  useEffect(() => {
    let current = true;
    setState({});
    if (text) {
      send("console/api/tokens", { model, text }, { admin: true }).then(
        (made) => current && setState(made),
        (error) => current && setState({ error }),
      );
    }
    return () => (current = false);
  }, [model, text]);
  return state;
}

function Prompt({ prompt, model }) {
  const [text] = prompt.prompts;
  const { ids, pieces, error } = useTokens(model, text);
  const sampling = Object.entries(prompt.sampling).filter(([, value]) => value !== null);
  return html`<div class="prompt-view">
    <${Details} summary=${`Sampling: ${sampling.length} values`}><dl class="facts">${sampling.map(([n, v]) => [html`<dt><code>${n}</code></dt>`, html`<dd class="num">${String(v)}</dd>`])}</dl><//>
    ${prompt.prompts.length > 1 && html`<p class="muted small">The first of ${prompt.prompts.length} prompts.</p>`}
    <div class="row between"><span>${ids ? html`<b class="num">${count(ids.length)}</b> tokens` : ""}</span><${CopyButton} text=${text} label="Copy the prompt" /></div>
    ${error && html`<p class="warn-text small">Without its tokens: ${error.message}</p>`}
    ${!ids && !error ? html`<${Skeleton} lines=${6} />` : html`<${Tokens} ids=${ids} pieces=${pieces} text=${text} />`}
  </div>`;
}

const SHORT = 400; // characters in a row of a table
const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text);
const partText = ([kind, part]) => (kind === "ToolCallDelta" ? `${part.name ? `${part.name} ` : ""}${part.arguments ?? ""}` : (part.text ?? ""));

/** What the engine returned beside what the parser made of it. */
function Output({ deltas, parsed, model }) {
  const raw = deltas.map((d) => d.text ?? "").join("");
  const [view, setView] = useState("steps");
  const { ids, pieces, error } = useTokens(model, view === "tokens" ? raw : "");
  return html`<div class="prompt-view">
    <div class="row between">
      <div class="segments" role="group" aria-label="Show">${[["steps", "Step by step"], ["tokens", "Raw text"]].map(([name, word]) => html`<button key=${name} type="button" aria-pressed=${view === name} onClick=${() => setView(name)}>${word}</button>`)}</div>
      <${CopyButton} text=${raw} label="Copy the raw text" />
    </div>
    ${view === "tokens"
      ? html`${error && html`<p class="warn-text small">Without its tokens: ${error.message}</p>`}
          ${ids || error ? html`<${Tokens} ids=${ids} pieces=${pieces} text=${raw} />` : html`<${Skeleton} lines=${6} />`}`
      : html`<div class="flow" tabindex="0"><div class="flow-row head"><span>Time</span><span>Kind</span><span>Engine</span><span>Parser</span></div>
          ${deltas.slice(0, 1500).map((delta, i) => {
            const parts = parsed[i]?.parts ?? [];
            return html`<div class="flow-row" key=${i}><span class="num muted">${seconds(delta.t)}</span>
              <span class=${`raw kind-${parts[0]?.[0]}`}>${parts.map(([k]) => k).join(", ") || (delta.prompt_tokens ? "admitted" : delta.finish_reason || "")}</span>
              <span class="raw">${short(delta.text ?? "")}</span>
              <span>${parts.map((part, k) => html`<span key=${k} class=${`kind-${part[0]}`}>${short(partText(part))}</span>`)}</span></div>`;
          })}</div>`}
  </div>`;
}

const Packets = ({ entries }) =>
  html`<div class="flow" tabindex="0"><div class="flow-row head"><span>Time</span><span>Stream</span><span>Kind</span><span>Content</span></div>
    ${entries.slice(0, 1500).map((entry, i) => {
      const { t, stream, kind, ...rest } = entry;
      const text = rest.text ?? rest.prompts?.[0] ?? JSON.stringify(rest);
      return html`<div class="flow-row" key=${i}><span class="num muted">${seconds(t)}</span><span>${stream}</span><span class="raw muted">${kind}</span><span>${short(text)}</span></div>`;
    })}</div>`;
