// Numbers, times and sizes as text. Widths stay equal while values change (tabular figures do the rest).

export const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en-US"));

export function bytes(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) {
    n /= 1000;
    i += 1;
  }
  return `${n.toFixed(i && n < 100 ? 1 : 0)} ${units[i]}`;
}

/** Seconds as text: 312 ms, 4.21 s, 3 min 12 s. */
export function seconds(s) {
  if (s === null || s === undefined || Number.isNaN(s)) return "–";
  if (s === 0) return "0";
  if (s < 0.0995) return `${(s * 1000).toFixed(s < 0.00995 ? 2 : 1)} ms`;
  if (s < 0.9995) return `${(s * 1000).toFixed(0)} ms`;
  if (s < 59.95) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

export const rate = (n) => (n === null || n === undefined || !Number.isFinite(n) ? "–" : n === 0 ? "0" : n.toFixed(n < 0.095 ? 2 : n < 100 ? 1 : 0));

export const clock = (at) => new Date(at).toLocaleTimeString("en-GB", { hour12: false });

export function age(at) {
  const s = (Date.now() - at) / 1000;
  if (s < 60) return "now";
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

/** A name with its invisible characters written out: one that turns the direction of text makes it look like another. */
export const visible = (name) => (name ?? "").replace(/[\p{Cc}\p{Cf}]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

export const pretty = (value) => JSON.stringify(value, null, 2);

const LARGE = 200000; // characters

/** JSON text set out in lines, or the text itself if it is not (yet) JSON. */
export function prettyText(text) {
  if (text.length > LARGE) return text; // it is read anew whenever it grows
  try {
    return pretty(JSON.parse(text));
  } catch {
    return text;
  }
}
