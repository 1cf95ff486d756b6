// The editor of graph.pbtxt. CodeMirror lives in a shadow root, where it can use constructed style sheets: in the
// document it would make style elements, which the page's policy forbids.

import {
  EditorState, EditorView, HighlightStyle, autocompletion, bracketMatching, closeBrackets, closeBracketsKeymap, completionKeymap,
  defaultKeymap, drawSelection, highlightActiveLine, highlightActiveLineGutter, highlightSelectionMatches, history, historyKeymap,
  indentUnit, indentWithTab, keymap, lineNumbers, lintGutter, lintKeymap, searchKeymap, setDiagnostics, syntaxHighlighting, tags,
  unifiedMergeView,
} from "../../vendor/cm.js";
import { html, useEffect, useRef } from "../../vendor/ui.js";
import { completer, pbtxt } from "./pbtxt.js";

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "12.5px", color: "var(--text)", backgroundColor: "var(--bg)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--text)", padding: "8px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--bg)", color: "var(--muted)", border: "none" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 7%, transparent)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent", color: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--accent) 26%, transparent) !important" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-soft) !important", outline: "1px solid var(--accent)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--border)", borderRadius: "6px", overflow: "hidden" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent-fill)", color: "#fff" },
  ".cm-diagnostic": { padding: "4px 8px", fontFamily: "system-ui, sans-serif", maxWidth: "60ch", whiteSpace: "pre-wrap" },
  ".cm-panels": { backgroundColor: "var(--surface)", color: "var(--text)", borderColor: "var(--border)" },
  ".cm-panel input, .cm-panel button": { color: "inherit", background: "var(--bg)", border: "1px solid var(--border-strong)", borderRadius: "4px" },
  ".cm-changedLine": { backgroundColor: "color-mix(in srgb, var(--good) 12%, transparent) !important" },
  ".cm-deletedChunk": { backgroundColor: "color-mix(in srgb, var(--bad) 12%, transparent)" },
  ".cm-changedText": { background: "color-mix(in srgb, var(--good) 28%, transparent) !important" },
  ".cm-deletedText": { background: "color-mix(in srgb, var(--bad) 28%, transparent) !important" },
});
const colours = syntaxHighlighting(
  HighlightStyle.define([
    { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
    { tag: tags.string, color: "light-dark(#1d6f2f, #8fd19e)" },
    { tag: tags.propertyName, color: "light-dark(#0b57ad, #82bcff)" },
    { tag: [tags.number, tags.bool, tags.atom], color: "light-dark(#8f4a00, #f0b26a)" },
    { tag: tags.typeName, color: "light-dark(#8a3f9c, #d59bf6)" },
  ]),
);

/** `value` is set anew when `version` changes; `original` shows the changes to it. */
export function Editor({ value, version, original, line, diagnostics, readOnly, calculators, onChange, onSave }) {
  const host = useRef();
  const view = useRef(null);
  const latest = useRef({});
  latest.current = { onChange, onSave, value };

  useEffect(() => {
    const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
    const made = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: latest.current.value,
        extensions: [
          lineNumbers(), highlightActiveLineGutter(), history(), drawSelection(), bracketMatching(), closeBrackets(), highlightActiveLine(),
          highlightSelectionMatches(), lintGutter(), indentUnit.of("  "), pbtxt, colours, look,
          autocompletion({ override: [completer(calculators ?? [])] }),
          EditorView.contentAttributes.of({ "aria-label": "graph.pbtxt", spellcheck: "false" }),
          EditorState.readOnly.of(Boolean(readOnly)),
          ...(original === undefined ? [] : [unifiedMergeView({ original, mergeControls: false, highlightChanges: true, collapseUnchanged: { margin: 3, minSize: 6 } })]),
          keymap.of([
            { key: "Mod-s", run: () => (latest.current.onSave(), true), preventDefault: true },
            ...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap, indentWithTab,
          ]),
          EditorView.updateListener.of((update) => update.docChanged && latest.current.onChange(update.state.doc.toString())),
        ],
      }),
    });
    view.current = made;
    return () => made.destroy();
  }, [version, original, readOnly, calculators]);

  useEffect(() => {
    if (!line || !view.current) return;
    const { doc } = view.current.state;
    const at = doc.line(Math.max(1, Math.min(line.at, doc.lines)));
    view.current.dispatch({ selection: { anchor: at.from }, effects: EditorView.scrollIntoView(at.from, { y: "start", yMargin: 24 }) });
    view.current.focus();
  }, [line, version]);

  useEffect(() => {
    const { state } = view.current;
    const marks = diagnostics
      .filter((d) => d.line > 0 && d.line <= state.doc.lines)
      .map((d) => {
        const at = state.doc.line(d.line);
        const indent = at.text.length - at.text.trimStart().length;
        return { from: at.from + indent, to: Math.max(at.to, at.from + indent), severity: d.severity, message: d.message };
      });
    view.current.dispatch(setDiagnostics(state, marks));
  }, [diagnostics, version, original]);

  return html`<div class="editor-host" ref=${host}></div>`;
}
