// Rerank: documents in the order of how well they answer a query.

import { html, useState } from "../../vendor/ui.js";
import { count } from "../format.js";
import { lines } from "./embeddings.js";
import { Card, curlJson, Field, given, post, Raw, RunForm, useRun } from "./parts.js";

const EXAMPLE = "The stock market fell today.\nDogs guard the house.\nCats sleep on warm rugs and in the sun.\nA mat lies behind the door.";

export function Rerank({ model }) {
  const [query, setQuery] = useState("Where do cats sleep?");
  const [text, setText] = useState(EXAMPLE);
  const [top, setTop] = useState("");
  const run = useRun();
  const body = () => given({ model, query, documents: lines(text), top_n: top === "" ? undefined : Number(top) });
  const work = async (signal) => {
    const sent = body();
    const { response, id } = await post("v3/rerank", sent, signal);
    return { id, documents: sent.documents, value: await response.json() };
  };
  const { result } = run.state;
  const results = result?.value.results;
  const scores = results?.map((r) => r.relevance_score) ?? [];
  const [low, high] = [Math.min(0, ...scores), Math.max(0, ...scores)];
  return html`<${RunForm} run=${run} work=${work} ready=${query.trim() && lines(text).length > 0} word="Rank" code=${() => curlJson("v3/rerank", body())}>
      <${Field} label="Query"><input value=${query} onInput=${(e) => setQuery(e.target.value)} /><//>
      <${Field} label="Documents, one a line"><textarea rows="6" value=${text} onInput=${(e) => setText(e.target.value)}></textarea><//>
      <div class="fields"><${Field} label="Only the best"><input type="number" min="1" placeholder="all" value=${top} onInput=${(e) => setTop(e.target.value)} /><//></div>
    <//>
    ${results && html`<${Card} title="Ranking" about=${`${count(results.length)} of ${count(result.documents.length)} documents`}>
      <ol class="ranking">${results.map((r, i) => html`<li key=${r.index}>
        <span class="rank num">${i + 1}</span>
        <span class="rank-text">${result.documents[r.index]}<small class="muted"> was ${r.index + 1}</small></span>
        <b class="num">${r.relevance_score.toFixed(4)}</b>
        <i style=${{ width: `${high > low ? (100 * (r.relevance_score - low)) / (high - low) : 0}%` }}></i></li>`)}</ol><//>`}
    ${result && html`<${Raw} value=${result.value} />`}`;
}
