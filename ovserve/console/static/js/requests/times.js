// Where the time of a request went: parsing, queue, prompt, tokens.

import { html } from "../../vendor/ui.js";
import { seconds } from "../format.js";

const PARTS = [["parse", "preparing"], ["queue", "queue"], ["prefill", "prompt"], ["decode", "tokens"]];

/** What the colours of a list of bars mean. */
export const Legend = () =>
  html`<span class="parts-legend">${PARTS.map(([name, words]) => html`<span key=${name}><i class=${`part-${name}`}></i>${words}</span>`)}</span>`;

/** Parts of a request in their order: [name, words, seconds]. */
export function partsOf(row) {
  const end = row.seconds;
  if (row.queued === null || row.queued === undefined) return [["rest", "other", end]];
  const parts = [["parse", "read and rendered", row.queued]];
  const admitted = row.admitted ?? end;
  parts.push(["queue", "queued", admitted - row.queued]);
  if (row.admitted !== null) {
    const first = row.first_token ?? end;
    parts.push(["prefill", "prompt", first - admitted]);
    if (row.first_token !== null) parts.push(["decode", "tokens", end - first]);
  }
  return parts.map(([name, words, s]) => [name, words, Math.max(0, s)]);
}

export function Times({ row }) {
  const parts = partsOf(row);
  const all = parts.reduce((sum, [, , s]) => sum + s, 0) || 1;
  const words = parts.map(([, name, s]) => `${name} ${seconds(s)}`).join(", ");
  return html`<span class="times" role="img" aria-label=${words} title=${words}>
    ${parts.map(([name, , s]) => html`<i key=${name} class=${`part-${name}`} style=${{ width: `${(100 * s) / all}%` }}></i>`)}
  </span>`;
}

export const TimesLegend = ({ row }) =>
  html`<div class="parts-legend">${partsOf(row).map(([name, words, s]) => html`<span key=${name}><i class=${`part-${name}`}></i>${words} <b class="num">${seconds(s)}</b></span>`)}</div>`;
