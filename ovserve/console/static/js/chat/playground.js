// For models that do not chat: a form for what their graph serves, and the answer in a form that fits it.

import { html, useEffect, useState } from "../../vendor/ui.js";
import { call } from "../api.js";
import { count, pretty, seconds } from "../format.js";
import { CopyButton, Empty, Failure } from "../parts.js";

const EXAMPLES = {
  embeddings: { input: "A cat sat on the mat.\nA kitten rested on the rug.\nThe stock market fell today." },
  rerank: { query: "Where do cats sleep?", documents: "Cats sleep on warm rugs.\nThe stock market fell today.\nDogs guard the house." },
  tokenize: { prompt: "Hello there", return_token_strs: true },
  detokenize: { tokens: [1, 2, 3] },
  completions: { prompt: "Once upon a time", max_tokens: 60 },
  "audio/speech": { input: "Hello. How can I help?", voice: "default" },
  "images/generations": { prompt: "A lighthouse at night", size: "512x512" },
};
const OWN = /^[a-z_]+(\/[a-z_]+)?$/; // the server's own paths, not Azure's and KServe's names of them
const WITH_FILE = /^(audio\/(transcriptions|translations)|images\/(edits|variations))$/;
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Endpoints of a model that a person can try here. */
export const tryable = (capabilities) => (capabilities?.endpoints ?? []).filter((e) => e.available && OWN.test(e.endpoint)).map((e) => e.endpoint);

const text = (label, name, rows) => ({ label, name, rows });
const FORMS = {
  embeddings: { fields: [text("Texts, one a line", "input", 5)], body: ({ input }) => ({ input: lines(input) }) },
  rerank: { fields: [text("Query", "query", 1), text("Documents, one a line", "documents", 6)], body: ({ query, documents }) => ({ query, documents: lines(documents), return_documents: true }) },
  "audio/speech": { fields: [text("Text", "input", 4), text("Voice", "voice", 1)], body: (values) => values },
  "images/generations": { fields: [text("Prompt", "prompt", 3), text("Size", "size", 1)], body: ({ prompt, size }) => ({ prompt, size, response_format: "b64_json" }) },
};

export function Playground({ model, capabilities }) {
  const endpoints = tryable(capabilities).filter((e) => e !== "chat/completions");
  const [endpoint, setEndpoint] = useState(endpoints[0]);
  const shown = endpoints.includes(endpoint) ? endpoint : endpoints[0];
  if (!shown) return html`<${Empty} icon="chat" title="Nothing of this model can be tried here">Its graph serves no endpoint that the console knows.<//>`;
  return html`<div class="playground" tabindex="0"><div class="playground-inner">
    ${endpoints.length > 1 && html`<div class="segments" role="group" aria-label="Endpoint">${endpoints.map((e) => html`<button key=${e} type="button" aria-pressed=${e === shown} onClick=${() => setEndpoint(e)}>${e}</button>`)}</div>`}
    <${Form} key=${`${model} ${shown}`} model=${model} endpoint=${shown} />
  </div></div>`;
}

