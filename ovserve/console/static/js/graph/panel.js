// The text of the graph beside its drawing: checked as one types, applied without a dropped request, undone.

import { html, useEffect, useRef, useState } from "../../vendor/ui.js";
import { ApiError, call, get, send } from "../api.js";
import { Failure, Icon, Pill, Skeleton } from "../parts.js";

const PAUSE = 300; // ms after the last key
const drafts = new Map(); // graph -> { hash, text } of edits that were left without being applied

export function TextPanel({ found, who, line, onApplied }) {
  const [Editor, setEditor] = useState(null);
  const [text, setText] = useState(() => (drafts.get(found.name)?.hash === found.hash ? drafts.get(found.name).text : found.text));
  const [base, setBase] = useState({ text: found.text, hash: found.hash });
  const [version, setVersion] = useState(0);
  const [diagnostics, setDiagnostics] = useState([]);
  const [checking, setChecking] = useState(false);
  const [state, setState] = useState({});
  const [changes, setChanges] = useState(false);
  const [at, setAt] = useState(line);
  const number = useRef(0);
  const dirty = text !== base.text;

  useEffect(() => setAt(line), [line]);
  useEffect(() => {
    import("./editor.js").then((m) => setEditor(() => m.Editor), (error) => setState({ error }));
  }, []);
  useEffect(() => {
    if (found.hash === base.hash || state.busy) return; // after an edit the graph is loaded again
    if (dirty) setState({ stale: true });
    else replace(found.text, found.hash);
  }, [found]);
  useEffect(() => {
    if (dirty) drafts.set(found.name, { hash: base.hash, text });
    else drafts.delete(found.name);
  }, [text, base]);
  useEffect(() => {
    number.current += 1;
    const mine = number.current;
    const timer = setTimeout(async () => {
      setChecking(true);
      try {
        const { diagnostics: list } = await send("console/api/check", { name: found.name, text }, { admin: true });
        if (mine === number.current) setDiagnostics(list);
        if (mine === 1 && !line && list[0]?.line > 0) setAt({ at: list[0].line });
      } catch (error) {
        if (mine === number.current) setState({ error });
      }
      if (mine === number.current) setChecking(false);
    }, PAUSE);
    return () => clearTimeout(timer);
  }, [text]);

  const replace = (value, hash) => {
    setText(value);
    setBase({ text: value, hash });
    setVersion((v) => v + 1);
    setState({});
  };
  const edit = (value) => {
    setText(value);
    setVersion((v) => v + 1);
  };
  const apply = async (value) => {
    setState({ busy: true });
    try {
      const response = await call(`console/api/graphs/${encodeURIComponent(found.name)}`, {
        method: "PUT", admin: true, body: { text: value }, headers: { "If-Match": `"${base.hash}"` },
      });
      const made = await response.json();
      if (!made.applied) {
        setDiagnostics(made.diagnostics);
        setState({ error: new ApiError("Nothing was written: the check found what is marked below.") });
        return;
      }
      const before = base.text;
      if (value !== text) edit(value);
      setBase({ text: value, hash: made.hash });
      setChanges(false);
      setState(made.loaded ? { done: true, before } : { error: new ApiError(`The file was written, but could not be loaded, so the version before goes on serving: ${made.error}`), before });
      onApplied();
    } catch (error) {
      setState(error.status === 412 ? { stale: true } : { error });
    }
  };
  const reload = async () => {
    try {
      const fresh = await get(`console/api/graphs/${encodeURIComponent(found.name)}`, { admin: true });
      replace(fresh.text, fresh.hash);
    } catch (error) {
      setState({ stale: true, error });
    }
  };
  const download = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    link.download = "graph.pbtxt";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const errors = diagnostics.filter((d) => d.severity === "error");
  const may = who.write && found.writable;
  const earlier = state.before ?? (base.hash === found.hash ? found.earlier : null);
  return html`<div class="text-panel">
    <div class="text-head">
      <code class="cut grow" title=${found.path}>${found.path}</code>
      ${checking ? html`<${Pill}>checking<//>` : errors.length ? html`<${Pill} tone="bad">${errors.length} error${errors.length > 1 ? "s" : ""}<//>` : html`<${Pill} tone="good">valid<//>`}
    </div>
    ${state.stale && html`<div class="notice"><span class="grow">The file has changed on disk since you opened it.</span><button type="button" class="button small" onClick=${reload}>Take the file</button></div>`}
    ${state.error && html`<div class="panel-note"><${Failure} error=${state.error} title="Not applied" /></div>`}
    ${state.done && html`<p class="notice done" role="status">Applied: the new version answers from now on, running requests finish on the old one.</p>`}
    <div class="editor-box">${Editor && text !== null
      ? html`<${Editor} value=${text} version=${version} original=${changes ? base.text : undefined} line=${at} diagnostics=${diagnostics} calculators=${found.calculators} onChange=${(t) => { setText(t); if (state.done || state.error) setState({ before: state.before }); }} onSave=${() => dirty && may && apply(text)} />`
      : html`<div class="panel-note"><${Skeleton} lines=${10} /></div>`}</div>
    ${diagnostics.length > 0 && html`<ul class="diagnostics" aria-label="What the check found">
      ${diagnostics.map((d, i) => html`<li key=${i}><button type="button" onClick=${() => setAt({ at: d.line || 1 })}>
        <span class=${d.severity === "error" ? "bad-text" : "warn-text"}><${Icon} name="warning" size=${14} /></span>
        <span>${d.line > 0 && html`<b class="num">${d.line}</b> `}${d.node && html`<code>${d.node}</code> `}${d.field && html`<code>${d.field}</code> `}${d.message}</span></button></li>`)}
    </ul>`}
    <div class="text-foot">
      ${dirty && html`<label class="check"><input type="checkbox" checked=${changes} onChange=${(e) => { setChanges(e.target.checked); }} />Changes</label>
        <button type="button" class="button small" onClick=${() => { setChanges(false); edit(base.text); }}>Discard</button>`}
      <span class="grow"></span>
      ${!may && html`<span class="muted small">${who.write ? "The directory cannot be written." : "Editing is off (--console_write)."}</span><button type="button" class="button small" onClick=${download}><${Icon} name="download" size=${16} />Download</button>`}
      ${may && earlier && !dirty && earlier !== text && html`<button type="button" class="button small" disabled=${state.busy} onClick=${() => apply(earlier)}><${Icon} name="undo" size=${16} />Undo</button>`}
      ${may && html`<button type="button" class="button primary small" disabled=${!dirty || errors.length > 0 || checking || state.busy} onClick=${() => apply(text)}>${state.busy ? "Applying" : "Apply"}</button>`}
    </div>
  </div>`;
}
