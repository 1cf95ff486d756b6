// Any other endpoint: its body as JSON, and the answer as it is.

import { html, useState } from "../../vendor/ui.js";
import { pretty } from "../format.js";
import { curlJson, Field, post, Raw, RunForm, useRun, useUrl } from "./parts.js";

const EXAMPLES = { tokenize: { prompt: "Hello there", return_token_strs: true }, detokenize: { tokens: [1, 2, 3] } };

export function Body({ model, endpoint }) {
  const [text, setText] = useState(pretty({ model, ...(EXAMPLES[endpoint] ?? {}) }));
  const run = useRun();
  const work = async (signal) => {
    const { response, id } = await post(`v3/${endpoint}`, JSON.parse(text), signal);
    const type = response.headers.get("content-type") || "";
    if (/^(audio|image|video)\//.test(type)) return { id, blob: await response.blob(), kind: type.split("/")[0] };
    return { id, value: type.startsWith("application/json") ? await response.json() : await response.text() };
  };
  const { result } = run.state;
  const url = useUrl(result?.blob);
  const code = () => {
    try {
      return curlJson(`v3/${endpoint}`, JSON.parse(text));
    } catch {
      return text;
    }
  };
  return html`<${RunForm} run=${run} work=${work} code=${code}>
      <${Field} label="Body"><textarea rows="12" class="mono" spellcheck="false" value=${text} onInput=${(e) => setText(e.target.value)}></textarea><//>
    <//>
    ${url && result.kind === "audio" && html`<audio controls src=${url}></audio>`}
    ${url && result.kind === "image" && html`<img class="playground-image" src=${url} alt="The answer" />`}
    ${typeof result?.value?.text === "string" && html`<p class="playground-text">${result.value.text}</p>`}
    ${result?.value !== undefined && html`<${Raw} value=${result.value} />`}`;
}
