// Messages of a chat: what the user said, answers with reasoning and tool calls, results of tools.

import { html, useEffect, useReducer, useRef, useState } from "../../vendor/ui.js";
import { ComeBack, CopyButton, Details, Icon, IconButton } from "../parts.js";
import { count, prettyText, rate, seconds } from "../format.js";
import { Reading, useRunning } from "../requests/stage.js";
import { session, useStore } from "../session.js";
import { Plain } from "../plain.js";
import { Markdown } from "./markdown.js";
import { cutOff, isRunning, listen, speed } from "./run.js";
import { siblings } from "./tree.js";

function useAnswer(answer) {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    again(); // it may have grown between the drawing and this
    return listen(answer, again);
  }, [answer]);
}

const Branches = ({ chat, node, onPick }) => {
  const [at, all] = siblings(chat, node);
  if (all < 2) return null;
  return html`<span class="branches">
    <button type="button" class="icon-button small" aria-label="Earlier version" disabled=${at === 0} onClick=${() => onPick(-1)}><${Icon} name="left" size=${16} /></button>
    <span class="num">${at + 1}/${all}</span>
    <button type="button" class="icon-button small" aria-label="Later version" disabled=${at === all - 1} onClick=${() => onPick(1)}><${Icon} name="right" size=${16} /></button>
  </span>`;
};

const EXCERPT = 2000; // characters of a pasted text that are shown
const LONG = 20000; // characters of a message that are shown at first

