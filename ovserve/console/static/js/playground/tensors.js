// Plain models and graphs of tensors: what they take and give, and one inference. Tensors travel as bytes behind
// the JSON (KServe's binary extension), so that an image costs what it is.

import { html, useMemo, useState } from "../../vendor/ui.js";
import { get } from "../api.js";
import { pretty } from "../format.js";
import { Loaded, Tabs } from "../parts.js";
import { Card, Field, post, Raw, RunForm, curlJson, useRun } from "./parts.js";
import { Outputs } from "./outputs.js";
import { decode, encode, example, filled, TYPES } from "./tensor-wire.js";
import { TensorInput } from "./tensor-input.js";

export const Tensors = (props) =>
  html`<${Loaded} ask=${() => get(`v2/models/${encodeURIComponent(props.model)}`)} deps=${[props.model]} title="The model's inputs could not be read">
    ${(about) => html`<${Infer} ...${props} about=${about} />`}<//>`;

/** JSON with lists of plain values in one line. */
const compact = (value) => pretty(value).replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, inner) => `[${inner.replace(/\s*\n\s*/g, " ")}]`);
const shapeText = (shape) => (shape.length ? `[${shape.map((n) => (n < 0 ? "any" : n)).join(", ")}]` : "any");

function Infer({ model, about, capabilities }) {
  const facts = capabilities.engines?.[0]?.facts;
  const layouts = new Map([...(facts?.inputs ?? []), ...(facts?.outputs ?? [])].map((port) => [port.name, port.layout]));
  const [mode, setMode] = useState("form");
  const [inputs, setInputs] = useState(() => about.inputs.map((port) => filled(port)));
  const [text, setText] = useState(() => compact({ inputs: about.inputs.map(example) }));
  const run = useRun();
  const path = `v2/models/${encodeURIComponent(model)}/infer`;
  const work = async (signal) => {
    if (mode === "json") {
      const { response, id } = await post(path, JSON.parse(text), signal);
      return { id, value: await response.json() };
    }
    const { body, headers } = encode(inputs);
    const { response, id } = await post(path, body, signal, headers);
    return { id, value: decode(await response.arrayBuffer(), response.headers.get("inference-header-content-length")) };
  };
  const { result } = run.state;
  const ports = useMemo(() => [["takes", about.inputs], ["gives", about.outputs]], [about]);
  return html`<${Card} title="Tensors" about=${`version${about.versions?.length > 1 ? "s" : ""} ${about.versions?.join(", ")}, ${about.platform}`}>
      <div class="table-wrap" tabindex="0" role="region" aria-label="Tensors"><table><thead><tr><th></th><th>Name</th><th>Datatype</th><th>Shape</th><th>Layout</th></tr></thead><tbody>
        ${ports.map(([word, list]) => list.map((port, i) => html`<tr key=${`${word} ${port.name}`}><td class="muted">${i ? "" : word}</td><td><code>${port.name}</code></td>
          <td><code>${port.datatype === "INVALID" ? "any" : port.datatype}</code></td><td class="num">${shapeText(port.shape)}</td><td class="muted">${layouts.get(port.name) || "–"}</td></tr>`))}
      </tbody></table></div><//>
    <${RunForm} run=${run} work=${work} word="Infer" code=${() => curlJson(path, { inputs: about.inputs.map(example) })}>
      <${Tabs} label="How the inputs are given" tabs=${[["form", "Inputs"], ["json", "JSON"]]} value=${mode} onChange=${setMode} />
      ${mode === "json"
        ? html`<${Field} label="Body"><textarea rows="12" class="mono" spellcheck="false" value=${text} onInput=${(e) => setText(e.target.value)}></textarea><//>`
        : inputs.map((input, i) => html`<${TensorInput} key=${input.name} input=${input} types=${TYPES} layout=${layouts.get(input.name)} onChange=${(next) => setInputs(inputs.map((one, k) => (k === i ? next : one)))} />`)}
    <//>
    ${result?.value.outputs && html`<${Outputs} outputs=${result.value.outputs} />`}
    ${result && mode === "json" && html`<${Raw} value=${result.value} />`}`;
}
