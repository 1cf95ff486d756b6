// Send a captured body again, as it was, and compare the answers.

import { html, useState } from "../../vendor/ui.js";
import { send } from "../api.js";
import { count, seconds } from "../format.js";
import { Failure } from "../parts.js";
import { Plain } from "../plain.js";

const MOST_WORDS = 1500;
const READ = 20000; // characters

const wordsOf = (text) => text.slice(0, READ).match(/\s+|[^\s]+/g) ?? []; // and what stands between them

/** The words of two texts: [kind, text] with kind "same", "ins" or "del". A longest common subsequence. */
export function diff(before, after) {
  const [a, b] = [before, after].map((text) => wordsOf(text).slice(0, MOST_WORDS));
  const width = b.length + 1;
  const table = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const out = [];
  const add = (kind, text) => (out.at(-1)?.[0] === kind ? (out.at(-1)[1] += text) : out.push([kind, text]));
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      add("same", a[i]);
      i += 1;
      j += 1;
    } else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) add("del", a[i++]);
    else add("ins", b[j++]);
  }
  a.slice(i).forEach((word) => add("del", word));
  b.slice(j).forEach((word) => add("ins", word));
  return out;
}

const longer = (...texts) => texts.some((text) => text.length > READ || wordsOf(text).length > MOST_WORDS);
const contentOf = (parsed) => parsed.flatMap((p) => p.parts).filter(([kind]) => kind === "Content").map(([, part]) => part.text ?? "").join("");

function textOf(answer) {
  const [choice] = answer?.choices ?? [];
  if (!choice) return JSON.stringify(answer, null, 2);
  const calls = choice.message?.tool_calls?.map((c) => `${c.function.name}(${c.function.arguments})`).join("\n");
  return choice.message?.content ?? calls ?? choice.text ?? "";
}

export function Replays({ row, body, parsed }) {
  const [runs, setRuns] = useState([]);
  const [busy, setBusy] = useState(0);
  const first = contentOf(parsed);
  const run = async (times) => {
    const source = JSON.parse(body.text);
    delete source.stream_options;
    source.stream = false;
    for (let i = 0; i < times; i += 1) {
      setBusy(times - i);
      const began = performance.now();
      try {
        const answer = await send(row.path.slice(1), source);
        setRuns((known) => [...known, { text: textOf(answer), seconds: (performance.now() - began) / 1000 }]);
      } catch (error) {
        setRuns((known) => [...known, { error }]);
        break;
      }
    }
    setBusy(0);
  };
  return html`<div class="replays">
    <div class="row wrap"><button type="button" class="button primary" disabled=${busy > 0} onClick=${() => run(1)}>${busy ? `${busy} to go` : "Replay as it was"}</button>
      <button type="button" class="button" disabled=${busy > 0} onClick=${() => run(5)}>Five times</button>
      <span class="muted small">The same body is sent again, not streamed. Differences to the first answer are marked.</span></div>
    <div class="replay"><strong>First answer</strong><pre tabindex="0"><${Plain} text=${first || "no text"} /></pre></div>
    ${runs.map((one, i) => html`<div class="replay" key=${i}>
      <strong>Replay ${i + 1}${one.seconds ? html` <span class="muted num">${seconds(one.seconds)}</span>` : ""}${one.text === first ? html` <span class="good-text">the same</span>` : ""}</strong>
      ${one.error ? html`<${Failure} error=${one.error} />` : html`<pre tabindex="0">${diff(first, one.text).map(([kind, text], k) => (kind === "same" ? text : html`<${kind} key=${k}>${text}</${kind}>`))}</pre>
        ${longer(first, one.text) && html`<p class="muted small">Only the first ${count(MOST_WORDS / 2)} words are compared.</p>`}`}
    </div>`)}
  </div>`;
}
