// Whether a stored or imported chat has the form that tree.js describes: drawing another one would end the page.

const record = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const all = (names, value) => names.every((name) => typeof value[name] === "string");
const ROLES = {
  user: (node) => typeof node.text === "string" && (node.files === undefined || listOf(node.files, isFile)),
  assistant: (node) => listOf(node.answers, isAnswer) && node.answers[node.chosen] !== undefined,
  tool: (node) => listOf(node.results, (r) => typeof r.text === "string"),
};

const listOf = (value, good) => Array.isArray(value) && value.every((one) => record(one) && good(one));
const NEEDED = { text: "text", image: "url" };
const isFile = (f) => typeof f.name === "string" && (!NEEDED[f.kind] || typeof f[NEEDED[f.kind]] === "string");
const isAnswer = (a) => all(["text", "reasoning", "state"], a) && record(a.meta) && (!a.error || typeof a.error.message === "string") && listOf(a.calls, (c) => typeof c.arguments === "string") &&
  (a.ran === undefined || listOf(a.ran, (r) => all(["server", "name", "arguments", "output", "error"], r)));

/** What is wrong with a chat, as a sentence; "" if nothing is. */
export function fault(chat) {
  if (!record(chat) || !record(chat.nodes) || !record(chat.nodes.root)) return "it has no messages";
  if (!all(["id", "title", "model", "other", "system", "tools", "format"], chat) || !record(chat.params) || (chat.mcp !== undefined && !(Array.isArray(chat.mcp) && chat.mcp.every((one) => typeof one === "string")))) return "one of its settings has another type";
  const seen = new Set();
  const todo = ["root"];
  while (todo.length) {
    const id = todo.pop();
    const node = chat.nodes[id];
    if (seen.has(id)) return `message ${id} follows itself`;
    seen.add(id);
    const { children, pick } = node;
    if (!Array.isArray(children) || (children.length ? children[pick] === undefined : pick !== 0)) return `the messages after ${id} are not in order`;
    for (const child of children) {
      const below = Object.hasOwn(chat.nodes, child) ? chat.nodes[child] : null;
      if (!record(below) || below.id !== child || below.parent !== id) return `message ${child} is missing`;
      if (!Object.hasOwn(ROLES, below.role) || !ROLES[below.role](below)) return `message ${child} is incomplete`;
      todo.push(child);
    }
  }
  return "";
}
