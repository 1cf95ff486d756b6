// The drawing of a graph: SVG with zoom, selection and counters.

import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/ui.js";
import { rate, seconds } from "../format.js";
import { IconButton } from "../parts.js";
import { layout } from "./layout.js";
import { DOT_SECONDS, dotsOf, engineState } from "./live.js";

const POOLS = 3; // colours of thread pools
const ZOOM = { least: 0.2, first: 0.7, most: 2.5, fit: 1.25 };
const cut = (text, width, each) => (text.length * each > width ? `${text.slice(0, Math.floor(width / each) - 1)}…` : text);

export function GraphView({ graph, live, selected, onSelect, dots }) {
  const drawn = useMemo(() => layout(graph), [graph]);
  const pools = useMemo(() => [...new Set(graph.nodes.map((n) => n.executor).filter((name) => name !== null))], [graph]);
  const box = useRef();
  const [view, setView] = useState({ x: 0, y: 0, k: 1 });
  const touched = useRef(false);

  /** Show all of it; at first no smaller than can be read. */
  const fit = useCallback((least = ZOOM.least) => {
    const { clientWidth: w, clientHeight: h } = box.current;
    const k = Math.max(least, Math.min(ZOOM.fit, w / drawn.width, h / drawn.height));
    setView({ k, x: (w - drawn.width * k) / 2, y: Math.max(0, (h - drawn.height * k) / 2) });
    touched.current = false;
  }, [drawn]);
  useLayoutEffect(() => fit(ZOOM.first), [fit]);
  useEffect(() => {
    const observer = new ResizeObserver(() => !touched.current && box.current && fit(ZOOM.first));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [fit]);

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

  const counts = useMemo(() => dotsOf(dots ? live : null, drawn.edges), [live, drawn, dots]);
  return html`<div class="graph-view" ref=${box} onPointerDown=${pan} onDblClick=${() => fit()} onClick=${(e) => e.target.closest("[data-press]") || onSelect(null)}>
    <svg role="group" aria-label="The graph" width="100%" height="100%">
      <g transform=${`translate(${view.x},${view.y}) scale(${view.k})`}>
        ${drawn.edges.map((edge) => html`<${Edge} key=${edge.id} edge=${edge} live=${live} dots=${counts.get(edge.id)} selected=${selected?.stream === edge.name && edge.kind !== "side"} onSelect=${onSelect} />`)}
        ${drawn.edges.map((edge) => edge.named && html`<${EdgeName} key=${edge.id} edge=${edge} live=${live} selected=${selected?.stream === edge.name} onSelect=${onSelect} />`)}
        ${drawn.lugs.map((lug) => html`<${Lug} key=${lug.id} lug=${lug} />`)}
        ${drawn.nodes.map((node) => html`<${NodeBox} key=${node.id} node=${node} pool=${pools.indexOf(node.executor)} live=${live?.nodes[node.name]} engine=${engineState(node, live)} selected=${selected?.node === node.name} onSelect=${onSelect} onStep=${step} />`)}
      </g>
    </svg>
    ${pools.length > 0 && html`<p class="graph-pools small" aria-label="Where nodes run"><span><i></i>event loop</span>${pools.map((name, i) => html`<span key=${name}><i class=${`pool-${i % POOLS}`}></i>threads${name ? `: ${name}` : ""}${threads(graph.executors[name])}</span>`)}</p>`}
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
function EdgeName({ edge, live, selected, onSelect }) {
  const now = live?.streams[edge.name]?.rate ?? 0;
  const press = (event) => {
    event.stopPropagation();
    onSelect({ stream: edge.name });
  };
  return html`<text class="edge-name ${selected ? "selected" : ""}" x=${edge.label.x} y=${edge.label.y} data-press onClick=${press}>${edge.name}${now > 0 ? ` · ${rate(now)}/s` : ""}</text>`;
}

const Lug = ({ lug }) =>
  html`<g class="lug ${lug.kind}" transform=${`translate(${lug.x},${lug.y})`}>
    <rect width=${lug.width} height=${lug.height} rx="13" /><text x=${lug.width / 2} y="17">${lug.text}</text>
  </g>`;

const threads = (count) => (count > 0 ? ` (${count})` : "");

function NodeBox({ node, pool, live, engine, selected, onSelect, onStep }) {
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
  const hot = live?.share > 0.001 ? live.share : 0;
  const foot = engine ? `engine ${engine}` : live?.rate > 0 ? `${rate(live.rate)}/s · p95 ${seconds(live.p95)}` : live?.errors ? "" : "idle";
  const inner = node.width - 24;
  return html`<g class="node family-${node.family} ${pool < 0 ? "" : `pool-${pool % POOLS}`} ${selected ? "selected" : ""} ${engine ? "stopped" : ""}" transform=${`translate(${node.x},${node.y})`} data-press data-node=${node.id}
      role="button" tabindex="0" aria-label=${`${node.name}, ${node.calculator}, ${foot}`} onClick=${(e) => { e.stopPropagation(); press(); }} onKeyDown=${onKey}>
    <title>${`${node.name}\n${node.calculator}`}</title>
    <rect class="node-body" width=${node.width} height=${node.height} rx="8" />
    <rect class="node-hot" width=${node.width} height=${node.height} rx="8" style=${{ opacity: hot }} />
    <path class="node-head" d=${`M0,8a8,8 0 0 1 8,-8H${node.width - 8}a8,8 0 0 1 8,8v14H0z`} />
    ${node.top.map((port) => html`<g key=${port.port + port.side}><circle class="port ${port.side ? "side" : ""}" cx=${port.x} cy="0" r="3.5" /><text class="port-name" x=${port.x} y="15">${port.label}</text></g>`)}
    <text class="node-name" x="12" y="40">${cut(node.name, inner, 7.6)}</text>
    <text class="node-calculator" x="12" y="55">${cut(node.calculator, inner, 6.3)}</text>
    <text class="node-foot" x="12" y="71">${foot}</text>
    ${live?.errors > 0 && html`<text class="node-errors" x=${node.width - 12} y="71">${live.errors} failed</text>`}
    ${node.bottom.map((port) => html`<g key=${port.port + port.side}><text class="port-name" x=${port.x} y=${node.height - 7}>${port.label}</text><circle class="port ${port.side ? "side" : ""}" cx=${port.x} cy=${node.height} r="3.5" /></g>`)}
  </g>`;
}
