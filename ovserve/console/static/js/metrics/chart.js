// One panel: a title, the newest value, a plot by uPlot and a legend with values.

import uPlot from "../../vendor/uplot.js";
import { html, useEffect, useMemo, useRef } from "../../vendor/ui.js";
import { clock } from "../format.js";
import { theme, useStore } from "../session.js";

const BACK = 10; // seconds between the two readings that make a rate
const PARTS = 300; // points drawn at most

/** Colours of the page, as a canvas needs them: custom properties are not resolved there. */
function colours(box, count) {
  const probe = document.createElement("i");
  box.append(probe);
  const read = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const found = { text: read("--muted"), grid: read("--border"), accent: read("--accent"), bad: read("--bad"), series: [] };
  for (let i = 0; i < count; i += 1) {
    probe.className = `s${i}`;
    found.series.push(read("--series"));
  }
  probe.remove();
  return found;
}

/** A line at each reload and each end of an engine. */
function drawMarks(u, marks, ink) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = Math.round(u.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ink[mark.tone];
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

const times = (u, values, _, __, step) => values.map((v) => clock(v * 1000).slice(0, step < 60 ? 8 : 5));

function pointsOf(panel, samples, span, model) {
  const want = { name: model };
  const newest = samples.at(-1);
  const list = panel.series.flatMap((s) => (s.many ? s.many(newest, want) : [s]));
  const from = newest.at - span;
  const shown = samples.filter((s) => s.at >= from);
  const step = Math.max(1, Math.ceil(shown.length / PARTS));
  const times = [];
  const rows = list.map(() => []);
  let older = 0;
  for (let i = (shown.length - 1) % step; i < shown.length; i += step) {
    const now = shown[i];
    const start = samples.length - shown.length + i;
    while (samples[older + 1] && samples[older + 1].at <= now.at - BACK) older += 1;
    const before = older < start && now.at - samples[older].at < BACK * 2.5 ? samples[older] : samples[Math.max(0, start - 1)];
    times.push(now.at);
    list.forEach((series, k) => rows[k].push(series.value(before, now, want)));
  }
  return { list, data: [times, ...rows], from, to: newest.at };
}

export function Chart({ panel, samples, span, marks, model, tick }) {
  const marked = useRef(marks);
  marked.current = marks;
  const box = useRef();
  const plot = useRef(null);
  const mode = useStore(theme);
  const { list, data, from, to } = useMemo(() => pointsOf(panel, samples, span, model), [tick, span, model]);
  const names = list.map((s) => s.label).join("|");
  const last = list.map((_, k) => data[k + 1].at(-1));
  const empty = data.slice(1).every((row) => row.every((v) => v === null));

  useEffect(() => {
    const ink = colours(box.current, list.length);
    const axis = { stroke: ink.text, grid: { stroke: ink.grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const format = (u, values) => values.map((v) => (v === null ? "" : panel.unit(v)));
    plot.current = new uPlot(
      {
        width: box.current.clientWidth,
        height: box.current.clientHeight,
        padding: [8, 26, 0, 0],
        legend: { show: false },
        hooks: { draw: [(u) => drawMarks(u, marked.current, ink)] },
        cursor: { y: false, points: { size: 6 } },
        scales: { x: { time: true }, y: { range: panel.range ?? ((u, low, high) => [0, high > 0 ? high * 1.1 : 1]) } },
        axes: [{ ...axis, size: 24, space: 70, grid: { show: false }, values: times }, { ...axis, size: 62, space: 32, values: format }],
        series: [{}, ...list.map((s, i) => ({ label: s.label, stroke: ink.series[i % ink.series.length], width: 1.5, points: { show: false }, spanGaps: false }))],
      },
      data,
      box.current,
    );
    const observer = new ResizeObserver(() => box.current && plot.current?.setSize({ width: box.current.clientWidth, height: box.current.clientHeight }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [names, mode]);
  useEffect(() => {
    plot.current?.setData(data, false);
    plot.current?.setScale("x", { min: from, max: to });
  }, [data]);

  const show = (v) => (v === null || v === undefined ? "–" : panel.unit(v));
  return html`<section class="card chart" aria-label=${`${panel.title}: ${list.map((s, i) => `${s.label} ${show(last[i])}`).join(", ")}`}>
    <header><h2>${panel.title}</h2>${list.length > 0 && html`<span class="now num">${show(last[0])}</span>`}</header>
    <div class="chart-plot" ref=${box}>${empty && html`<div class="chart-none"><span>nothing in this time</span></div>`}</div>
    <div class="legend">${list.map((s, i) => html`<span key=${s.label} class=${`s${i}`}><i></i>${s.label} <b class="num">${show(last[i])}</b></span>`)}</div>
  </section>`;
}
