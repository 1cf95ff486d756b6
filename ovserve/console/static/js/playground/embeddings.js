// Embeddings: how alike texts are, as the cosine of each pair.

import { html, useState } from "../../vendor/ui.js";
import { count } from "../format.js";
import { Card, curlJson, Field, given, known, post, Raw, RunForm, useRun } from "./parts.js";

const EXAMPLE = "A cat sat on the mat.\nA kitten rested on the rug.\nThe stock market fell today.\nShares lost value on Monday.";
const MOST = 40; // rows drawn
export const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

export function Embeddings({ model, parameters, capabilities }) {
  const [text, setText] = useState(EXAMPLE);
  const [dimensions, setDimensions] = useState("");
  const run = useRun();
  const full = capabilities.engines?.[0]?.facts?.dimensions;
  const body = () => given({ model, input: lines(text), dimensions: dimensions === "" ? undefined : Number(dimensions) });
  const work = async (signal) => {
    const sent = body();
    const { response, id } = await post("v3/embeddings", sent, signal);
    return { id, texts: sent.input, value: await response.json() };
  };
  const { result } = run.state;
  const rows = result?.value.data;
  const size = rows?.[0]?.embedding?.length;
  return html`<${RunForm} run=${run} work=${work} ready=${lines(text).length > 0} word="Compare" code=${() => curlJson("v3/embeddings", body())}>
      <${Field} label="Texts, one a line"><textarea rows="6" value=${text} onInput=${(e) => setText(e.target.value)}></textarea><//>
      ${known(parameters, "dimensions") && html`<div class="fields"><${Field} label="Dimensions"><input type="number" min="1" max=${full} placeholder=${full ?? "all"} value=${dimensions} onInput=${(e) => setDimensions(e.target.value)} /><//></div>`}
    <//>
    ${Array.isArray(rows?.[0]?.embedding) && html`<${Card} title="Similarity" about=${`${count(rows.length)} vectors of ${count(size)} numbers${result.value.usage ? `, ${count(result.value.usage.total_tokens)} tokens` : ""}`}>
      <${Matrix} rows=${rows} texts=${result.texts} /><//>`}
    ${result && html`<${Raw} value=${result.value} />`}`;
}

/** The cosine of each pair; the nearest other text of each row is marked. */
function Matrix({ rows, texts }) {
  const vectors = rows.slice(0, MOST).map((row) => row.embedding);
  const norms = vectors.map((v) => Math.sqrt(dot(v, v)));
  const cosines = vectors.map((v, i) => vectors.map((w, j) => dot(v, w) / (norms[i] * norms[j] || 1)));
  const nearest = cosines.map((row, i) => row.reduce((best, value, j) => (j !== i && (best < 0 || value > row[best]) ? j : best), -1));
  return html`<div class="table-wrap" tabindex="0" role="region" aria-label="Similarity"><table class="similar">
      <thead><tr><th></th>${vectors.map((_, j) => html`<th key=${j} scope="col" class="right num" title=${texts[j]}>${j + 1}</th>`)}</tr></thead>
      <tbody>${cosines.map((row, i) => html`<tr key=${i}><th scope="row" title=${texts[i]}><span class="muted num">${i + 1}</span> ${texts[i]}</th>${row.map(
        (value, j) => html`<td key=${j} class="right num ${j === nearest[i] ? "nearest" : ""} ${i === j ? "muted" : ""}" title=${`${texts[i]} / ${texts[j]}`}
          style=${{ background: i === j ? "transparent" : `color-mix(in srgb, var(--accent) ${Math.round(Math.max(0, value) * 40)}%, transparent)` }}>${value.toFixed(2)}</td>`,
      )}</tr>`)}</tbody>
    </table></div>
    <p class="muted small card-note">1 is the same direction, 0 unrelated. The most similar other text of each row is bold.${rows.length > MOST ? ` The first ${MOST} of ${count(rows.length)} texts.` : ""}</p>`;
}
