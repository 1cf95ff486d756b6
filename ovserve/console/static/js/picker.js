// The model picker: a button with the model's name and state, and a list to search in. Ctrl+K opens it.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { count, visible } from "./format.js";
import { Icon, STATE_TONES, StatePill } from "./parts.js";

export const IDLE = "Unloaded while it had no requests; the next one loads it.";
const shownState = (model) => (model.idle ? "UNLOADED" : model.state);

export function ModelPicker({ models, value, onPick, label = "Model", hotkey, none, compact }) {
  const [open, setOpen] = useState(false);
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const box = useRef();
  const search = useRef();
  const before = useRef(); // what had the focus when the key opened the list
  const current = models.find((m) => m.id === value);
  const shown = useMemo(() => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = models.filter((m) => words.every((word) => m.id.toLowerCase().includes(word)));
    return none && !words.length ? [{ id: "", none }, ...found] : found;
  }, [models, query, none]);

  // Before the browser paints: the next key pressed belongs to the search.
  useLayoutEffect(() => void (open && search.current?.focus()), [open]);
  useEffect(() => {
    if (!open) return undefined;
    setAt(Math.max(0, shown.findIndex((m) => m.id === value)));
    const away = (event) => {
      if (box.current?.contains(event.target)) return;
      before.current = undefined;
      setOpen(false);
    };
    addEventListener("pointerdown", away);
    return () => removeEventListener("pointerdown", away);
  }, [open]);
  useEffect(() => {
    if (!hotkey) return undefined;
    const onKey = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        if (!box.current?.contains(document.activeElement)) before.current = document.activeElement;
        setOpen(true);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [hotkey]);
  useEffect(() => {
    box.current?.querySelector(".option.at")?.scrollIntoView({ block: "nearest" });
  }, [at, open]);

  const close = () => {
    setOpen(false);
    setQuery("");
    const back = before.current?.isConnected && before.current !== document.body ? before.current : box.current?.querySelector("button");
    before.current = undefined;
    back?.focus();
  };
  const choose = (model) => {
    close();
    if (model) onPick(model.id);
  };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((at + step + shown.length) % Math.max(1, shown.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      choose(shown[at]);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  };

  return html`<div class="picker ${compact ? "compact" : ""}" ref=${box}>
    <button type="button" class="picker-button" aria-haspopup="listbox" aria-expanded=${open} aria-label=${`${label}: ${value || none || "none"}`} onClick=${() => (before.current = undefined, setOpen(!open))}>
      ${current ? html`<i class="dot ${STATE_TONES[shownState(current)] || ""}" title=${current.idle ? IDLE : current.reason || current.state}></i>` : null}
      <span class="picker-name" title=${visible(value)}>${visible(value) || none || label}</span><${Icon} name="down" size=${14} />
    </button>
    ${open &&
    html`<div class="popover" onKeyDown=${onKey}>
      <div class="picker-search"><${Icon} name="search" size=${16} />
        <input ref=${search} type="text" role="combobox" aria-expanded="true" aria-controls="models" aria-autocomplete="list" aria-label="Search models"
          aria-activedescendant=${shown[at] ? `model-${at}` : undefined} placeholder=${`Search ${count(models.length)} model${models.length === 1 ? "" : "s"}`}
          value=${query} onInput=${(e) => { setQuery(e.target.value); setAt(0); }} />
      </div>
      <ul role="listbox" id="models" aria-label=${label}>
        ${shown.map(
          (model, i) => html`<li key=${model.id} id=${`model-${i}`} role="option" aria-selected=${model.id === value} class="option ${i === at ? "at" : ""}"
            onPointerMove=${() => setAt(i)} onClick=${() => choose(model)}>
            <span class="option-name" title=${visible(model.id)}>${model.none || visible(model.id)}</span>
            ${model.parent && html`<span class="muted small cut" title=${`LoRA adapter of ${model.parent}`}>LoRA of ${model.parent}</span>`}
            ${model.max_model_len && html`<span class="muted small num">${count(model.max_model_len)}</span>`}
            ${model.state && html`<${StatePill} state=${shownState(model)} reason=${model.idle ? IDLE : model.reason} />`}
          </li>`,
        )}
      </ul>
      ${!shown.length && html`<p class="muted picker-none">No model is called like that.</p>`}
    </div>`}
  </div>`;
}
