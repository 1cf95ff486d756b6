// What a request in progress does at the moment, in words, and how far it has read its prompt.

import { html, useEffect, useState } from "../../vendor/ui.js";
import { follow } from "../api.js";
import { count } from "../format.js";

/** { word, tone, part }: `part` is the part of the prompt that is read, 0 to 1; null where it is not known. */
export function stageOf(row) {
  if (row.queued === null) return { word: "preparing", tone: "", part: null };
  if (row.admitted === null) return { word: "queued", tone: "warn", part: null };
  if (row.first_token !== null) return { word: "generating", tone: "accent", part: null };
  if (!row.prompt_tokens) return { word: "computing", tone: "accent", part: null };
  const known = row.unread_tokens !== null;
  return { word: "reading", tone: "accent", part: known ? 1 - Math.min(1, row.unread_tokens / row.prompt_tokens) : null };
}

/** Tokens per second since the first one; null before the second. */
export const speedOf = (row) => (row.generated_tokens > 1 && row.seconds > row.first_token ? (row.generated_tokens - 1) / (row.seconds - row.first_token) : null);

export const percent = (part) => `${Math.floor(part * 100)} %`;

export const Progress = ({ part, label }) =>
  html`<span class="progress" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.floor(part * 100)}><i style=${{ width: `${part * 100}%` }}></i></span>`;

/** The requests in progress; only that of `id` if it is given. Empty before the first event. */
export function useRunning(id = "", on = true) {
  const [rows, setRows] = useState([]);
  useEffect(() => {
    setRows([]);
    if (!on) return undefined;
    return follow(`console/api/running${id ? `?id=${encodeURIComponent(id)}` : ""}`, (event) => setRows(event.running));
  }, [id, on]);
  return rows;
}

/** While there is no first token: waiting in the queue, or how much of the prompt is read. */
export function Reading({ row }) {
  if (!row || row.first_token !== null) return null;
  const { word, part } = stageOf(row);
  if (word === "queued") return html`<span>waiting in the queue</span>`;
  if (word !== "reading") return null;
  if (part === null) return html`<span>reading <b class="num">${count(row.prompt_tokens)}</b> tokens</span>`;
  return html`<span class="reading"><${Progress} part=${part} label="Prompt read" /><b class="num">${percent(part)}</b> of <b class="num">${count(row.prompt_tokens)}</b> prompt tokens</span>`;
}
