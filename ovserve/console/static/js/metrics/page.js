// Metrics: the last fifteen minutes, which the server keeps, and /metrics once a second while the page is open.

import { html, useEffect, useMemo, useReducer, useState } from "../../vendor/ui.js";
import { call, get } from "../api.js";
import { clock } from "../format.js";
import { Empty, Failure, Pill, Skeleton } from "../parts.js";
import { ModelPicker } from "../picker.js";
import { session, useStore } from "../session.js";
import { Chart } from "./chart.js";
import { PANELS } from "./panels.js";
import { marksOf, parse, unpack } from "./prometheus.js";

const EVERY = 1000; // ms
const SPAN = 15 * 60; // seconds

const samples = []; // { at, values }: kept while other pages are shown
const MOST_MARKS = 12; // named above the charts; all are drawn
const SPANS = [[60, "1 min"], [300, "5 min"], [900, "15 min"]];

/** Take over what the server has kept, also of the time in which this page was not shown. */
async function recall() {
  const kept = unpack(await get("console/api/metrics", { admin: true }));
  if (kept.length) samples.splice(0, samples.length, ...kept);
}

async function take() {
  const response = await call("metrics", { admin: true });
  const at = Date.now() / 1000;
  samples.push({ at, values: parse(await response.text()) });
  while (samples.length && samples[0].at < at - SPAN) samples.shift();
}

export default function MetricsPage() {
  const { models } = useStore(session);
  const [error, setError] = useState(null);
  const [, again] = useReducer((n) => n + 1, 0);
  const [span, setSpan] = useState(300);
  const [model, setModel] = useState("");
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let behind = true;
    const loop = async () => {
      if (document.hidden) behind = true;
      else {
        try {
          if (behind) await recall();
          behind = false;
          await take();
          setError(null);
        } catch (failure) {
          setError(failure);
        }
        if (!stopped) again();
      }
      if (!stopped) timer = setTimeout(loop, EVERY);
    };
    loop();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, []);
  const marks = useMemo(() => marksOf(samples), [samples.at(-1)?.at]);
  const from = samples.length ? samples.at(-1).at - span : 0;
  const shown = marks.filter((m) => m.at >= from);
  const off = error?.status === 404;
  return html`<main class="page" id="main" tabindex="-1">
    <header class="page-head"><h1>Metrics</h1><span class="grow"></span>
      ${models?.length > 1 && html`<${ModelPicker} models=${models} value=${model} none="All models" label="Model" onPick=${setModel} />`}
      <div class="segments" role="group" aria-label="Time shown">${SPANS.map(([s, word]) => html`<button key=${s} type="button" aria-pressed=${span === s} onClick=${() => setSpan(s)}>${word}</button>`)}</div>
    </header>
    <div class="page-body" tabindex="0"><div class="page-inner">
      ${off && html`<${Empty} icon="metrics" title="Metrics are switched off">Start the server with --metrics_enable true.<//>`}
      ${error && !off && html`<${Failure} error=${error} title="The metrics could not be read; trying again" />`}
      ${!samples.length && !error && html`<${Skeleton} lines=${8} />`}
      ${shown.length > 0 && !off && html`<ul class="marks" aria-label="Reloads and engines that ended">${shown.slice(-MOST_MARKS).map((m, i) => html`<li key=${i}><${Pill} tone=${m.tone}><span class="num">${clock(m.at * 1000)}</span><span>${m.text}</span><//></li>`)}</ul>`}
      ${samples.length > 0 && !off && html`<div class="charts">${PANELS.map((panel) => html`<${Chart} key=${panel.title} panel=${panel} samples=${samples} span=${span} marks=${marks} model=${model} tick=${samples.at(-1).at} />`)}</div>`}
    </div></div>
  </main>`;
}
