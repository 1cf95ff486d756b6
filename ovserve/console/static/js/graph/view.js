// The drawing of a graph: SVG with zoom, selection and counters.

import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/ui.js";
import { rate, seconds } from "../format.js";
import { IconButton } from "../parts.js";
import { layout } from "./layout.js";
import { DOT_SECONDS, dotsOf, engineState } from "./live.js";

const POOLS = 3; // colours of thread pools
const ZOOM = { least: 0.1, most: 2.5, fit: 1.25 };
const FULL = 0.84; // zoom below which labels that can be read have no room, so that only names are shown
const SMALLEST = 11; // px of a label on the screen
const LABEL = 12; // px of a label in the drawing
const FOOT = 56; // px below the graph, for the tools and the legend
const WIDE = matchMedia("(min-width: 901px)");
const FAMILIES = [["ends", "in and out"], ["parsing", "parsing"], ["engine", "engine"], ["transform", "transform"], ["own", "own code"]];
const cut = (text, width, each) => (text.length * each > width ? `${text.slice(0, Math.floor(width / each) - 1)}…` : text);

/** The zoom at which all of a layout is seen. */
const scaleOf = (drawn, { w, h }) => Math.min(w / drawn.width, (h - FOOT) / drawn.height);

export function GraphView({ graph, live, selected, onSelect, dots }) {
  const ways = useMemo(() => [layout(graph, true), layout(graph, false)], [graph]);
  const [size, setSize] = useState({ w: 1, h: 1 });
  const touched = useRef(false);
  const last = useRef(null);
  const drawn = useMemo(() => {
    const [across, down] = ways;
    if (touched.current && last.current && ways.includes(last.current)) return last.current;
    const k = scaleOf(across, size);
    return (last.current = k >= FULL || k >= scaleOf(down, size) ? across : down);
  }, [ways, size]);
  const pools = useMemo(() => [...new Set(graph.nodes.map((n) => n.executor).filter((name) => name !== null))], [graph]);
  const box = useRef();
  const [view, setView] = useState({ x: 0, y: 0, k: 1 });

  /** Show all of it. */
  const fit = useCallback(() => {
    const k = Math.max(ZOOM.least, Math.min(ZOOM.fit, scaleOf(drawn, size)));
    setView({ k, x: (size.w - drawn.width * k) / 2, y: Math.max(0, (size.h - FOOT - drawn.height * k) / 2) });
    touched.current = false;
  }, [drawn, size]);
  useLayoutEffect(() => void (touched.current || fit()), [fit]);
  useLayoutEffect(() => {
    const measure = () => box.current && setSize({ w: box.current.clientWidth, h: box.current.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  const zoom = (factor, at) => {
    touched.current = true;
    setView((v) => {
      const k = Math.max(ZOOM.least, Math.min(ZOOM.most, v.k * factor));
      return { k, x: at.x - ((at.x - v.x) * k) / v.k, y: at.y - ((at.y - v.y) * k) / v.k };
    });
  };
  useEffect(() => {
    const onWheel = (event) => {
      event.preventDefault();
      const { left, top } = box.current.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), { x: event.clientX - left, y: event.clientY - top });
    };
    box.current.addEventListener("wheel", onWheel, { passive: false });
    const element = box.current;
    return () => element.removeEventListener("wheel", onWheel);
  }, []);
  const pan = (event) => {
    if (event.button !== 0 || event.target.closest("[data-press]")) return;
    const start = { x: event.clientX - view.x, y: event.clientY - view.y };
    const move = (e) => {
      touched.current = true;
      setView((v) => ({ ...v, x: e.clientX - start.x, y: e.clientY - start.y }));
    };
    const up = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
  };
  const middle = () => ({ x: box.current.clientWidth / 2, y: box.current.clientHeight / 2 });
  const step = (node, key) => {
    const forward = key === "ArrowDown" || key === "ArrowRight";
    const edge = drawn.edges.find((e) => (forward ? e.from.id : e.to.id) === node.id && e.kind === "stream" && (forward ? e.to.id : e.from.id).startsWith("node:"));
    const next = edge && (forward ? edge.to.id : edge.from.id);
    if (next) box.current.querySelector(`[data-node="${CSS.escape(next)}"]`)?.focus();
  };

  const full = view.k >= FULL;
  const busiest = graph.nodes.reduce((most, n) => ((live?.nodes[n.name]?.share ?? 0) > (live?.nodes[most]?.share ?? 0.001) ? n.name : most), "");
  const counts = useMemo(() => dotsOf(dots ? live : null, drawn.edges), [live, drawn, dots]);
  return html`<div class="graph-view" ref=${box} onPointerDown=${pan} onDblClick=${() => fit()} onClick=${(e) => e.target.closest("[data-press]") || onSelect(null)}>
    <svg role="group" aria-label="The graph" width="100%" height="100%">
      <g class=${full ? "" : "few-labels"} style=${{ "--label": `${Math.max(full ? LABEL : 0, SMALLEST / view.k)}px` }} transform=${`translate(${view.x},${view.y}) scale(${view.k})`}>
        ${drawn.edges.map((edge) => html`<${Edge} key=${edge.id} edge=${edge} live=${live} dots=${counts.get(edge.id)} selected=${selected?.stream === edge.name && edge.kind !== "side"} onSelect=${onSelect} />`)}
        ${drawn.edges.map((edge) => full && edge.named && html`<${EdgeName} key=${edge.id} edge=${edge} across=${drawn.across} live=${live} selected=${selected?.stream === edge.name} onSelect=${onSelect} />`)}
        ${drawn.lugs.map((lug) => html`<${Lug} key=${lug.id} lug=${lug} each=${full ? 0 : (SMALLEST / view.k) * 0.62} />`)}
        ${drawn.nodes.map((node) => html`<${NodeBox} key=${node.id} node=${node} k=${view.k} across=${drawn.across} busiest=${node.name === busiest} pool=${pools.indexOf(node.executor)} live=${live?.nodes[node.name]} engine=${engineState(node, live)} selected=${selected?.node === node.name} onSelect=${onSelect} onStep=${step} />`)}
      </g>
    </svg>
    <${Legend} graph=${graph} pools=${pools} />
    <div class="graph-tools">
      <${IconButton} icon="plus" label="Larger" onClick=${() => zoom(1.25, middle())} />
      <button type="button" class="icon-button" aria-label="Smaller" title="Smaller" onClick=${() => zoom(0.8, middle())}>−</button>
      <${IconButton} icon="fit" label="Fit (double click)" onClick=${() => fit()} />
    </div>
  </div>`;
}

function Edge({ edge, live, dots, selected, onSelect }) {
  const now = live?.streams[edge.name]?.rate ?? 0;
  const width = edge.kind === "side" ? 1.2 : 1.5 + Math.min(3.5, Math.log10(1 + now) * 1.6);
  const press = edge.kind === "side" ? undefined : (event) => {
    event.stopPropagation();
    onSelect({ stream: edge.name });
  };
  return html`<g class="edge ${edge.kind} ${selected ? "selected" : ""} ${now > 0 ? "flowing" : ""}">
    <path d=${edge.path} style=${{ strokeWidth: width }} />
    ${press && html`<path class="edge-hit" d=${edge.path} data-press onClick=${press}><title>${edge.name}</title></path>`}
    ${Array.from({ length: dots || 0 }, (_, i) => html`<circle key=${`${dots}-${i}`} r="3.2" class="packet">
      <animateMotion dur=${`${DOT_SECONDS}s`} begin=${`${((-DOT_SECONDS * i) / dots).toFixed(3)}s`} repeatCount="indefinite" path=${edge.path} />
    </circle>`)}
  </g>`;
}

/** Names stand above all curves, each on a ground of its own. */
function EdgeName({ edge, across, live, selected, onSelect }) {
  const now = live?.streams[edge.name]?.rate ?? 0;
  const press = (event) => {
    event.stopPropagation();
    onSelect({ stream: edge.name });
  };
  return html`<text class="edge-name ${selected ? "selected" : ""}" x=${edge.label.x} y=${edge.label.y} data-press onClick=${press}>${edge.name}${now > 0 ? (across ? html` <tspan x=${edge.label.x} dy="17">${rate(now)}/s</tspan>` : ` · ${rate(now)}/s`) : ""}</text>`;
}

const Lug = ({ lug, each }) =>
  html`<g class="lug ${lug.kind}" transform=${`translate(${lug.x},${lug.y})`}>
    <rect width=${lug.width} height=${lug.height} rx="13" /><title>${lug.text}</title><text x=${lug.width / 2} y=${lug.height / 2}>${each ? cut(lug.text, lug.width, each) : lug.label}</text>
  </g>`;

const threads = (count) => (count > 0 ? ` (${count})` : "");

function NodeBox({ node, k, across, busiest, pool, live, engine, selected, onSelect, onStep }) {
  const press = () => onSelect({ node: node.name });
  const onKey = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      press();
    } else if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      onStep(node, event.key);
    }
  };
  const foot = engine ? `engine ${engine}` : live?.rate > 0 ? `${rate(live.rate)}/s · p95 ${seconds(live.p95)}` : live?.errors ? "" : "idle";
  const inner = node.width - 24;
  const label = SMALLEST / k; // px of the drawing
  return html`<g class="node family-${node.family} ${pool < 0 ? "" : `pool-${pool % POOLS}`} ${selected ? "selected" : ""} ${busiest ? "busiest" : ""} ${live?.errors > 0 ? "failing" : ""} ${engine ? "stopped" : ""}" transform=${`translate(${node.x},${node.y})`} data-press data-node=${node.id}
      role="button" tabindex="0" aria-label=${`${node.name}, ${node.calculator}, ${foot}`} onClick=${(e) => { e.stopPropagation(); press(); }} onKeyDown=${onKey}>
    <title>${`${node.name}\n${node.calculator}`}</title>
    <rect class="node-body" width=${node.width} height=${node.height} rx="8" />
    <path class="node-head" d=${`M0,8a8,8 0 0 1 8,-8H${node.width - 8}a8,8 0 0 1 8,8v14H0z`} />
    ${k < FULL
      ? html`<text class="node-name" x="12" y=${22 + label * 0.9}>${cut(node.name, inner, label * 0.62)}</text>
          ${foot.split(" · ").map((part, i) => 22 + label * (2.5 + 1.3 * i) < node.height && html`<text key=${i} class="node-foot" x="12" y=${22 + label * (2.2 + 1.3 * i)}>${cut(part, inner, label * 0.58)}</text>`)}`
      : html`${[...node.ins, ...node.outs].map((port) => html`<${Port} key=${port.port + port.side + port.at.y + port.at.x} port=${port} />`)}
          <text class="node-name" x="12" y=${across ? 16 : 37}>${cut(node.name, inner, 7.6)}</text>
          <text class="node-calculator" x="12" y=${across ? 39 : 51}>${cut(node.short, inner, 6.6)}</text>
          <text class="node-foot" x="12" y=${across ? 55 : 66}>${foot}</text>
          ${live?.errors > 0 && html`<text class="node-errors" x=${node.width - 12} y=${across ? 39 : 37}>${live.errors} failed</text>`}`}
  </g>`;
}

