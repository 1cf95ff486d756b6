// A request as curl, as Python with the openai package, and as JSON.

import { ROOT } from "../api.js";
import { session } from "../session.js";
import { pretty } from "../format.js";

const base = () => `${location.origin}${ROOT}v3`;
const quoted = (text) => text.replaceAll("'", "'\\''");

export const json = (body) => pretty(body);

export function curl(body) {
  const key = session.value.who?.keys_required ? "  -H 'Authorization: Bearer '\"$API_KEY\" \\\n" : "";
  const stream = { ...body, stream: true };
  return `curl -N ${base()}/${body.input ? "responses" : "chat/completions"} \\\n  -H 'Content-Type: application/json' \\\n${key}  -d '${quoted(pretty(stream))}'`;
}

// Parameters that the openai package has as arguments; others go into extra_body.
const OF_OPENAI = new Set(["model", "messages", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
  "max_completion_tokens", "max_tokens", "n", "parallel_tool_calls", "presence_penalty", "reasoning_effort", "response_format",
  "seed", "stop", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user"]);
const OF_RESPONSES = new Set(["model", "input", "tools", "text", "reasoning", "max_output_tokens", "store", "temperature", "top_p", "tool_choice", "parallel_tool_calls", "user"]);

const OF_CHUNKS = `for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
`;
const OF_EVENTS = `for event in stream:
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
`;

export function python(body) {
  const names = body.input ? OF_RESPONSES : OF_OPENAI;
  const own = Object.entries(body).filter(([name]) => names.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !names.has(name) && name !== "stream"));
  const lines = own.map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra, 1)},`);
  const key = session.value.who?.keys_required ? 'os.environ["API_KEY"]' : '"none"';
  const imports = session.value.who?.keys_required ? "import os\n\n" : "";
  return `${imports}from openai import OpenAI

client = OpenAI(base_url="${base()}", api_key=${key})
stream = client.${body.input ? "responses" : "chat.completions"}.create(
${lines.join("\n")}
    stream=True,
)
${body.input ? OF_EVENTS : OF_CHUNKS}`;
}

function literal(value, depth) {
  const pad = "    ".repeat(depth);
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((v) => `${pad}    ${literal(v, depth + 1)},`).join("\n")}\n${pad}]`;
  }
  if (typeof value === "object") {
    const rows = Object.entries(value).map(([k, v]) => `${pad}    ${JSON.stringify(k)}: ${literal(v, depth + 1)},`);
    return rows.length ? `{\n${rows.join("\n")}\n${pad}}` : "{}";
  }
  return JSON.stringify(value);
}
