// For models that do not chat: a form for each thing their graph serves, and the answer in a form that fits it.

import { html, useEffect, useState } from "../../vendor/ui.js";
import { Empty, Skeleton } from "../parts.js";
import { Embeddings } from "./embeddings.js";
import { Edits, Generations } from "./images.js";
import { Body } from "./body.js";
import { Rerank } from "./rerank.js";
import { Speech } from "./speech.js";
import { Completions } from "./completions.js";
import { Tensors } from "./tensors.js";
import { Transcriptions } from "./transcriptions.js";

const Talk = ({ model }) => html`<${Empty} icon="mic" title="This model is talked with" action=${html`<a class="button primary" href=${`#/talk/${encodeURIComponent(model)}`}>Open Talk</a>`}>It serves the Realtime API: speech or text, in a session.<//>`;

const OWN = /^[a-z_]+(\/[a-z_]+)?$/; // the server's own paths, not Azure's and KServe's names of them
const KINDS = {
  embeddings: [Embeddings, "Embeddings"],
  rerank: [Rerank, "Rerank"],
  completions: [Completions, "Completion"],
  "audio/transcriptions": [Transcriptions, "Transcription"],
  "audio/translations": [Transcriptions, "Translation"],
  "audio/speech": [Speech, "Speech"],
  "images/generations": [Generations, "Generate"],
  "images/edits": [Edits, "Edit"],
  realtime: [Talk, "Talk"],
};

/** Endpoints of a model that a person can try here. A model without any takes tensors. */
export const tryable = (capabilities) => (capabilities?.endpoints ?? []).filter((e) => e.available && OWN.test(e.endpoint)).map((e) => e.endpoint);

export function Playground({ model, capabilities, problem }) {
  const known = tryable(capabilities).filter((e) => e !== "chat/completions");
  const endpoints = [...known.filter((e) => KINDS[e]), ...known.filter((e) => !KINDS[e])];
  const [endpoint, setEndpoint] = useState("");
  useEffect(() => setEndpoint(""), [model]);
  const shown = endpoints.includes(endpoint) ? endpoint : endpoints[0];
  const about = capabilities?.endpoints?.find((e) => e.endpoint === shown);
  const [Form] = KINDS[shown] ?? [shown ? Body : Tensors];
  return html`<div class="playground" tabindex="0"><div class="playground-inner">
    ${problem && html`<p class="bad-text" role="alert">${problem}</p>`}
    ${!capabilities
      ? html`<${Skeleton} lines=${8} />`
      : html`${endpoints.length > 1 && html`<div class="segments" role="group" aria-label="Endpoint">${endpoints.map((e) => html`<button key=${e} type="button" aria-pressed=${e === shown} onClick=${() => setEndpoint(e)}>${KINDS[e]?.[1] ?? e}</button>`)}</div>`}
        <${Form} key=${`${model} ${shown}`} model=${model} endpoint=${shown} parameters=${about?.parameters ?? []} capabilities=${capabilities} />`}
  </div></div>`;
}

export const NotServed = ({ reason }) => html`<${Empty} icon="warning" title="This model cannot be tried now">${reason || "It is not ready."}<//>`;
