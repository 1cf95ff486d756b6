// Ask for an answer and take it in as it streams. An answer is a plain object that grows; whoever shows it
// listens to it and is called at most once a frame.

import { ApiError, call, endOf, events } from "../api.js";
import * as db from "./db.js";
import { chunkOf, responsesBody } from "./responses.js";
import { addNode, body, streaming } from "./tree.js";

const listeners = new WeakMap(); // answer -> functions to call
const running = new Map(); // answer -> its AbortController
const pending = new Set();
let frame = 0;

export function listen(answer, fn) {
  const known = listeners.get(answer) ?? new Set();
  listeners.set(answer, known.add(fn));
  return () => known.delete(fn);
}

function changed(answer) {
  pending.add(answer);
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const due = [...pending];
    pending.clear();
    for (const one of due) listeners.get(one)?.forEach((fn) => fn());
  });
}

export const isRunning = (answer) => running.has(answer);
export const anyRunning = (node) => Boolean(node?.answers?.some(isRunning));

/** Stop the answers of a node. The connection closes, and the server aborts the work at its next step. */
export function stop(node) {
  node.answers.forEach((answer) => running.get(answer)?.abort());
}

const newAnswer = (model) => ({
  model, text: "", reasoning: "", calls: [], ran: [], state: "running", error: null, meta: { started: performance.now(), at: Date.now() },
});

/** Add an answer below `parent`; one for each choice and each model. `onChange` is called when one begins or ends. */
export function generate(chat, parent, onChange) {
  const models = chat.other && chat.other !== chat.model ? [chat.model, chat.other] : [chat.model];
  const bodies = models.map((model) => body(chat, parent, model)); // throws before anything is added
  const answers = models.map((model, i) => Array.from({ length: bodies[i].n || 1 }, () => newAnswer(model)));
  const node = addNode(chat, parent.id, { role: "assistant", answers: answers.flat(), chosen: 0 });
  const all = bodies.map((made, i) => take(chat, made, answers[i], onChange));
  onChange();
  Promise.all(all).then(() => save(chat));
  return node;
}

/** Let the model go on with an answer that stopped. */
export function resume(chat, node, answer, onChange) {
  const made = body(chat, node, answer.model || chat.model);
  delete made.n;
  Object.assign(made, { continue_final_message: true, add_generation_prompt: false });
  made.messages.at(-1).content ||= "";
  answer.state = "running";
  answer.error = null;
  answer.meta = { started: performance.now(), at: Date.now(), before: answer.meta.tokens };
  take(chat, made, [answer], onChange).then(() => save(chat));
  onChange();
}

const save = (chat) => {
  chat.updated = Date.now();
  return db.put(chat).catch(() => {});
};

const SAVE = { every: 1500, most: 0.02 }; // ms, and the part of the time that saving may take
const ALIVE = 10000; // ms since the last save, after which an answer that does not run here runs nowhere
const streams = new Map(); // chats whose answers come, how many of them

/** An answer that was not ended: its page was closed. `elsewhere`: another tab seems to have it. */
export function cutOff(chat, answer) {
  if (isRunning(answer) || (answer.state !== "running" && answer.state !== "cut")) return null;
  return { elsewhere: answer.state === "running" && Date.now() - chat.updated < ALIVE };
}

/** Save a chat now and then while its answers come. Returns a function that ends it. */
function keepSaving(chat) {
  let ended = false;
  const tick = async () => {
    if (ended) return;
    const began = performance.now();
    await save(chat);
    setTimeout(tick, Math.max(SAVE.every, (performance.now() - began) / SAVE.most));
  };
  setTimeout(tick, SAVE.every);
  streams.set(chat, (streams.get(chat) ?? 0) + 1);
  return () => {
    ended = true;
    streams.set(chat, streams.get(chat) - 1);
    if (!streams.get(chat)) streams.delete(chat);
  };
}

const CUT = "ovserve.cut"; // in the session's storage, which is written at once; a database may not be any more

addEventListener("pagehide", () => {
  const left = [...streams.keys()].flatMap((chat) =>
    Object.values(chat.nodes).filter(anyRunning).map(({ id, answers }) => ({
      chat: chat.id, node: id, answers: answers.map((a) => ({ text: a.text, reasoning: a.reasoning, running: isRunning(a) })),
    })),
  );
  try {
    if (left.length) sessionStorage.setItem(CUT, JSON.stringify(left));
  } catch {
    /* full: what was saved last remains */
  }
});

/** Mark the answers whose page this tab has left, with all that had come of them. */
export function markCut(chats) {
  const left = JSON.parse(sessionStorage.getItem(CUT) ?? "[]");
  sessionStorage.removeItem(CUT);
  for (const { chat: id, node, answers } of left) {
    const chat = chats.find((c) => c.id === id);
    chat?.nodes[node]?.answers?.forEach((answer, i) => {
      if (!answers[i]?.running || answer.state !== "running") return;
      Object.assign(answer, { state: "cut", text: answers[i].text, reasoning: answers[i].reasoning });
    });
    if (chat) db.put(chat).catch(() => {});
  }
}

