// A chat is a tree of messages: editing a message or asking again adds a branch beside the old one.
//
//   user       { text, files: [{ kind: "image" | "file", name, url } or { kind: "text", name, text }] }
//   assistant  { answers: [{ model, text, reasoning, calls, ran, state, meta }], chosen }   one or several side by side
//   tool       { results: [{ id, name, text }] }                                       the results of its calls
//
// Every node has an id, its parent's, its children in order and the index of the one that is shown.

const ROOT = "root";
let last = 0;
export const newId = () => `${Date.now().toString(36)}${(last++ % 1296).toString(36).padStart(2, "0")}${Math.random().toString(36).slice(2, 6)}`;

export function newChat(model, settings = {}) {
  const now = Date.now();
  return {
    id: newId(), title: "", created: now, updated: now, model, other: "", system: "", params: {}, tools: "", format: "", mcp: [],
    nodes: { [ROOT]: { id: ROOT, parent: null, children: [], pick: 0 } },
    ...settings,
  };
}

export function addNode(chat, parent, node) {
  const made = { id: newId(), parent, children: [], pick: 0, ...node };
  chat.nodes[made.id] = made;
  const above = chat.nodes[parent];
  above.children.push(made.id);
  above.pick = above.children.length - 1;
  return made;
}

/** The nodes that are shown, from the first message to the last. */
export function path(chat) {
  const shown = [];
  for (let node = chat.nodes[ROOT]; node.children.length; ) {
    node = chat.nodes[node.children[node.pick]];
    shown.push(node);
  }
  return shown;
}

export const tip = (chat) => path(chat).at(-1)?.id ?? ROOT;
export const answerOf = (node) => node.answers[node.chosen];

/** Which of its siblings a node is: [index, count]. */
export function siblings(chat, node) {
  const { children } = chat.nodes[node.parent];
  return [children.indexOf(node.id), children.length];
}

export function pick(chat, node, step) {
  const above = chat.nodes[node.parent];
  above.pick = Math.max(0, Math.min(above.children.length - 1, above.pick + step));
}

/** Remove a message with all that follows it, in this branch. */
export function prune(chat, node) {
  const above = chat.nodes[node.parent];
  above.children.splice(above.children.indexOf(node.id), 1);
  above.pick = Math.max(0, Math.min(above.pick, above.children.length - 1));
  const todo = [node.id];
  while (todo.length) {
    const id = todo.pop();
    todo.push(...chat.nodes[id].children);
    delete chat.nodes[id];
  }
}

function userContent(node) {
  if (!node.files?.length) return node.text;
  const parts = node.files.map((file) =>
    file.kind === "text"
      ? { type: "text", text: file.text }
      : file.kind === "image"
      ? { type: "image_url", image_url: { url: file.url, ...(file.detail ? { detail: file.detail } : {}) } }
      : { type: "file", file: { filename: file.name, file_data: file.url } },
  );
  if (node.text) parts.push({ type: "text", text: node.text });
  return parts;
}

export function toolCalls(calls) {
  return calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
}

/** The messages of a request that answers below `node`. `model` chooses whose answer is its past when several
 * stand side by side. */
export function messages(chat, node, model) {
  const chain = [];
  for (let at = node; at && at.id !== ROOT; at = chat.nodes[at.parent]) chain.unshift(at);
  const out = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  for (const each of chain) {
    if (each.raw) out.push(each.raw); // of a replayed request, as it was
    else if (each.role === "user") out.push({ role: "user", content: userContent(each) });
    else if (each.role === "tool") {
      for (const result of each.results) out.push({ role: "tool", tool_call_id: result.id, content: result.text });
    } else {
      const answer = (chat.other && each.answers.find((a) => a.model === model)) || answerOf(each);
      if (!answer.text && !answer.reasoning && !answer.calls.length) continue; // it failed before it began
      const message = { role: "assistant", content: answer.text || (answer.calls.length ? null : "") };
      if (answer.calls.length) message.tool_calls = toolCalls(answer.calls);
      if (answer.reasoning) message.reasoning_content = answer.reasoning;
      out.push(message);
    }
  }
  return out;
}

export class SettingError extends Error {}

function parsed(text, what) {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(`${what}: ${error.message}`);
  }
}

/** The body of a chat completion below `node`. Throws SettingError for tools or a format that are not JSON. */
export function body(chat, node, model = chat.model) {
  const made = { model, messages: messages(chat, node, model), ...chat.params };
  const tools = parsed(chat.tools, "Tools");
  if (tools) made.tools = Array.isArray(tools) ? tools : [tools];
  const format = parsed(chat.format, "Response format");
  if (format) made.response_format = format.type ? format : { type: "json_schema", json_schema: { name: "answer", schema: format } };
  return made;
}

export const streaming = (made) => ({
  ...made,
  stream: true,
  stream_options: { include_usage: true, continuous_usage_stats: true },
});

/** A title from the first message. */
export function title(chat) {
  if (chat.title) return chat.title;
  const first = path(chat).find((node) => node.role === "user");
  const text = (first?.text || first?.files?.[0]?.name || "").trim().split("\n")[0];
  return text.slice(0, 80) || "New chat";
}

const OWN = new Set(["model", "messages", "stream", "stream_options", "tools", "response_format"]);

/** A chat made of the body of a request: its messages, tools, images and parameters stay as they are. */
export function chatOf(source) {
  const chat = newChat(String(source.model || ""));
  const all = [source.messages].flat().filter((message) => message && typeof message === "object"); // one that was rejected too
  if (all[0]?.role === "system" && typeof all[0].content === "string") chat.system = all.shift().content;
  if (source.tools) chat.tools = JSON.stringify(source.tools, null, 2);
  if (source.response_format) chat.format = JSON.stringify(source.response_format, null, 2);
  chat.params = Object.fromEntries(Object.entries(source).filter(([name]) => !OWN.has(name)));
  for (const message of all) addNode(chat, tip(chat), nodeOf(message));
  return chat;
}

function nodeOf(message) {
  if (message.role === "assistant") {
    const calls = (message.tool_calls || []).map((c) => ({ id: c.id, name: c.function?.name, arguments: text(c.function?.arguments) }));
    const reasoning = message.reasoning_content ?? message.reasoning ?? "";
    const answer = { model: "", text: text(message.content), reasoning, calls, state: "done", meta: {} };
    return { role: "assistant", answers: [answer], chosen: 0, raw: message };
  }
  if (message.role === "tool") {
    return { role: "tool", results: [{ id: message.tool_call_id, name: message.name || "", text: text(message.content) }], raw: message };
  }
  const files = [];
  const texts = [];
  for (const part of Array.isArray(message.content) ? message.content : [{ text: message.content }]) {
    if (part.image_url) files.push({ kind: "image", name: "image", url: String(part.image_url.url || part.image_url) });
    else if (part.file) files.push({ kind: "file", name: part.file.filename || "file", url: part.file.file_data });
    else if (part.text) texts.push(part.text);
  }
  return { role: "user", text: texts.join("\n"), files, raw: message };
}

const text = (value) => (typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value));
