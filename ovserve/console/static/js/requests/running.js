// The requests in progress, with what each one does and a button that cancels it.

import { html, useState } from "../../vendor/ui.js";
import { send } from "../api.js";
import { count, rate, seconds } from "../format.js";
import { Icon, Pill } from "../parts.js";
import { percent, Progress, speedOf, stageOf, useRunning } from "./stage.js";

const MOST = 50; // rows; more are counted

export function RunningRequests({ endpoint, keys }) {
  const rows = useRunning();
  const [error, setError] = useState(null);
  const cancel = async (row) => {
    setError(null);
    try {
      await send(`console/api/running/${row.number}/cancel`, {}, { admin: true });
    } catch (failure) {
      if (failure.status !== 404) setError(failure); // else it has ended by itself
    }
  };
  if (!rows.length) return null;
  return html`<section class="card">
    <header class="card-head"><h2>In progress <span class="muted num">${count(rows.length)}</span></h2>${error && html`<span class="bad-text small">${error.message}</span>`}</header>
    <div class="table-wrap" tabindex="0" role="region" aria-label="Requests in progress"><table class="requests-table running-table">
      <thead><tr><th>For</th><th>Doing</th><th>Model</th><th class="wide">Endpoint</th>${keys && html`<th class="wide">Key</th>`}
        <th class="right wide">Prompt</th><th class="right wide">Generated</th><th class="right wide">Tokens/s</th><th><span class="off-screen">Cancel</span></th></tr></thead>
      <tbody>${rows.slice(0, MOST).map((row) => html`<${Row} key=${row.number} row=${row} endpoint=${endpoint} keys=${keys} cancel=${cancel} />`)}</tbody>
    </table></div>
    ${rows.length > MOST && html`<p class="muted small card-note">and ${count(rows.length - MOST)} more</p>`}
  </section>`;
}

function Row({ row, endpoint, keys, cancel }) {
  const { word, tone, part } = stageOf(row);
  return html`<tr>
    <td class="num">${seconds(row.seconds)}</td>
    <td><${Pill} tone=${tone}>${word}${part === null ? "" : ` ${percent(part)}`}<//>${part !== null && html` <${Progress} part=${part} label="Prompt read" />`}</td>
    <td class="model" title=${row.model}>${row.model || html`<span class="muted">–</span>`}</td>
    <td class="wide muted">${endpoint(row)}</td>
    ${keys && html`<td class="wide muted">${row.key || "–"}</td>`}
    <td class="right num wide">${row.prompt_tokens ? count(row.prompt_tokens) : "–"}</td>
    <td class="right num wide">${row.generated_tokens ? count(row.generated_tokens) : "–"}</td>
    <td class="right num wide">${rate(speedOf(row))}</td>
    <td class="right actions"><button type="button" class="button small" aria-label=${`Cancel the request to ${row.model || row.path}`} onClick=${() => cancel(row)}><${Icon} name="close" size=${14} /><span class="wide-only">Cancel</span></button></td>
  </tr>`;
}