const Files = ({ files }) =>
  files?.length > 0 &&
  html`<div class="files">
    ${files.map((file, i) =>
      file.kind === "text"
        ? html`<${Details} key=${i} class="pasted" summary=${`${file.name}, ${count(file.text.length)} characters`}><pre class="box" tabindex="0">${file.text.slice(0, EXCERPT)}${file.text.length > EXCERPT ? "…" : ""}</pre><//>`
        : file.kind === "image" && file.url.startsWith("data:")
        ? html`<img key=${i} src=${file.url} alt=${file.name} />`
        : html`<span key=${i} class="file"><${Icon} name=${file.kind === "image" ? "image" : "attach"} size=${16} />${file.name}</span>`,
    )}
  </div>`;

function Bubble({ text }) {
  const [all, setAll] = useState(text.length <= LONG);
  return html`<div class="bubble">${all ? text : `${text.slice(0, LONG)}…`}
    ${!all && html`<button type="button" class="link" onClick=${() => setAll(true)}>Show all ${count(text.length)} characters</button>`}</div>`;
}

export function UserMessage({ chat, node, actions }) {
  const [draft, setDraft] = useState(null);
  const box = useRef();
  useEffect(() => box.current?.focus(), [draft !== null]);
  const save = () => {
    actions.edit(node, draft);
    setDraft(null);
  };
  if (draft !== null) {
    const onKey = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        setDraft(null);
      }
    };
    return html`<article class="message user editing" aria-label="Your message">
      <${Files} files=${node.files} />
      <textarea ref=${box} class="edit" rows=${Math.min(12, draft.split("\n").length + 1)} value=${draft}
        aria-label="Edit the message" onInput=${(e) => setDraft(e.target.value)} onKeyDown=${onKey}></textarea>
      <div class="row end">
        <button type="button" class="button" onClick=${() => setDraft(null)}>Cancel</button>
        <button type="button" class="button primary" onClick=${save}>Ask again</button>
      </div>
    </article>`;
  }
  return html`<article class="message user" aria-label="Your message">
    <${Files} files=${node.files} />
    ${node.text && html`<${Bubble} text=${node.text} />`}
    <div class="message-tools">
      <${Branches} chat=${chat} node=${node} onPick=${(step) => actions.pick(node, step)} />
      <${CopyButton} text=${node.text} label="Copy the message" />
      <${IconButton} icon="edit" label="Edit and ask again" onClick=${() => setDraft(node.text)} />
      <${IconButton} icon="trash" label="Delete this message and what follows" onClick=${() => actions.remove(node)} />
    </div>
  </article>`;
}

function Reasoning({ answer }) {
  const { meta, reasoning } = answer;
  const thinking = isRunning(answer) && !meta.thought;
  const [open, setOpen] = useState(null); // null: open while it thinks
  const taken = meta.thinking && ((meta.thought || meta.last) - meta.thinking) / 1000;
  if (!reasoning) return null;
  const words = thinking ? "Reasoning" : taken ? `Reasoned for ${seconds(taken)}` : "Reasoning";
  const shown = open ?? thinking;
  return html`<section class="reasoning ${thinking ? "busy" : ""}">
    <button type="button" aria-expanded=${shown} onClick=${() => setOpen(!shown)}>
      <${Icon} name="bulb" size=${16} />${words}<span class="turn ${shown ? "open" : ""}"><${Icon} name="right" size=${14} /></span>
    </button>
    ${shown && html`<${Plain} class="reasoning-text" text=${reasoning} />`}
  </section>`;
}

const Calls = ({ answer }) =>
  answer.calls.map(
    (call, i) => html`<section class="call" key=${i}>
      <header><${Icon} name="wrench" size=${16} /><strong>${call.name || "…"}</strong><code class="muted">${call.id}</code></header>
      <pre tabindex="0">${prettyText(call.arguments)}</pre>
    </section>`,
  );

/** Calls of tools that the server has run, with what they gave. */
const Ran = ({ answer }) =>
  (answer.ran ?? []).map(
    (call, i) => html`<section class="call" key=${i}>
      <header><${Icon} name="wrench" size=${16} /><strong>${call.name}</strong><span class="muted">of the MCP server ${call.server}</span></header>
      <pre tabindex="0">${prettyText(call.arguments)}</pre>
      <${Details} summary=${call.error ? "Failed" : "Result"}><pre tabindex="0">${call.error || prettyText(call.output)}</pre><//>
    </section>`,
  );

/** A form for the results of an answer's tool calls. */
function Results({ answer, onSend }) {
  const [texts, setTexts] = useState({});
  const submit = (event) => {
    event.preventDefault();
    onSend(answer.calls.map((call) => ({ id: call.id, name: call.name, text: texts[call.id] ?? "" })));
  };
  return html`<form class="results" onSubmit=${submit}>
    ${answer.calls.map(
      (call) => html`<label key=${call.id}><span>Result of <code>${call.name}</code></span>
        <textarea rows="2" value=${texts[call.id] ?? ""} placeholder='{"ok": true}'
          onInput=${(e) => setTexts({ ...texts, [call.id]: e.target.value })}></textarea></label>`,
    )}
    <button class="button primary">Send ${answer.calls.length > 1 ? "all results" : "the result"}</button>
  </form>`;
}

const FINISH = { stop: "finished", length: "reached the token limit", repetition_detected: "ended, as it only repeated itself", tool_calls: "calls tools", content_filter: "filtered", abort: "aborted" };

const PATIENCE = 0.5; // seconds without a token, after which the progress of the prompt is asked for

/** Speed and times, while the answer comes and after. Its height never changes, so the text stays where it is. */
function Live({ answer }) {
  const { meta } = answer;
  const busy = isRunning(answer);
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    if (!busy || meta.first) return undefined;
    const timer = setInterval(again, 100);
    return () => clearInterval(timer);
  }, [busy, meta.first]);
  const { who } = useStore(session);
  const waited = (performance.now() - meta.started) / 1000;
  const waits = busy && !meta.first;
  const [row] = useRunning(meta.id, waits && waited > PATIENCE);
  if (waits) {
    return html`<div class="live"><span class="waiting"><i></i><i></i><i></i></span>
      ${row && row.queued !== null ? html`<${Reading} row=${row} />` : "waiting for the first token"}<b class="num">${waited.toFixed(1)} s</b></div>`;
  }
  const { mean, now } = speed(answer);
  return html`<div class="live">
    ${meta.tokens !== undefined && html`<span title="Tokens generated"><b class="num">${count(meta.tokens)}</b> tokens</span>`}
    ${mean && html`<span title=${busy ? "Mean speed; the last two seconds in parentheses" : "Mean speed after the first token"}>
      <b class="num">${rate(mean)}</b> tokens/s${busy && now ? html` <span class="num">(${rate(now)})</span>` : ""}</span>`}
    ${meta.first && html`<span title="Time to the first token"><b class="num">${seconds((meta.first - meta.started) / 1000)}</b> to first</span>`}
    ${meta.prompt !== undefined &&
    html`<span title="Tokens of the prompt, and how many of them the prefix cache had"><b class="num">${count(meta.prompt)}</b> prompt${
      meta.cached !== undefined ? html`, <b class="num">${count(meta.cached)}</b> cached` : ""}</span>`}
    ${meta.accepted !== undefined &&
    html`<span title="Tokens proposed by speculative decoding, and how many of them the model accepted"><b class="num">${count(meta.accepted)}</b>${
      meta.drafted ? html` of <b class="num">${count(meta.drafted)}</b> drafted (${Math.round((100 * meta.accepted) / meta.drafted)} %)` : " drafted tokens accepted"}</span>`}
    ${!busy && meta.finish && html`<span>${FINISH[meta.finish] || meta.finish}</span>`}
    ${answer.state === "stopped" && html`<span>stopped</span>`}
    ${meta.ignored && html`<span class="warn-text" title="Parameters that had no effect">ignored: ${meta.ignored}</span>`}
    ${meta.adapted && html`<span class="warn-text" title="How messages were rearranged for the chat template">adapted: ${meta.adapted}</span>`}
    ${meta.clamped && html`<span class="warn-text" title="Values that were reduced">clamped: ${meta.clamped}</span>`}
    ${!busy && meta.id && who?.inspector !== false && html`<a href=${`#/requests/${meta.id}`} title="Open the request">request</a>`}
  </div>`;
}

/** An answer that broke off because its page was closed, or that another tab has. */
function CutOff({ chat, node, answer, actions }) {
  const [, again] = useReducer((n) => n + 1, 0);
  const cut = cutOff(chat, answer);
  useEffect(() => {
    if (!cut?.elsewhere) return undefined;
    const timer = setInterval(again, 1000);
    return () => clearInterval(timer);
  }, [cut?.elsewhere]);
  if (!cut) return null;
  if (cut.elsewhere) return html`<p class="muted small">This answer comes in another tab.</p>`;
  return html`<div class="notice"><span class="grow">The answer broke off, because its page was closed or reloaded.</span>
    <button type="button" class="button small" onClick=${() => actions.again(node)}>Ask again</button></div>`;
}

function Answer({ chat, node, answer, several, last, actions }) {
  useAnswer(answer);
  const busy = isRunning(answer);
  const chosen = node.answers[node.chosen] === answer;
  return html`<section class="answer ${several && chosen ? "chosen" : ""}" aria-busy=${busy}>
    ${several &&
    html`<header class="answer-head">
      <span class="model-name" title=${answer.model}>${answer.model}</span>
      <label class="choose"><input type="radio" name=${`choice-${node.id}`} checked=${chosen} onChange=${() => actions.choose(node, answer)} /> continue with this</label>
    </header>`}
    <${Reasoning} answer=${answer} />
    <${Ran} answer=${answer} />
    ${answer.text && html`<${Markdown} text=${answer.text} growing=${busy} />`}
    <${Calls} answer=${answer} />
    ${answer.error &&
    html`<div class="failure" role="alert"><${Icon} name="warning" /><div>
      <p class="failure-title">${answer.text ? "The answer broke off" : "No answer"}${answer.error.status ? ` (${answer.error.status})` : ""}</p>
      <p>${answer.error.message}</p>
      <${ComeBack} until=${answer.error.until} />
      <button type="button" class="button" onClick=${() => actions.again(node)}>Try again</button></div></div>`}
    <${CutOff} ...${{ chat, node, answer, actions }} />
    <${Live} answer=${answer} />
    ${!busy &&
    html`<div class="message-tools">
      ${!several && html`<${Branches} chat=${chat} node=${node} onPick=${(step) => actions.pick(node, step)} />`}
      ${answer.text && html`<${CopyButton} text=${answer.text} label="Copy the answer" />`}
      <${IconButton} icon="redo" label="Ask again" onClick=${() => actions.again(node)} />
      ${last && !answer.calls.length && !answer.ran?.length && answer.text &&
      html`<${IconButton} icon="play" label="Continue this answer" onClick=${() => actions.resume(node, answer)} />`}
      <${IconButton} icon="trash" label="Delete this answer" onClick=${() => actions.remove(node)} />
    </div>`}
    ${last && !busy && answer.calls.length > 0 && chosen &&
    html`<${Results} answer=${answer} onSend=${(results) => actions.results(node, results)} />`}
  </section>`;
}

export function AnswerMessage({ chat, node, last, actions }) {
  const several = node.answers.length > 1;
  return html`<article class="message assistant ${several ? "several" : ""}" aria-label="Answer">
    ${node.answers.map((answer, i) => html`<${Answer} key=${i} ...${{ chat, node, answer, several, last, actions }} />`)}
  </article>`;
}

export const ToolMessage = ({ node, actions }) =>
  html`<article class="message tool" aria-label="Results of tools">
    ${node.results.map(
      (result) => html`<${Details} key=${result.id} summary=${html`Result of <code>${result.name || result.id}</code>`}>
        <pre tabindex="0">${prettyText(result.text)}</pre><//>`,
    )}
    <div class="message-tools"><${IconButton} icon="trash" label="Delete these results and what follows" onClick=${() => actions.remove(node)} /></div>
  </article>`;
