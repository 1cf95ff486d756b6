// The panel beside a chat: parameters as the server describes them, tools and format, the prompt before it is
// sent, and the same request as code.

import { html, useEffect, useMemo, useState } from "../../vendor/ui.js";
import { send } from "../api.js";
import { CopyButton, Details, Failure, Skeleton, Tabs } from "../parts.js";
import { count } from "../format.js";
import { Tokens } from "../tokens.js";
import { useStore } from "../session.js";
import { curl, json, python } from "./code.js";
import { responsesBody } from "./responses.js";
import { Parameter } from "./parameter.js";
import { draft } from "./shared.js";
import { body, path } from "./tree.js";

const GROUPS = [
  ["Length", ["max_completion_tokens", "min_tokens", "stop", "ignore_eos"]],
  ["Sampling", ["temperature", "top_p", "top_k", "min_p", "seed"]],
  ["Repetition", ["repetition_penalty", "frequency_penalty", "presence_penalty"]],
  ["Reasoning", ["reasoning_effort", "chat_template_kwargs"]],
  ["Choices", ["n", "logprobs", "top_logprobs"]],
];
// Set by the page itself, elsewhere in this panel, or an older name of another parameter.
const HIDDEN = /^(model|messages.*|stream.*|tools|response_format|functions|function_call|structured_outputs\..*|guided_.*|max_tokens|continue_final_message|add_generation_prompt)$/;

