// Markdown to DOM. Model output is hostile input: marked makes HTML, DOMPurify takes out what could act, and the
// page's policy accepts only what DOMPurify returned. A text that grows is parsed from its last blocks on, so
// that blocks which are complete keep their DOM.

import DOMPurify from "../../vendor/dompurify.js";
import hljs from "../../vendor/hl.js";
import { Marked } from "../../vendor/marked.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/ui.js";
import { CopyButton } from "../parts.js";
import { Plain } from "../plain.js";

const HARMLESS = /^<\/?(br|sub|sup|kbd|b|i|u|s|em|strong|details|summary)\s*\/?>$/i;
const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
// Tags that a model writes are shown as text, except a few without attributes.
const marked = new Marked({ gfm: true, breaks: true, renderer: { html: ({ text }) => (HARMLESS.test(text.trim()) ? text : escaped(text)) } });
const HIGHLIGHT_MOST = 30000; // characters of a code block; above, the colours are left out
const MOST = 100000; // characters of a text that are read as Markdown; what follows is shown as it is
const BLOCK_MOST = 20000; // characters of one block; a table of more takes a second to lay out
const NESTED = /^(?:[ \t]*>){50}|^[ \t]{200}[ \t]*(?:[-+*]|\d+[.)])[ \t]/m; // deep enough to take seconds, or all of the stack
const REST = 5; // times as long as a reading took, until a text that grows is read again
const ALIASES = { sh: "bash", shell: "bash", console: "bash", js: "javascript", ts: "javascript", typescript: "javascript",
  jsx: "javascript", tsx: "javascript", py: "python", html: "xml", svg: "xml", yml: "yaml", cpp: "cpp", c: "cpp", "c++": "cpp" };

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
  if (node.tagName === "IMG" && !/^data:image\//.test(node.getAttribute("src") || "")) {
    const link = document.createElement("span");
    link.className = "no-image";
    link.textContent = `image: ${node.getAttribute("alt") || node.getAttribute("src") || ""}`;
    node.replaceWith(link); // nothing is fetched from elsewhere
  }
});

const clean = (dirty) =>
  DOMPurify.sanitize(dirty, { RETURN_TRUSTED_TYPE: true, FORBID_TAGS: ["style", "form", "input", "button", "textarea", "select"], FORBID_ATTR: ["style", "id", "name", "class"] });
const cleanCode = (dirty) => DOMPurify.sanitize(dirty, { RETURN_TRUSTED_TYPE: true, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] });

function Html({ source, tag = "div", sanitize = clean, class: name }) {
  const box = useRef();
  useLayoutEffect(() => {
    box.current.innerHTML = sanitize(source);
  }, [source]);
  return html`<${tag} ref=${box} class=${name}></${tag}>`;
}

function Code({ text, language, open }) {
  const known = hljs.getLanguage(ALIASES[language] || language) && (ALIASES[language] || language);
  const colour = known && !open && text.length <= HIGHLIGHT_MOST;
  return html`<div class="code">
    <div class="code-head"><span>${language || "text"}</span><${CopyButton} text=${text} label="Copy the code" /></div>
    <pre tabindex="0">${colour
      ? html`<${Html} tag="code" sanitize=${cleanCode} source=${hljs.highlight(text, { language: known, ignoreIllegals: true }).value} />`
      : html`<code>${text}</code>`}</pre>
  </div>`;
}

function Block({ token, open }) {
  if (token.type === "code") return html`<${Code} text=${token.text} language=${(token.lang || "").split(/\s/)[0].toLowerCase()} open=${open} />`;
  if (token.raw.length > BLOCK_MOST) return html`<${Plain} class="md-block" text=${token.raw} />`;
  return html`<${Html} class="md-block" source=${marked.parser([token])} />`;
}

/** Tokens of a text that may have grown since the last call: only the last two blocks are read again. */
function lex(text, before) {
  if (NESTED.test(text)) return [];
  if (before && text.startsWith(before.text) && before.tokens.length > 2) {
    const kept = before.tokens.slice(0, -2);
    const from = kept.reduce((sum, token) => sum + token.raw.length, 0);
    return [...kept, ...marked.lexer(text.slice(from))];
  }
  return [...marked.lexer(text)];
}

/** What is known of a text: the tokens of its first `read` characters. */
function readAgain(before, text, growing, now) {
  const known = before.current;
  if (known?.text === text || (growing && known && text.startsWith(known.text) && now < known.at + known.took * REST)) return known;
  const tokens = lex(text, known);
  before.current = { text, tokens, read: tokens.length ? text.length : 0, at: now, took: 0 };
  return before.current;
}

/** `growing`: more will follow. A text that was never on screen stays plain until it is. */
export function Markdown({ text, growing }) {
  const box = useRef();
  const before = useRef(null);
  const [seen, setSeen] = useState(growing || !("IntersectionObserver" in window));
  useEffect(() => {
    if (seen) return undefined;
    const observer = new IntersectionObserver((entries) => entries.some((e) => e.isIntersecting) && setSeen(true), { rootMargin: "400px" });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [seen]);
  const began = performance.now();
  const known = seen ? readAgain(before, text.slice(0, MOST), growing, began) : null;
  useLayoutEffect(() => {
    if (known?.at === began) known.took = performance.now() - began; // with its blocks, whose effects come first
  });
  if (!seen) return html`<div class="md" ref=${box}><${Plain} text=${text} /></div>`;
  const { tokens, read } = known;
  const rest = text.slice(read);
  return html`<div class="md" ref=${box}>
    ${tokens.map((token, i) => token.type !== "space" && html`<${Block} key=${i} token=${token} open=${growing && i === tokens.length - 1} />`)}
    ${rest && html`<${Plain} key="rest" class="md-block" text=${rest} />`}
  </div>`;
}
