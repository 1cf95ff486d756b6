// A text as its tokens: each piece on its own ground, its id on hover, special tokens marked.

import { html, useMemo, useState } from "../vendor/ui.js";
import { count } from "./format.js";
import { Plain } from "./plain.js";

const MOST = 4000; // pieces drawn; a longer text is cut, and says so

const shown = (piece) => piece.replaceAll("\n", "↵\n").replaceAll("\t", "⇥");

export function Tokens({ ids, pieces, text }) {
  const [mode, setMode] = useState("tokens");
  const drawn = useMemo(
    () =>
      (pieces ?? []).slice(0, MOST).map(
        (piece, i) => html`<span key=${i} class="token t${i % 4} ${/^<[|\w/].*>$/.test(piece) ? "special" : ""}" title=${`${ids[i]} · ${JSON.stringify(piece)}`}>${shown(piece) || "∅"}</span>`,
      ),
    [pieces],
  );
  const options = [["tokens", "Tokens"], ["text", "Text"], ["ids", "Ids"]];
  return html`<div class="tokens-view">
    <div class="segments" role="group" aria-label="Show as">
      ${options.map(([name, word]) => html`<button key=${name} type="button" aria-pressed=${mode === name} onClick=${() => setMode(name)}>${word}</button>`)}
    </div>
    <pre class="tokens" tabindex="0">${mode === "tokens" && pieces ? drawn : mode === "ids" ? html`<${Plain} text=${(ids ?? []).join(" ")} />` : html`<${Plain} text=${text} />`}</pre>
    ${mode === "tokens" && pieces?.length > MOST && html`<p class="muted small">The first ${count(MOST)} of ${count(pieces.length)} tokens.</p>`}
  </div>`;
}
