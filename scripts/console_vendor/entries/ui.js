// Preact with its hooks, and htm bound to Preact's `h`: one file, because a browser needs an import map for
// bare names, and the content security policy forbids an inline one.
import { h } from "preact";
import htm from "htm";
export { h, render, Fragment, createContext, createRef, toChildArray } from "preact";
export {
  useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext, useReducer,
} from "preact/hooks";
export const html = htm.bind(h);
