// Calls to the server: keys, errors, server-sent events. A key travels in a header alone, never in a URL.

export const ROOT = new URL("../", document.baseURI).pathname; // other than "/" behind a proxy

const STORED = { use: "ovserve.key", admin: "ovserve.adminKey" };
const keys = { use: sessionStorage.getItem(STORED.use) || "", admin: sessionStorage.getItem(STORED.admin) || "" };
const refusals = new Set();

/** Set the key for requests to models ("use") or for administration ("admin"); "" forgets it. */
export function setKey(which, key) {
  keys[which] = key;
  if (key) sessionStorage.setItem(STORED[which], key);
  else sessionStorage.removeItem(STORED[which]);
}

export const hasKey = (which) => Boolean(keys[which]);

/** Call `fn(error)` when the server answers 401. Returns a function that ends it. */
export function onUnauthorized(fn) {
  refusals.add(fn);
  return () => refusals.delete(fn);
}

export class ApiError extends Error {
  /** `until` is the time, in ms since 1970, before which the server wants no other attempt; 0: it named none. */
  constructor(message, { status = 0, code = null, param = null, id = "", body = null, until = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, param, id, body, until });
  }
}

async function failure(response) {
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    /* not JSON: shown as it is */
  }
  const error = body?.error ?? body;
  const message = (typeof error === "string" ? error : error?.message) || text || response.statusText;
  return new ApiError(message, {
    status: response.status,
    code: error?.code,
    param: error?.param,
    body,
    id: response.headers.get("x-request-id") || "",
    until: until(response.headers),
  });
}

/** When another attempt makes sense. `Retry-After` may be a date too, which servers between us and ours send. */
function until(headers) {
  const after = headers.get("retry-after");
  const ms = Number(headers.get("retry-after-ms") ?? (after ?? "") * 1000);
  if (ms > 0) return Date.now() + ms;
  return Date.parse(after ?? "") || 0;
}

/** Fetch a path of the server. Throws ApiError for any status but 2xx, and for a server that is not there. */
export async function call(path, { method = "GET", body, admin = false, signal, headers = {} } = {}) {
  const key = admin ? keys.admin || keys.use : keys.use || keys.admin;
  const sent = { ...headers };
  if (key) sent.Authorization = `Bearer ${key}`;
  const form = body instanceof FormData || body instanceof Blob; // with a type of its own
  if (body !== undefined && !form) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(ROOT + path, {
      method,
      signal,
      headers: sent,
      body: body === undefined || form || typeof body === "string" ? body : JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TimeoutError") throw new ApiError("The server takes long to answer. It may be busy, or the connection to it is lost.");
    throw new ApiError("The server does not answer. Is it running, and is this machine connected to it?");
  }
  if (response.ok) return response;
  const error = await failure(response);
  if (error.status === 401) refusals.forEach((fn) => fn(error));
  throw error;
}

export const get = async (path, options) => (await call(path, options)).json();

export async function send(path, body, options = {}) {
  const response = await call(path, { method: "POST", ...options, body });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** Yield the data of each server-sent event of a response. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new ApiError("The connection to the server broke off before the end.");
      });
      if (done) return;
      rest += value;
      let end;
      let from = 0;
      while ((end = rest.indexOf("\n\n", from)) >= 0) {
        const event = rest.slice(from, end);
        from = end + 2;
        const data = event.split("\n").filter((line) => line.startsWith("data:"));
        if (data.length) yield data.map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n");
      }
      rest = rest.slice(from);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Follow a stream of the console's API: `on(value)` for each event, again after a pause when it breaks.
 * Nothing is followed while the page is hidden. Returns a function that ends it. */
export function follow(path, on, onError = () => {}) {
  let stopped = false;
  let aborter = null;
  const visible = () =>
    document.visibilityState === "visible"
      ? Promise.resolve()
      : new Promise((resume) => document.addEventListener("visibilitychange", resume, { once: true }));
  const hide = () => document.visibilityState === "hidden" && aborter?.abort();
  document.addEventListener("visibilitychange", hide);
  (async () => {
    while (!stopped) {
      await visible();
      if (stopped) return;
      aborter = new AbortController();
      try {
        const response = await call(path, { admin: true, signal: aborter.signal });
        onError(null);
        for await (const data of events(response)) on(JSON.parse(data));
      } catch (error) {
        if (stopped) return;
        if (error.name !== "AbortError") onError(error);
        if ([401, 403, 404].includes(error.status)) return;
      }
      await new Promise((resume) => setTimeout(resume, 1500));
    }
  })();
  return () => {
    stopped = true;
    document.removeEventListener("visibilitychange", hide);
    aborter?.abort();
  };
}

/** Why a choice ended: its finish_reason, or what the server says in more detail. */
export const endOf = ({ finish_reason, stop_reason }) => (stop_reason === "repetition_detected" ? stop_reason : finish_reason);