const Port = ({ port }) =>
  html`<g><title>${`${port.port || "without a tag"}: ${port.stream ?? port.packet}`}</title>
    <circle class="port ${port.side ? "side" : ""}" cx=${port.x} cy=${port.y} r="3.5" />
    <text class="port-name" x=${port.at.x} y=${port.at.y} text-anchor=${port.at.anchor}>${port.label}</text></g>`;

/** What colours and lines mean; folded where it would cover the graph. */
function Legend({ graph, pools }) {
  const families = FAMILIES.filter(([name]) => graph.nodes.some((n) => n.family === name));
  const sides = graph.nodes.some((n) => n.side_inputs.length);
  const backs = graph.nodes.some((n) => n.inputs.some((i) => i.back_edge));
  return html`<details class="graph-legend small" open=${WIDE.matches} data-press>
    <summary>Legend</summary>
    <p>${families.map(([name, word]) => html`<span key=${name}><i class=${`family-${name}`}></i>${word}</span>`)}
      <span><i class="is-busiest"></i>busiest</span><span><i class="is-failing"></i>failed</span>
      ${sides && html`<span><i class="line is-side"></i>side packet</span>`}${backs && html`<span><i class="line is-back"></i>back edge</span>`}</p>
    ${pools.length > 0 && html`<p aria-label="Where nodes run" role="group"><span><i></i>event loop</span>${pools.map((name, i) => html`<span key=${name}><i class=${`pool-${i % POOLS}`}></i>threads${name ? `: ${name}` : ""}${threads(graph.executors[name])}</span>`)}</p>`}
  </details>`;
}
