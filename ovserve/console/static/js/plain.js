// Text of any length as it is. It stands in pieces: a browser lays out those in view, and only the last one grows.

import { html } from "../vendor/ui.js";

const PIECE = 10000; // characters; a text of 2 MB in one element takes seconds to lay out
const NEAR = 1000; // characters before its end in which a piece looks for the end of a line or a word

function pieces(text) {
  const found = [];
  for (let from = 0; from < text.length; ) {
    let to = from + PIECE;
    if (to < text.length) {
      const end = text.slice(to - NEAR, to);
      const at = Math.max(end.lastIndexOf("\n"), 0) || Math.max(end.lastIndexOf(" "), 0);
      if (at) to += at + 1 - NEAR;
      else if (/[\uD800-\uDBFF]/.test(text[to - 1])) to -= 1; // half of a character
    }
    found.push(text.slice(from, to).replace(/\n$/, to < text.length ? "" : "\n")); // the next piece is a line of its own
    from = to;
  }
  return found;
}

export const Plain = ({ text, class: name = "" }) => html`<div class="plain ${name}">${pieces(text).map((piece, i) => html`<div key=${i}>${piece}</div>`)}</div>`;