function Form({ model, endpoint }) {
  const form = FORMS[endpoint];
  const [values, setValues] = useState(form ? EXAMPLES[endpoint] : { json: pretty({ model, ...(EXAMPLES[endpoint] ?? {}) }) });
  const [file, setFile] = useState(null);
  const [state, setState] = useState({});
  useEffect(() => () => state.result?.url && URL.revokeObjectURL(state.result.url), [state]);
  const send = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    const began = performance.now();
    try {
      const body = bodyOf();
      const response = await call(`v3/${endpoint}`, { method: "POST", body });
      const result = await read(response);
      setState({ result, body, seconds: (performance.now() - began) / 1000, id: response.headers.get("x-request-id") });
    } catch (error) {
      setState({ error });
    }
  };
  const bodyOf = () => {
    if (WITH_FILE.test(endpoint)) {
      const made = new FormData();
      made.append("model", model);
      made.append(endpoint.startsWith("audio") ? "file" : "image", file);
      return made;
    }
    return form ? { model, ...form.body(values) } : JSON.parse(values.json);
  };
  const fields = form?.fields ?? (WITH_FILE.test(endpoint) ? [] : [text("Body", "json", 12)]);
  return html`<form class="playground-form" onSubmit=${send}>
      ${fields.map(({ label, name, rows }) => html`<label class="field" key=${name}><span class="field-name">${label}</span>
        ${rows > 1
          ? html`<textarea rows=${rows} class=${name === "json" ? "mono" : ""} value=${values[name]} onInput=${(e) => setValues({ ...values, [name]: e.target.value })}></textarea>`
          : html`<input value=${values[name]} onInput=${(e) => setValues({ ...values, [name]: e.target.value })} />`}</label>`)}
      ${WITH_FILE.test(endpoint) && html`<label class="field"><span class="field-name">${endpoint.startsWith("audio") ? "Audio file" : "Image file"}</span>
        <input type="file" accept=${endpoint.startsWith("audio") ? "audio/*,video/*" : "image/*"} onChange=${(e) => setFile(e.target.files[0])} /></label>`}
      <div class="row"><button class="button primary" disabled=${state.busy || (WITH_FILE.test(endpoint) && !file)}>${state.busy ? "Sending" : "Send"}</button>
        ${state.seconds !== undefined && html`<span class="muted small"><b class="num">${seconds(state.seconds)}</b>${state.id && html` · <a href=${`#/requests/${state.id}`}>request</a>`}</span>`}</div>
    </form>
    ${state.error && html`<${Failure} error=${state.error} title="No answer" />`}
    ${state.result && html`<${Result} endpoint=${endpoint} result=${state.result} body=${state.body} />`}`;
}

async function read(response) {
  const type = response.headers.get("content-type") || "";
  if (/^(audio|image|video)\//.test(type)) return { kind: type.split("/")[0], url: URL.createObjectURL(await response.blob()) };
  if (type.startsWith("application/json")) return { kind: "json", value: await response.json() };
  return { kind: "text", value: await response.text() };
}

function Result({ endpoint, result, body }) {
  if (result.kind === "audio") return html`<audio controls src=${result.url}></audio>`;
  if (result.kind === "image") return html`<img class="playground-image" src=${result.url} alt="The answer" />`;
  const value = result.value;
  const raw = result.kind === "json" ? pretty(value) : value;
  return html`
    ${endpoint === "embeddings" && Array.isArray(value.data?.[0]?.embedding) && html`<${Similarities} rows=${value.data} texts=${body.input} />`}
    ${endpoint === "rerank" && value.results && html`<${Ranking} results=${value.results} documents=${body.documents} />`}
    ${endpoint.startsWith("images/") && value.data?.map((one, i) => one.b64_json && html`<img key=${i} class="playground-image" src=${`data:image/png;base64,${one.b64_json}`} alt=${`Picture ${i + 1}`} />`)}
    ${typeof value.text === "string" && html`<p class="playground-text">${value.text}</p>`}
    ${value.choices?.[0]?.text !== undefined && html`<p class="playground-text">${value.choices[0].text}</p>`}
    <details class="fold"><summary><span>The answer as JSON</span></summary>
      <div class="code"><div class="code-head"><span>${count(raw.length)} characters</span><${CopyButton} text=${raw} /></div><pre tabindex="0" class="wrapped"><code>${raw.slice(0, 20000)}</code></pre></div></details>`;
}

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** How alike the texts are: the cosine of each pair. */
function Similarities({ rows, texts }) {
  const vectors = rows.map((row) => row.embedding);
  const norms = vectors.map((v) => Math.sqrt(dot(v, v)));
  const cosine = (i, j) => dot(vectors[i], vectors[j]) / (norms[i] * norms[j] || 1);
  return html`<section class="card"><header class="card-head"><h2>Similarity</h2><span class="muted small">${vectors.length} vectors of ${count(vectors[0].length)} numbers</span></header>
    <div class="table-wrap" tabindex="0" role="region" aria-label="Similarity"><table class="similar"><tbody>
      ${vectors.map((_, i) => html`<tr key=${i}><th scope="row" class="cut">${texts[i]}</th>${vectors.map((__, j) => {
        const value = cosine(i, j);
        return html`<td key=${j} class="right num" title=${texts[j]} style=${{ background: `color-mix(in srgb, var(--accent) ${Math.round(Math.max(0, value) * 45)}%, transparent)` }}>${value.toFixed(2)}</td>`;
      })}</tr>`)}
    </tbody></table></div></section>`;
}

function Ranking({ results, documents }) {
  const most = Math.max(...results.map((r) => r.relevance_score), 1e-9);
  return html`<section class="card"><header class="card-head"><h2>Ranking</h2></header><ol class="ranking">
    ${results.map((r) => html`<li key=${r.index}><span class="grow">${documents[r.index]}</span><b class="num">${r.relevance_score.toFixed(3)}</b><i style=${{ width: `${(100 * Math.max(0, r.relevance_score)) / most}%` }}></i></li>`)}
  </ol></section>`;
}
