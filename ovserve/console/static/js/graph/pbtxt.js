// The language of graph.pbtxt for the editor: colours, and what may be typed where.

import { StreamLanguage } from "../../vendor/cm.js";

export const pbtxt = StreamLanguage.define({
  name: "pbtxt",
  startState: () => ({ value: false }),
  token(stream, state) {
    if (stream.eatSpace()) return null;
    if (stream.match(/#.*/)) return "comment";
    if (stream.match(/"(?:[^"\\]|\\.)*"?/) || stream.match(/'(?:[^'\\]|\\.)*'?/)) {
      state.value = false;
      return "string";
    }
    if (stream.match(/\[[\w./]+\]/)) return "typeName";
    if (stream.match(/[{}<>]/)) {
      state.value = false;
      return "brace";
    }
    if (stream.eat(":")) {
      state.value = true;
      return "punctuation";
    }
    if (stream.match(/-?\d[\w.+-]*/)) {
      state.value = false;
      return "number";
    }
    const word = stream.match(/[A-Za-z_][\w.]*/);
    if (word) {
      const name = state.value ? (/^(true|false)$/.test(word[0]) ? "bool" : "atom") : "propertyName";
      state.value = false;
      return name;
    }
    stream.next();
    return null;
  },
  languageData: { commentTokens: { line: "#" }, closeBrackets: { brackets: ["{", "[", '"'] } },
});

const GRAPH = ["input_stream", "output_stream", "input_side_packet", "node", "executor", "max_queue_size", "num_threads", "report_deadlock"];
const NODE = ["name", "calculator", "input_stream", "output_stream", "input_side_packet", "output_side_packet", "executor", "input_stream_info", "input_stream_handler", "node_options", "options"];
const INFO = ["tag_index", "back_edge"];

const word = (label, type, detail, apply) => ({ label, type, detail, apply });

/** The names of the blocks around a position, the outermost first. */
function blocksAt(text) {
  const open = [];
  const token = /#.*|"(?:[^"\\\n]|\\.)*"|(\[[\w./]+\]|\w+)\s*:?\s*\{|\{|\}/g;
  for (let m = token.exec(text); m; m = token.exec(text)) {
    if (m[0].endsWith("{")) open.push(m[1] || "");
    else if (m[0] === "}") open.pop();
  }
  return open;
}

/** Completions: fields of the block, calculators, stream names of the text, tags of the node's calculator. */
export function completer(calculators) {
  return (context) => {
    const before = context.state.sliceDoc(0, context.pos);
    const line = before.slice(before.lastIndexOf("\n") + 1);
    const quoted = /(\w+)\s*:\s*"([^"]*)$/.exec(line);
    if (quoted) return inQuotes(quoted, context, calculators);
    const field = context.matchBefore(/\w+/);
    if (!field && !context.explicit) return null;
    const blocks = blocksAt(before);
    const inside = blocks.at(-1);
    const calculator = calculatorAt(before, calculators);
    let names = inside === undefined ? GRAPH : inside === "node" ? NODE : inside === "input_stream_info" ? INFO : [];
    if (/^\[.*Options\]$/.test(inside || "")) names = calculators.find((c) => inside.includes(c.options_type))?.options ?? calculator?.options ?? [];
    const blocky = new Set(["node", "executor", "input_stream_info", "input_stream_handler", "node_options", "options"]);
    return { from: field ? field.from : context.pos, options: names.map((name) => word(name, "property", "", blocky.has(name) && !(name === "executor" && inside === "node") ? `${name} {` : `${name}: `)) };
  };
}

function calculatorAt(before, calculators) {
  const names = [...before.matchAll(/calculator\s*:\s*"(\w+)"/g)];
  return calculators.find((c) => c.name === names.at(-1)?.[1]);
}

function inQuotes([, field, typed], context, calculators) {
  const from = context.pos - typed.length;
  if (field === "calculator") return { from, options: calculators.map((c) => word(c.name, "class")) };
  if (!/_stream$|_packet$/.test(field)) return null;
  const text = context.state.doc.toString();
  const streams = [...new Set([...text.matchAll(/(?:_stream|_packet)\s*:\s*"(?:[A-Z_0-9]+:)?(?:\d+:)?([a-z_]\w*)"/g)].map((m) => m[1]))];
  const tag = /^[A-Z_0-9]+:(\d+:)?/.exec(typed);
  if (tag) return { from: from + tag[0].length, options: streams.map((s) => word(s, "variable")) };
  const calculator = calculatorAt(context.state.sliceDoc(0, context.pos), calculators);
  const key = { input_stream: "inputs", output_stream: "outputs", input_side_packet: "side_inputs", output_side_packet: "side_outputs" }[field];
  const tags = (calculator?.[key] ?? []).map((port) => word(`${port}:`, "keyword"));
  return { from, options: [...tags, ...streams.map((s) => word(s, "variable"))] };
}