function Parameters({ chat, rows, onChange }) {
  const known = useMemo(() => new Map(rows.map((row) => [row.name, row])), [rows]);
  const grouped = new Set(GROUPS.flatMap(([, names]) => names));
  const rest = rows.filter((row) => !grouped.has(row.name) && (!HIDDEN.test(row.name) || chat.params[row.name] !== undefined) && !row.name.includes("."));
  const set = (name, value) => {
    const params = { ...chat.params };
    if (value === undefined) delete params[name];
    else params[name] = value;
    onChange({ params });
  };
  const one = (name) => {
    const row = known.get(name);
    return row && html`<${Parameter} key=${name} row=${row} value=${chat.params[name]} onChange=${(value) => set(name, value)} />`;
  };
  const unknown = Object.keys(chat.params).filter((name) => !known.has(name));
  const inRest = rest.filter((row) => chat.params[row.name] !== undefined).length;
  return html`<div class="parameters">
    <label class="field"><span class="field-name">System prompt</span>
      <textarea rows="3" value=${chat.system} placeholder="None" onInput=${(e) => onChange({ system: e.target.value })}></textarea>
    </label>
    ${GROUPS.map(([word, names]) => {
      const shown = names.filter((name) => known.has(name));
      return shown.length > 0 && html`<section key=${word}><h3>${word}</h3>${shown.map(one)}</section>`;
    })}
    ${rest.length > 0 && html`<${Details} summary=${`${rest.length} more${inRest ? `, ${inRest} set` : ""}`}>${rest.map((row) => one(row.name))}<//>`}
    ${unknown.length > 0 &&
    html`<section><h3>Not known to this model</h3>${unknown.map(
      (name) => html`<div class="field" key=${name}><span class="field-name">${name}</span><code>${JSON.stringify(chat.params[name])}</code>
        <button type="button" class="link" onClick=${() => set(name, undefined)}>Remove</button></div>`,
    )}</section>`}
    ${Object.keys(chat.params).length > 0 && html`<button type="button" class="button" onClick=${() => onChange({ params: {} })}>Back to defaults</button>`}
  </div>`;
}

const EXAMPLE_TOOL = `[
  {
    "type": "function",
    "function": {
      "name": "get_weather",
      "description": "The weather in a city",
      "parameters": {
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"]
      }
    }
  }
]`;
const EXAMPLE_FORMAT = `{
  "type": "object",
  "properties": {
    "name": { "type": "string" },
    "year": { "type": "integer" }
  },
  "required": ["name", "year"],
  "additionalProperties": false
}`;

function JsonBox({ label, hint, value, example, refused, onChange }) {
  let problem = "";
  try {
    if (value.trim()) JSON.parse(value);
  } catch (error) {
    problem = error.message;
  }
  return html`<div class="field">
    <div class="row between"><label class="field-name" for=${`json-${label}`}>${label}</label>
      ${!value && html`<button type="button" class="link" onClick=${() => onChange(example)}>Insert an example</button>`}</div>
    <textarea id=${`json-${label}`} class="mono" rows=${value ? 12 : 4} spellcheck="false" value=${value} placeholder="None" aria-invalid=${Boolean(problem)}
      onInput=${(e) => onChange(e.target.value)}></textarea>
    ${problem ? html`<p class="bad-text small">${problem}</p>` : html`<p class="muted small">${hint}</p>`}
    ${refused && html`<p class="warn-text small">${refused}</p>`}
  </div>`;
}

const refusedWhy = (row) => (row && /refused|rejected/.test(row.status) ? `Rejected by this model: ${row.why}` : "");

/** The MCP servers that the graph lists; tools of those that are chosen run in the server, without a question. */
function McpServers({ chat, capabilities, onChange }) {
  const labels = (capabilities?.nodes ?? []).flatMap((node) => node.facts.mcp_servers ?? []);
  const chosen = chat.mcp ?? [];
  const set = (label, on) => onChange({ mcp: on ? [...chosen, label] : chosen.filter((one) => one !== label) });
  return labels.length > 0 && html`<fieldset class="field"><legend class="field-name">MCP servers</legend>
    ${labels.map((label) => html`<label class="check" key=${label}><input type="checkbox" checked=${chosen.includes(label)} onChange=${(e) => set(label, e.target.checked)} /> ${label}</label>`)}
    <p class="muted small">The model may call their tools; the server runs the calls without asking.</p>
  </fieldset>`;
}

const ToolsAndFormat = ({ chat, rows, capabilities, onChange }) => {
  const row = (name) => rows.find((r) => r.name === name);
  return html`<div class="parameters">
    <${McpServers} ...${{ chat, capabilities, onChange }} />
    <${JsonBox} label="Tools" hint="An array of functions, as in the API. Their calls are shown as cards, and you fill in the results."
      value=${chat.tools} example=${EXAMPLE_TOOL} refused=${refusedWhy(row("tools"))} onChange=${(tools) => onChange({ tools })} />
    <${JsonBox} label="Response format" hint="A JSON schema, or a whole response_format. The answer is forced to match it."
      value=${chat.format} example=${EXAMPLE_FORMAT} refused=${refusedWhy(row("response_format"))} onChange=${(format) => onChange({ format })} />
  </div>`;
};

const writing = ({ text, files }) => Boolean(text || files.length);

/** The last message of the next request: the one that is being written, or else the last of the chat. */
function next(chat, written) {
  const last = path(chat).at(-1) ?? chat.nodes.root;
  return writing(written) ? { role: "user", parent: last.id, ...written } : last;
}

/** The prompt of the message that is being written, as the model's template renders it, with its tokens. */
function Prompt({ chat, version }) {
  const [state, setState] = useState({});
  const written = useStore(draft);
  const parent = next(chat, written);
  useEffect(() => {
    let current = true;
    const timer = setTimeout(async () => {
      try {
        const made = body(chat, parent);
        if (!made.messages.length) {
          if (current) setState({ empty: true });
        } else {
          const rendered = await send("console/api/render", { model: chat.model, endpoint: "chat/completions", body: made });
          if (current) setState({ rendered });
        }
      } catch (error) {
        if (current) setState({ error });
      }
    }, 250);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [version, chat.id, written]);
  if (state.empty) return html`<p class="muted">The prompt is shown here while you write, before anything is sent. Write a message, or a system prompt.</p>`;
  if (state.error) return html`<${Failure} error=${state.error} title="The prompt could not be rendered" />`;
  if (!state.rendered) return html`<${Skeleton} lines=${8} />`;
  const { rendered } = state;
  return html`<div class="prompt-view">
    <div class="row between"><span><b class="num">${count(rendered.tokens)}</b> tokens</span><${CopyButton} text=${rendered.prompt} label="Copy the prompt" /></div>
    ${rendered.ignored?.length > 0 && html`<p class="warn-text small">Without effect: ${rendered.ignored.join(", ")}</p>`}
    ${rendered.adapted?.length > 0 && html`<p class="warn-text small">Rearranged for the chat template: ${rendered.adapted.join(", ")}</p>`}
    <${Tokens} ids=${rendered.ids} pieces=${rendered.pieces} text=${rendered.prompt} />
  </div>`;
}

const MOST_CODE = 20000; // characters drawn; what is copied is whole

function Code({ chat }) {
  const [kind, setKind] = useState("curl");
  const written = useStore(draft);
  let made;
  try {
    made = request(chat, writing(written) ? next(chat, written) : path(chat).findLast((node) => node.role !== "assistant") ?? chat.nodes.root);
  } catch (error) {
    return html`<${Failure} error=${error} title="The request is not complete" />`;
  }
  const text = { curl, python, json }[kind](made);
  return html`<div class="code-view">
    <${Tabs} label="Language" tabs=${[["curl", "curl"], ["python", "Python"], ["json", "JSON"]]} value=${kind} onChange=${setKind} />
    <div class="code"><div class="code-head"><span>the next request</span><${CopyButton} text=${text} label="Copy the code" /></div><pre tabindex="0"><code>${text.length > MOST_CODE ? `${text.slice(0, MOST_CODE)}…` : text}</code></pre></div>
  </div>`;
}

/** The next request, whichever API it goes to. Throws as `body`. */
const request = (chat, node) => (chat.mcp?.length ? responsesBody(body(chat, node), chat.mcp) : body(chat, node));

export function Panel({ chat, capabilities, version, onChange }) {
  const [tab, setTab] = useState("parameters");
  const endpoint = capabilities?.endpoints?.find((e) => e.endpoint === "chat/completions");
  const rows = endpoint?.parameters ?? [];
  const shared = { chat, rows, capabilities, version, onChange };
  const tabs = [["parameters", "Parameters"], ["tools", "Tools"], ["prompt", "Prompt"], ["code", "Code"]];
  return html`<div class="panel">
    <${Tabs} label="Settings of the chat" tabs=${tabs} value=${tab} onChange=${setTab} />
    <div class="panel-body" role="tabpanel">
      ${tab === "parameters" && html`<${Parameters} ...${shared} />`}
      ${tab === "tools" && html`<${ToolsAndFormat} ...${shared} />`}
      ${tab === "prompt" && html`<${Prompt} ...${shared} />`}
      ${tab === "code" && html`<${Code} ...${shared} />`}
    </div>
  </div>`;
}
