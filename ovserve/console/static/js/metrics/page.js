// Metrics: the last fifteen minutes of /metrics, read once a second while the page is open.

import { html, useEffect, useReducer, useState } from "../../vendor/ui.js";
import { call } from "../api.js";
import { Empty, Failure, Skeleton } from "../parts.js";
import { ModelPicker } from "../picker.js";
import { session, useStore } from "../session.js";
import { Chart } from "./chart.js";
import { PANELS } from "./panels.js";
import { parse } from "./prometheus.js";

const EVERY = 1000; // ms
const SPAN = 15 * 60; // seconds

const samples = []; // { at, values }: kept while other pages are shown
const SPANS = [[60, "1 min"], [300, "5 min"], [900, "15 min"]];

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
  const [span, setSpan] = useState(60);
  const [model, setModel] = useState("");
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const loop = async () => {
      if (!document.hidden) {
        try {
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
      ${samples.length > 0 && !off && html`<div class="charts">${PANELS.map((panel) => html`<${Chart} key=${panel.title} panel=${panel} samples=${samples} span=${span} model=${model} tick=${samples.at(-1).at} />`)}</div>`}
    </div></div>
  </main>`;
}
