// Batches: how far each one is, what failed, its files, and to end it. The calls are those of OpenAI's API.

import { html, useRef, useState } from "../../vendor/ui.js";
import { call, get, send } from "../api.js";
import { age, count, rate, seconds } from "../format.js";
import { Confirm, Empty, Failure, Icon, Pill, Skeleton } from "../parts.js";
import { usePolling } from "../session.js";

const POLL = 1000; // ms
const PACE = 30000; // ms over which lines per second are counted
const SHOWN = 50;
const LIVING = ["validating", "in_progress", "finalizing", "cancelling"];
const TONES = { completed: "good", failed: "bad", expired: "warn", cancelled: "", in_progress: "warn" };

/** The batches, with samples of the lines that were done at the last polls. */
function useBatches() {
  const [state, setState] = useState({});
  const samples = useRef({});
  const load = () =>
    get(`console/api/batches?limit=${SHOWN}`).then(
      ({ data, has_more: more }) => {
        const now = Date.now();
        const kept = {};
        for (const batch of data) {
          const { completed, failed } = batch.request_counts;
          const sample = { now, lines: completed + failed, tokens: batch.usage.total_tokens };
          kept[batch.id] = [...(samples.current[batch.id] || []), sample].filter((s) => s.now >= now - PACE);
        }
        samples.current = kept;
        setState({ batches: data, more, samples: kept });
      },
      (error) => setState((before) => ({ ...before, error })),
    );
  usePolling(load, POLL);
  return [state, load];
}

export default function BatchesPage() {
  const [{ batches, more, samples, error }, load] = useBatches();
  const [ending, setEnding] = useState(null);
  const [problem, setProblem] = useState(null);
  const cancel = async (batch) => {
    setEnding(null);
    setProblem(null);
    await send(`v1/batches/${batch.id}/cancel`, {}).catch(setProblem);
    load();
  };
  return html`<main class="page" id="main" tabindex="-1">
    <header class="page-head"><h1>Batches</h1></header>
    <div tabindex="0" class="page-body"><div class="page-inner">
      ${error && html`<${Failure} error=${error} title="The batches could not be read" retry=${load} />`}
      ${problem && html`<${Failure} error=${problem} />`}
      ${ending && html`<${Confirm} title="Cancel this batch?" action="Cancel the batch" onNo=${() => setEnding(null)} onYes=${() => cancel(ending)}>
        Lines without a result are not run any more. The results so far can be downloaded.<//>`}
      ${!batches ? !error && html`<${Skeleton} lines=${6} />` : !batches.length
        ? html`<${Empty} icon="batches" title="There is no batch">Upload a file of requests to /v1/files and create a batch with it at /v1/batches.<//>`
        : html`<section class="card"><div class="table-wrap" tabindex="0" role="region" aria-label="Batches"><table>
          <thead><tr><th>Batch</th><th>State</th><th>Lines</th><th class="right wide">Failed</th><th class="right wide">Per second</th><th class="right wide">Time left</th><th><span class="off-screen">Actions</span></th></tr></thead>
          <tbody>${batches.map((batch) => html`<${Row} key=${batch.id} batch=${batch} samples=${samples[batch.id]} onCancel=${setEnding} onProblem=${setProblem} />`)}</tbody>
        </table></div></section>`}
      ${more && html`<p class="muted small">These are the newest ${SHOWN}.</p>`}
    </div></div>
  </main>`;
}

function Row({ batch, samples, onCancel, onProblem }) {
  const { total, completed, failed } = batch.request_counts;
  const done = completed + failed;
  const [first] = samples;
  const last = samples.at(-1);
  const passed = (last.now - first.now) / 1000;
  const pace = batch.status === "in_progress" && passed > 0 ? (last.lines - first.lines) / passed : null;
  const tokens = pace === null ? null : (last.tokens - first.tokens) / passed;
  const errors = batch.errors?.data ?? [];
  const save = (id, kind) => download(id, `${batch.id}_${kind}.jsonl`).catch(onProblem);
  return html`<tr>
    <td class="batch"><code>${batch.id}</code><p class="small muted">${batch.endpoint}${batch.model ? `, ${batch.model}` : ""}, ${age(batch.created_at * 1000)}</p>
      ${errors.slice(0, 3).map((e) => html`<p class="small bad-text" key=${e.line}>${e.line ? `line ${e.line}: ` : ""}${e.message}</p>`)}</td>
    <td><${Pill} tone=${TONES[batch.status] ?? "warn"}><i class="dot"></i>${batch.status.replace("_", " ")}<//></td>
    <td class="num">${count(done)} of ${count(total)}
      <p><progress class="progress" max=${total || 1} value=${done} aria-label="Lines with a result"></progress></p></td>
    <td class="right num wide ${failed ? "bad-text" : ""}">${count(failed)}</td>
    <td class="right num wide">${rate(pace)}${tokens ? html`<p class="small muted">${rate(tokens)} tokens</p>` : ""}</td>
    <td class="right num wide">${pace ? seconds((total - done) / pace) : "–"}</td>
    <td class="right actions batch">
      ${batch.output_file_id && html`<button type="button" class="button small" onClick=${() => save(batch.output_file_id, "output")}><${Icon} name="download" size=${16} />Results</button>`}
      ${batch.error_file_id && html`<button type="button" class="button small" onClick=${() => save(batch.error_file_id, "error")}><${Icon} name="download" size=${16} />Failures</button>`}
      ${LIVING.includes(batch.status) && batch.status !== "cancelling" && html`<button type="button" class="button small" onClick=${() => onCancel(batch)}><${Icon} name="stop" size=${16} />Cancel</button>`}
    </td>
  </tr>`;
}

/** Through fetch and not a link, because a link would not send the key. */
async function download(id, name) {
  const blob = await (await call(`v1/files/${id}/content`)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
