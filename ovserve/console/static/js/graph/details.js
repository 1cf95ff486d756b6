// What is known of the node or the stream that was clicked on.

import { html } from "../../vendor/ui.js";
import { clock, count, rate, seconds } from "../format.js";
import { Icon, Pill } from "../parts.js";
import { engineState } from "./live.js";

const when = (at) => `${new Date(at * 1000).toLocaleDateString("en-GB")} ${clock(at * 1000)}`;
const FAMILY = { ends: "in and out", parsing: "parsing", engine: "engine", transform: "transform", own: "own code" };

/** The newest packet of a stream: what it is, how long ago it went by, and its text while a capture runs. */
function Packet({ packet, stream }) {
  if (!packet) return null;
  return html`<div class="packet-seen">
    <p class="small">${stream && html`<code>${stream}</code> `}<b>${packet.type}</b>${packet.summary ? html` <span class="muted">${packet.summary}</span>` : ""} <span class="muted num">${packet.age < 1 ? "now" : packet.age < 60 ? `${Math.round(packet.age)} s ago` : `${seconds(packet.age)} ago`}</span></p>
    ${packet.text && html`<pre class="box" tabindex="0">${packet.text}</pre>`}
  </div>`;
}

export function NodeDetails({ node, all, live, text, onLines, onStream }) {
  const engine = engineState(node, all);
  const error = all?.errors[node.name];
  const seen = node.outputs.filter((o) => all?.packets[o.stream]);
  const [first, last] = node.lines;
  const lines = text && first ? text.split("\n").slice(first - 1, last).join("\n") : "";
  const numbers = live && [
    ["Calls per second", rate(live.rate)], ["Mean time of a call", seconds(live.mean)], ["95th percentile", seconds(live.p95)], ["Longest call", seconds(live.longest)],
    ["Part of the run's time", `${Math.round(live.share * 100)} %`], ["Failed", count(live.errors)],
  ];
  return html`<div class="detail">
    <div><h3 class="detail-name">${node.name}</h3><p class="muted">${node.calculator}</p></div>
    <div class="row wrap"><${Pill} tone="accent">${FAMILY[node.family] || node.family}<//>
      <${Pill}>${node.executor === null ? "event loop" : `threads${node.executor ? `: ${node.executor}` : ""}`}<//>
      ${node.waits && html`<${Pill} title="Its calls include the time they wait, such as for the engine">waits<//>`}
      ${node.sync_sets > 1 && html`<${Pill}>${node.sync_sets} sync sets<//>`}</div>
    ${engine && html`<p class="notice" role="status"><${Icon} name="warning" size=${16} />Its engine is ${engine}.</p>`}
    ${error && html`<section><h3>Last error</h3><div class="failure small"><div><p>${error[1]}</p><p class="muted">${when(error[0])}</p></div></div></section>`}
    ${node.about && html`<p>${node.about.replace(/\s+/g, " ")}</p>`}
    ${numbers && html`<dl class="facts">${numbers.map(([name, value]) => [html`<dt key=${name}>${name}</dt>`, html`<dd class="num">${value}</dd>`])}</dl>`}
    <${Ports} title="Inputs" ports=${node.inputs} onStream=${onStream} /><${Ports} title="Outputs" ports=${node.outputs} onStream=${onStream} />
    ${seen.length > 0 && html`<section><h3>Last packets</h3>${seen.map((o) => html`<${Packet} key=${o.stream} stream=${o.stream} packet=${all.packets[o.stream]} />`)}</section>`}
    ${[...node.side_inputs, ...node.side_outputs].length > 0 && html`<section><h3>Side packets</h3><dl class="facts">
      ${[...node.side_inputs, ...node.side_outputs].map((s) => [html`<dt><code>${s.port || "–"}</code></dt>`, html`<dd><code>${s.packet}</code></dd>`])}</dl></section>`}
    ${node.options.length > 0 && html`<section><h3>Options</h3><dl class="facts">${node.options.map(([name, value]) => [html`<dt><code>${name}</code></dt>`, html`<dd><code>${value}</code></dd>`])}</dl></section>`}
    ${lines && html`<section><div class="row between"><h3>Lines ${first} to ${last}</h3>
      <button type="button" class="link" onClick=${() => onLines(first)}><${Icon} name="edit" size=${14} />Open in the editor</button></div>
      <pre class="box" tabindex="0">${lines}</pre></section>`}
  </div>`;
}

const Ports = ({ title, ports, onStream }) =>
  ports.length > 0 &&
  html`<section><h3>${title}</h3><dl class="facts">${ports.map((p) => [
    html`<dt><code>${p.port || "–"}</code></dt>`,
    html`<dd><button type="button" class="link" onClick=${() => onStream(p.stream)}>${p.stream}</button> <span class="muted">${p.type}${p.back_edge ? ", back edge" : ""}</span></dd>`,
  ])}</dl></section>`;

export function StreamDetails({ name, graph, live, packet, admin, onNode }) {
  const makers = graph.nodes.filter((n) => n.outputs.some((o) => o.stream === name));
  const readers = graph.nodes.filter((n) => n.inputs.some((i) => i.stream === name));
  const type = graph.nodes.flatMap((n) => [...n.outputs, ...n.inputs]).find((p) => p.stream === name)?.type;
  const button = (node) => html`<button type="button" class="link" key=${node.name} onClick=${() => onNode(node.name)}>${node.name}</button>`;
  return html`<div class="detail">
    <div><h3 class="detail-name">${name}</h3><p class="muted">stream of ${type || "packets"}</p></div>
    <dl class="facts">
      <dt>From</dt><dd class="row wrap">${makers.length ? makers.map(button) : "the graph's input"}</dd>
      <dt>To</dt><dd class="row wrap">${readers.map(button)}${graph.outputs.some((o) => o.stream === name) ? " the graph's output" : ""}</dd>
      <dt>Packets per second</dt><dd class="num">${rate(live?.rate ?? 0)}</dd>
      <dt>Packets since watched</dt><dd class="num">${count(live?.packets ?? 0)}</dd>
      <dt>Longest queue</dt><dd class="num">${count(live?.longest ?? 0)} of ${graph.max_queue_size < 0 ? "unlimited" : count(graph.max_queue_size)}</dd>
    </dl>
    ${admin && html`<section><h3>Last packet</h3>${packet ? html`<${Packet} packet=${packet} />` : html`<p class="muted small">None since this page watches.</p>`}
      ${packet?.text === null && html`<p class="muted small">Its text is shown while a <a href="#/requests">capture</a> runs.</p>`}</section>`}
  </div>`;
}