async function take(chat, made, answers, onChange) {
  const aborter = new AbortController();
  answers.forEach((answer) => running.set(answer, aborter));
  const saved = keepSaving(chat);
  let came = false;
  const end = (state, error = null) => {
    saved();
    for (const answer of answers) {
      running.delete(answer);
      answer.meta.ended = performance.now();
      answer.state = state;
      if (error) answer.error = { message: error.message, status: error.status, param: error.param, code: error.code, until: error.until };
      changed(answer);
    }
    onChange();
  };
  save(chat);
  try {
    // Its id is known before the answer begins, so that its progress can be followed meanwhile.
    const id = crypto.getRandomValues(new Uint32Array(4)).reduce((text, n) => text + n.toString(16).padStart(8, "0"), "");
    answers.forEach(({ meta }) => (meta.id = id));
    const [to, sent] = chat.mcp?.length ? ["v3/responses", responsesBody(made, chat.mcp)] : ["v3/chat/completions", streaming(made)];
    const response = await call(to, { method: "POST", body: sent, signal: aborter.signal, headers: { "x-request-id": id } });
    came = true;
    for (const answer of answers) note(answer, response.headers);
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
      throw new ApiError("The graph answered with something that is not a stream.");
    }
    let whole = false;
    for await (const data of events(response)) {
      if (data === "[DONE]") whole = true;
      else if (to === "v3/responses") {
        const shown = chunkOf(JSON.parse(data), answers[0].calls.length);
        if (shown) chunk(shown, answers);
      } else chunk(JSON.parse(data), answers);
    }
    if (!whole && answers.some(({ meta }) => !meta.finish)) throw new ApiError("The answer ended without its end mark.");
    end("done");
  } catch (error) {
    if (!came && error instanceof ApiError && !error.status) answers.forEach(({ meta }) => (meta.id = "")); // the server has not seen it
    if (error.name === "AbortError" || aborter.signal.aborted) end("stopped");
    else end("failed", error);
  }
}

function note(answer, headers) {
  const { meta } = answer;
  meta.id = headers.get("x-request-id") || "";
  meta.ignored = headers.get("x-ovserve-ignored-params") || "";
  meta.adapted = headers.get("x-ovserve-adapted") || "";
  meta.clamped = headers.get("x-ovserve-clamped") || "";
  changed(answer);
}

function chunk(event, answers) {
  if (event.error) throw new ApiError(event.error.message, event.error);
  const now = performance.now();
  if (event.usage) {
    for (const { meta } of answers) {
      meta.prompt = event.usage.prompt_tokens;
      meta.cached = event.usage.prompt_tokens_details?.cached_tokens;
      const { accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } = event.usage.completion_tokens_details ?? {};
      Object.assign(meta, { accepted, drafted: rejected === undefined ? undefined : accepted + rejected });
      if (answers.length > 1) continue; // it counts all choices together; each counts its own deltas
      meta.tokens = event.usage.completion_tokens;
      meta.exact = true;
      sample(meta, now);
    }
  }
  for (const choice of event.choices || []) {
    const answer = answers[choice.index];
    if (answer) part(answer, choice, now);
  }
}

function part(answer, choice, now) {
  const { meta } = answer;
  const delta = choice.delta || {};
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought) {
    meta.thinking ??= now;
    answer.reasoning += thought;
  }
  if (delta.content) answer.text += delta.content;
  if (delta.ran) answer.ran.push(delta.ran);
  for (const call of delta.tool_calls || []) {
    const known = (answer.calls[call.index ?? 0] ??= { id: "", name: "", arguments: "" });
    if (call.id) known.id = call.id;
    if (call.function?.name) known.name += call.function.name;
    if (call.function?.arguments) known.arguments += call.function.arguments;
  }
  if (delta.content || delta.tool_calls) meta.thought ??= meta.thinking && now;
  if (thought || delta.content || delta.tool_calls) {
    meta.first ??= now;
    meta.last = now;
    if (!meta.exact) {
      meta.tokens = (meta.tokens || 0) + 1;
      sample(meta, now);
    }
  }
  meta.finish = endOf(choice) ?? meta.finish;
  changed(answer);
}

const WINDOW = 2000; // ms of the momentary speed

function sample(meta, now) {
  meta.samples ??= [];
  const { samples } = meta;
  if (samples.length && samples.at(-1)[1] === meta.tokens) return;
  samples.push([now, meta.tokens]);
  while (samples.length > 2 && now - samples[0][0] > WINDOW) samples.shift();
}

const SHORTEST = 0.02; // seconds between the first and the last token that make a speed

/** Tokens per second: { mean, now }. The first token is the end of the prompt's time and not counted. */
export function speed({ meta }) {
  const span = (meta.last - meta.first) / 1000;
  const mean = span > SHORTEST && meta.tokens > 1 ? (meta.tokens - 1) / span : null;
  const samples = meta.samples || [];
  const [first, final] = [samples[0], samples.at(-1)];
  const now = samples.length > 1 && final[0] > first[0] ? ((final[1] - first[1]) * 1000) / (final[0] - first[0]) : mean;
  return { mean, now };
}
