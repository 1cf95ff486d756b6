// A chat over the Responses API, where the server runs tools of the graph's MCP servers: the request, and its
// events as the chunks of a chat completion.

import { ApiError } from "../api.js";

const PARTS = { text: "input_text", image_url: "input_image", file: "input_file" };

/** The same request for the Responses API. `labels`: MCP servers whose tools run without a question. */
export function responsesBody(made, labels) {
  const { messages, max_completion_tokens, max_tokens, n, response_format, reasoning_effort, tools = [], ...rest } = made;
  if (n > 1) throw new ApiError("n: with tools of MCP servers there is one answer, not several.");
  const most = max_completion_tokens ?? max_tokens;
  return {
    ...rest,
    input: messages.flatMap(items),
    tools: [
      ...labels.map((server_label) => ({ type: "mcp", server_label, require_approval: "never" })),
      ...tools.map(({ function: fn, ...tool }) => ({ ...tool, ...fn })),
    ],
    ...(most !== undefined && { max_output_tokens: most }),
    ...(reasoning_effort !== undefined && { reasoning: { effort: reasoning_effort } }),
    ...(response_format && { text: { format: { ...response_format.json_schema, type: response_format.type } } }),
    store: false,
    stream: true,
  };
}

function items({ role, content, tool_calls: calls = [], tool_call_id }) {
  if (role === "tool") return [{ type: "function_call_output", call_id: tool_call_id, output: content }];
  const own = content ? [{ role, content: Array.isArray(content) ? content.map(part) : content }] : [];
  return [...own, ...calls.map((c) => ({ type: "function_call", call_id: c.id, name: c.function.name, arguments: c.function.arguments }))];
}

const part = ({ type, text, image_url: image, file }) => ({
  type: PARTS[type] ?? type,
  ...(text !== undefined && { text }),
  ...(image && { image_url: image.url, detail: image.detail ?? "auto" }),
  ...file,
});

const delta = (value, finish_reason) => ({ choices: [{ index: 0, delta: value, finish_reason }] });

/** An event as a chunk of a chat completion; null if nothing of it is shown. Throws ApiError. */
export function chunkOf(event, calls) {
  const { type, item, response } = event;
  if (type === "error") throw new ApiError(event.message, event);
  if (type === "response.failed") throw new ApiError(response.error?.message ?? "The answer failed.", response.error ?? {});
  if (type === "response.output_text.delta") return delta({ content: event.delta });
  if (type === "response.reasoning_summary_text.delta") return delta({ reasoning_content: event.delta });
  if (type === "response.output_item.done" && item.type === "mcp_call") {
    const { server_label: server, name, arguments: given, output, error } = item;
    return delta({ ran: { server, name, arguments: given, output: output ?? "", error: error ? error.message ?? JSON.stringify(error) : "" } });
  }
  if (type === "response.output_item.done" && item.type === "function_call") {
    const { call_id: id, name, arguments: given } = item;
    return delta({ tool_calls: [{ index: calls, id, function: { name, arguments: given } }] });
  }
  if (type !== "response.completed" && type !== "response.incomplete") return null;
  const { usage } = response;
  const finish = type === "response.incomplete" ? (response.incomplete_details?.stop_reason ?? "length") : calls ? "tool_calls" : "stop";
  return {
    ...delta({}, finish),
    usage: usage && { prompt_tokens: usage.input_tokens, completion_tokens: usage.output_tokens, prompt_tokens_details: usage.input_tokens_details },
  };
}
