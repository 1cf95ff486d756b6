export { EditorState, StateEffect, StateField, RangeSet } from "@codemirror/state";
export {
  EditorView, keymap, lineNumbers, highlightActiveLine, highlightActiveLineGutter, drawSelection, Decoration,
} from "@codemirror/view";
export { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
export {
  StreamLanguage, syntaxHighlighting, HighlightStyle, bracketMatching, indentUnit,
} from "@codemirror/language";
export { setDiagnostics, lintGutter, lintKeymap } from "@codemirror/lint";
export { autocompletion, completionKeymap, closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
export { search, searchKeymap, highlightSelectionMatches } from "@codemirror/search";
export { unifiedMergeView } from "@codemirror/merge";
export { tags } from "@lezer/highlight";
