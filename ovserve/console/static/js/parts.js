// Small components that every page uses: buttons, states of lists, drawers, the copy button.

import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { seconds } from "./format.js";
import { Icon } from "./icons.js";
import { session, useStore } from "./session.js";

export { Icon };

export const Pill = ({ tone = "", children, title }) => html`<span class="pill ${tone}" title=${title}>${children}</span>`;

export const STATE_TONES = { AVAILABLE: "good", LOADING: "warn", RESTARTING: "warn", FAILED: "bad" };
const STATE_WORDS = { AVAILABLE: "ready", LOADING: "loading", RESTARTING: "engine restarting", UNLOADED: "idle", FAILED: "failed" };

/** The state of a model as the server reported it last; not known while the server does not answer. */
export function StatePill({ state, reason }) {
  const { modelsError } = useStore(session);
  if (modelsError) return html`<${Pill} title=${modelsError.message}><i class="dot"></i>not known<//>`;
  return html`<${Pill} tone=${STATE_TONES[state] || ""} title=${reason}><i class="dot"></i>${STATE_WORDS[state] || state?.toLowerCase()}<//>`;
}

export const IconButton = ({ icon, label, active, ...rest }) =>
  html`<button type="button" class="icon-button ${active ? "active" : ""}" aria-label=${label} title=${label} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;

/** One sentence and one action, where a list has nothing to show. */
export const Empty = ({ icon, title, children, action }) =>
  html`<div class="empty">
    ${icon && html`<div class="empty-icon"><${Icon} name=${icon} size=${28} /></div>`}
    <p class="empty-title">${title}</p>
    ${children && html`<p class="muted">${children}</p>`}
    ${action}
  </div>`;

const DAY = 86400000; // ms

function waiting(until, now) {
  const left = Math.ceil((until - now) / 1000);
  if (left <= 0) return "You can try again now.";
  if (left < 120) return `Wait ${left} s before the next attempt.`;
  const at = new Date(until);
  const day = at.toDateString() === new Date(now).toDateString() ? "" : `${at.toLocaleDateString("en-GB", left * 1000 < DAY * 6 ? { weekday: "long" } : { day: "numeric", month: "long" })}, `;
  return `Wait until ${day}${at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })} (${seconds(left)}) before the next attempt.`;
}

/** When a request makes sense again, as the server said. Screen readers are told once, not every second. */
export function ComeBack({ until }) {
  const [first] = useState(Date.now);
  const [now, setNow] = useState(first);
  const over = !until || now >= until;
  useEffect(() => {
    if (over) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [over]);
  if (!until) return null;
  return html`<p class="num"><span class="off-screen">${waiting(until, first)}</span><span aria-hidden="true">${waiting(until, now)}</span></p>`;
}

/** What went wrong, why, and a way to try again. */
export const Failure = ({ error, title, retry }) =>
  html`<div class="failure" role="alert">
    <${Icon} name="warning" />
    <div>
      <p class="failure-title">${title || "That did not work"}</p>
      <p>${error.message}</p>
      <${ComeBack} until=${error.until} />
      ${error.id && html`<p class="muted small">Request <code>${error.id}</code></p>`}
      ${retry && html`<button type="button" class="button" onClick=${retry}>Try again</button>`}
    </div>
  </div>`;

export const Skeleton = ({ lines = 4 }) =>
  html`<div class="skeleton" aria-hidden="true">${Array.from({ length: lines }, (_, i) => html`<i key=${i}></i>`)}</div>`;

export function CopyButton({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    const value = typeof text === "function" ? text() : text;
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      copyOldWay(value); // the clipboard is for secure contexts; a LAN address over http is none
    }
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  };
  return html`<button type="button" class="icon-button small" aria-label=${done ? "Copied" : label} title=${label} onClick=${copy}>
    <${Icon} name=${done ? "check" : "copy"} size=${16} />
  </button>`;
}

export function copyOldWay(value) {
  const area = document.createElement("textarea");
  area.value = value;
  area.className = "off-screen";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

const FOCUSABLE = "a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), textarea:not(:disabled), summary, [tabindex='0']";

/** Lead the focus from the last element of a box to its first, and back. */
function stayInside(event, box) {
  const all = [...box.querySelectorAll(FOCUSABLE)].filter((one) => one.offsetParent !== null && one.tabIndex >= 0);
  const [first, last] = [all[0], all.at(-1)];
  const at = document.activeElement;
  const leaves = !box.contains(at) || at === (event.shiftKey ? first : last) || (event.shiftKey && at === box);
  if (!first || !leaves) return;
  event.preventDefault();
  (event.shiftKey ? last : first).focus();
}

/** A panel at the right. Escape and a click beside it close it; the focus goes in and comes back. */
export function Drawer({ title, onClose, children, wide, side = "right", actions }) {
  const box = useRef();
  useEffect(() => {
    const before = document.activeElement;
    box.current?.focus();
    const onKey = (event) => {
      if (event.key === "Escape") onClose();
      if (event.key === "Tab" && box.current) stayInside(event, box.current);
    };
    addEventListener("keydown", onKey);
    return () => {
      removeEventListener("keydown", onKey);
      before?.focus?.();
    };
  }, []);
  return html`<div class="drawer-back" onClick=${onClose}></div>
    <aside class="drawer ${side} ${wide ? "wide" : ""}" role="dialog" aria-modal="true" aria-label=${title} tabindex="-1" ref=${box}>
      <header class="drawer-head">
        <h2>${title}</h2>
        ${actions}
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </header>
      <div class="drawer-body">${children}</div>
    </aside>`;
}

/** A question before what others would notice. Escape is no. */
export function Confirm({ title, action, onYes, onNo, children }) {
  const box = useRef();
  useEffect(() => box.current.showModal(), []);
  return html`<dialog class="confirm" ref=${box} aria-label=${title} onClose=${onNo}>
    <h2>${title}</h2>
    <div class="muted">${children}</div>
    <div class="row">
      <button type="button" class="button" autofocus onClick=${() => box.current.close()}>Cancel</button>
      <button type="button" class="button danger" onClick=${onYes}>${action}</button>
    </div>
  </dialog>`;
}

export const Tabs = ({ tabs, value, onChange, label }) => {
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([name]) => name === value);
    const next = tabs[(at + step + tabs.length) % tabs.length][0];
    onChange(next);
    event.currentTarget.querySelector(`[data-tab="${next}"]`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${onKey}>
    ${tabs.map(
      ([name, text]) =>
        html`<button key=${name} type="button" role="tab" data-tab=${name} aria-selected=${name === value}
          tabindex=${name === value ? 0 : -1} onClick=${() => onChange(name)}>${text}</button>`,
    )}
  </div>`;
};

/** Load with `ask` and show the states of that; `children(value, again)` draws the value. */
export function Loaded({ ask, deps = [], lines, title, children }) {
  const [state, setState] = useState({});
  const load = () => {
    let current = true;
    ask().then(
      (value) => current && setState({ value }),
      (error) => current && setState({ error }),
    );
    return () => (current = false);
  };
  useEffect(load, deps);
  if (state.error) return html`<${Failure} error=${state.error} title=${title} retry=${load} />`;
  if (state.value === undefined) return html`<${Skeleton} lines=${lines} />`;
  return children(state.value, load);
}

export function Details({ summary, open, children, onToggle, class: name = "" }) {
  return html`<details class="fold ${name}" open=${open} onToggle=${onToggle}>
    <summary><${Icon} name="right" size=${16} /><span>${summary}</span></summary>
    <div class="fold-body">${children}</div>
  </details>`;
}
