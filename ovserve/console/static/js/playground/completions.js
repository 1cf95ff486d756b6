// Completions: a text that the model goes on with, as it streams.

import { html, useState } from "../../vendor/ui.js";
import { ApiError, endOf, events } from "../api.js";
import { count, rate } from "../format.js";
import { Card, curlJson, Field, given, post, RunForm, useRun } from "./parts.js";

export function Completions({ model }) {
  const [prompt, setPrompt] = useState("Once upon a time");
  const [tokens, setTokens] = useState("100");
  const [temperature, setTemperature] = useState("");
  const run = useRun();
  const body = () => given({ model, prompt, max_tokens: Number(tokens) || undefined, temperature: temperature === "" ? undefined : Number(temperature) });
  const work = async (signal, show) => {
    const { response, id } = await post("v3/completions", { ...body(), stream: true, stream_options: { include_usage: true } }, signal);
    const made = { id, text: "", pieces: 0, first: 0, last: 0 };
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, event.error);
      if (event.usage) made.tokens = event.usage.completion_tokens;
      const [choice] = event.choices ?? [];
      if (choice?.text) {
        made.text += choice.text;
        made.pieces += 1;
        made.last = performance.now();
        made.first ||= made.last;
        show({ ...made });
      }
      if (choice) made.finish = endOf(choice) ?? made.finish;
    }
    return made;
  };
  const { result } = run.state;
  const told = result && (result.tokens ?? result.pieces);
  const speed = result && result.last > result.first ? ((told - 1) * 1000) / (result.last - result.first) : null;
  return html`<${RunForm} run=${run} work=${work} ready=${Boolean(prompt)} code=${() => curlJson("v3/completions", body())}>
      <${Field} label="Text to go on with"><textarea rows="6" value=${prompt} onInput=${(e) => setPrompt(e.target.value)}></textarea><//>
      <div class="fields">
        <${Field} label="Tokens at most"><input type="number" min="1" value=${tokens} onInput=${(e) => setTokens(e.target.value)} /><//>
        <${Field} label="Temperature"><input type="number" min="0" max="2" step="0.1" placeholder="default" value=${temperature} onInput=${(e) => setTemperature(e.target.value)} /><//>
      </div>
    <//>
    ${result && html`<${Card} title="Completion" about=${`${count(told)} tokens${speed ? `, ${rate(speed)} per second` : ""}${result.finish ? `, ${result.finish}` : ""}`}>
      <p class="playground-text card-body" aria-live="off"><span class="muted">${prompt}</span>${result.text}</p><//>`}`;
}
