// Reads Prometheus's text format, and takes rates and quantiles from two readings of it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Samples by family name: [{ labels, value }]. vLLM's names of the same numbers are left out. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#" || line.startsWith("vllm:")) continue;
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] || "").matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    const list = found.get(match[1]) ?? [];
    list.push({ labels, value: Number(match[3]) });
    found.set(match[1], list);
  }
  return found;
}

const fits = (labels, want) => Object.entries(want).every(([name, value]) => !value || labels[name] === undefined || labels[name] === value);

/** The sum of a family over what fits; null where it is absent. */
export function sum(values, name, want = {}) {
  const list = values.get(name);
  if (!list) return null;
  return list.reduce((total, { labels, value }) => (fits(labels, want) ? total + value : total), 0);
}

export const labelsOf = (values, name, label, want) => [
  ...new Set((values.get(name) ?? []).filter((s) => fits(s.labels, want)).map((s) => s.labels[label])),
];

/** Growth per second between two readings; null after a restart, which sets counters back. */
export function rate(a, b, name, want) {
  const [from, to] = [sum(a.values, name, want), sum(b.values, name, want)];
  if (from === null || to === null || to < from || b.at <= a.at) return null;
  return (to - from) / (b.at - a.at);
}

/** A quantile of what a histogram counted between two readings; null if that is nothing. */
export function quantile(a, b, name, q, want) {
  const growth = new Map();
  for (const [values, sign] of [[a.values, -1], [b.values, 1]]) {
    for (const { labels, value } of values.get(`${name}_bucket`) ?? []) {
      if (fits(labels, want)) growth.set(labels.le, (growth.get(labels.le) ?? 0) + sign * value);
    }
  }
  const buckets = [...growth].map(([le, n]) => [le === "+Inf" ? Infinity : Number(le), n]).sort((x, y) => x[0] - y[0]);
  const all = buckets.at(-1)?.[1];
  if (!(all > 0)) return null;
  const rank = q * all;
  let [below, before] = [0, 0];
  for (const [bound, n] of buckets) {
    if (n >= rank) return bound === Infinity ? below : below + ((bound - below) * (rank - before)) / Math.max(1, n - before);
    [below, before] = [bound, n];
  }
  return below;
}
