// What all pages share: who the caller is, which models there are, the theme, the place in the console.

import { useEffect, useReducer } from "../vendor/ui.js";
import { call, get, onUnauthorized, setKey } from "./api.js";

/** A value that components subscribe to. */
export function store(value) {
  const listeners = new Set();
  return {
    get value() {
      return value;
    },
    set(next) {
      value = next;
      listeners.forEach((fn) => fn());
    },
    patch(part) {
      this.set({ ...value, ...part });
    },
    subscribe(fn) {
      listeners.add(fn);
      return () => listeners.delete(fn);
    },
  };
}

export function useStore(source) {
  const [, again] = useReducer((n) => n + 1, 0);
  const { value } = source;
  useEffect(() => {
    if (source.value !== value) again(); // it changed between the drawing and this
    return source.subscribe(again);
  }, [source]);
  return value;
}

/** Calls `load` now and every `ms` while the page is visible. */
export function usePolling(load, ms) {
  useEffect(() => {
    load();
    const timer = setInterval(() => document.hidden || load(), ms);
    return () => clearInterval(timer);
  }, []);
}

export const session = store({ who: null, error: null, needsKey: "", models: null, modelsError: null });
export const place = store(readPlace());
export const theme = store(localStorage.getItem("ovserve.theme") || "system");

const POLL = 4000; // ms between two looks at the models

const PATIENCE = 10000; // ms until a look counts as failed: a stopped server keeps its connections open

/** A part of an address, which may have been cut off or typed: as it is if it cannot be decoded. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function readPlace() {
  const [page, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { page: page || "chat", rest };
}

/** Go to a page, such as go("graph", "smollm2"). */
export function go(...parts) {
  location.hash = `#/${parts.map(encodeURIComponent).join("/")}`;
  place.set(readPlace()); // its event comes later, and what is drawn until then would be of the place before
}

addEventListener("hashchange", () => place.set(readPlace()));

export function setTheme(name) {
  localStorage.setItem("ovserve.theme", name);
  theme.set(name);
  paint();
}

function paint() {
  if (theme.value === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme.value;
}
paint();

onUnauthorized((error) => session.patch({ needsKey: error.message }));

/** Ask who the caller is; opens the key box if the server wants a key. */
export async function identify() {
  try {
    const who = await get("console/api/whoami", { admin: true, signal: AbortSignal.timeout(PATIENCE) });
    session.patch({ who, error: null, needsKey: "" });
    await loadModels();
  } catch (error) {
    session.patch({ error: error.status === 401 ? null : error });
  }
}

export async function signIn(key, admin) {
  setKey("use", key || "");
  setKey("admin", admin || "");
  session.patch({ who: null, error: null, models: null });
  await identify();
  return session.value.who !== null;
}

export function signOut() {
  setKey("use", "");
  setKey("admin", "");
  session.patch({ who: null, models: null });
  identify();
}

export const restarted = store(""); // what the frame says of engines that ended, for some seconds
let forgetting = 0;

/** Engines that ended since the last look, even if they are ready again by now. */
function noteRestarts(before, now) {
  const known = new Map((before ?? []).map((m) => [m.id, m]));
  const ended = now.filter((m) => known.has(m.id) && (m.restarts > known.get(m.id).restarts || (m.state === "RESTARTING" && known.get(m.id).state === "AVAILABLE")));
  if (!ended.length) return;
  const restarting = ended.some((m) => m.state === "RESTARTING");
  const names = ended.length > 2 ? `${ended.length} models` : ended.map((m) => m.id).join(" and ");
  restarted.set(`The engine of ${names} ended and ${restarting ? "is restarting" : "was restarted"}.`);
  clearTimeout(forgetting);
  forgetting = setTimeout(() => restarted.set(""), 12000);
}

export async function loadModels() {
  try {
    const { models: data } = await get("console/api/models", { signal: AbortSignal.timeout(PATIENCE) });
    noteRestarts(session.value.models, data);
    const same = JSON.stringify(data) === JSON.stringify(session.value.models);
    if (!same || session.value.modelsError) session.patch({ models: data, modelsError: null });
  } catch (error) {
    session.patch({ modelsError: error });
  }
}

export function start() {
  const look = async () => {
    if (!document.hidden && !session.value.needsKey) await (session.value.who ? loadModels() : identify());
    setTimeout(look, POLL);
  };
  identify().then(() => setTimeout(look, POLL));
}

const capabilities = new Map();

/** What the server says of a model's endpoints and their parameters; kept until the model is loaded anew. */
export function capabilitiesOf(model) {
  const known = session.value.models?.find((m) => m.id === model);
  const stamp = `${model} ${known?.created} ${known?.state}`;
  if (capabilities.get(model)?.stamp !== stamp) {
    const asked = call(`v3/capabilities?model=${encodeURIComponent(model)}`).then(async (r) => (await r.json()).data[0]);
    capabilities.set(model, { stamp, asked });
    asked.catch(() => capabilities.delete(model));
  }
  return capabilities.get(model).asked;
}
