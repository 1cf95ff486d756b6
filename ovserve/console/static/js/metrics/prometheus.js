// Reads Prometheus's text format, and takes rates and quantiles from two readings of it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Name and labels of a line without its value. */
function headOf(name, inside) {
  const labels = {};
  for (const [, label, value] of (inside || "").matchAll(LABEL)) labels[label] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
  return { name, labels };
}

/** Samples by family name: [{ labels, value }]. vLLM's names of the same numbers are left out. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#" || line.startsWith("vllm:")) continue;
    const match = LINE.exec(line);
    if (!match) continue;
    const { name, labels } = headOf(match[1], match[2]);
    const list = found.get(name) ?? [];
    list.push({ labels, value: Number(match[3]) });
    found.set(name, list);
  }
  return found;
}

/** The readings that the server kept, as `parse` makes them: [{ at, values }]. A family without a change is shared. */
export function unpack({ now, at, series }) {
  const ahead = Date.now() / 1000 - now; // of this clock
  const changes = at.map(() => new Map()); // family -> [[head, value]]
  for (const [text, list] of Object.entries(series)) {
    const match = LINE.exec(`${text} 0`);
    if (!match) continue;
    const head = headOf(match[1], match[2]);
    for (const [i, value] of list) {
      if (!changes[i].has(head.name)) changes[i].set(head.name, []);
      changes[i].get(head.name).push([head, value]);
    }
  }
  const present = new Map(); // family -> head -> value
  let values = new Map();
  return at.map((time, i) => {
    values = new Map(values);
    for (const [name, list] of changes[i]) {
      const heads = present.get(name) ?? new Map();
      present.set(name, heads);
      for (const [head, value] of list) value === null ? heads.delete(head) : heads.set(head, value);
      if (heads.size) values.set(name, [...heads].map(([{ labels }, value]) => ({ labels, value })));
      else values.delete(name);
    }
    return { at: time + ahead, values };
  });
}

const growth = (a, b, name, want) => (sum(b.values, name, want) ?? 0) - (sum(a.values, name, want) ?? Infinity);
const RELOADS = [["changed", "accent", "reload"], ["failed", "bad", "reload failed"], ["invalid", "bad", "invalid configuration"]];

/** Reloads and ends of engines between readings: [{ at, tone, text }]. */
export function marksOf(samples) {
  return samples.slice(1).flatMap((now, i) => {
    const before = samples[i];
    const ended = labelsOf(now.values, "ovserve_engine_restarts_total", "name", {}).filter((name) => growth(before, now, "ovserve_engine_restarts_total", { name }) > 0);
    const started = sum(before.values, "ovserve_reloads_total") > 0; // the first load is counted too
    const reloads = RELOADS.filter(([result]) => started && growth(before, now, "ovserve_reloads_total", { result }) > 0);
    return [...ended.map((name) => ({ at: now.at, tone: "bad", text: `engine of ${name} ended` })), ...reloads.map(([, tone, text]) => ({ at: now.at, tone, text }))];
  });
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

/** A quantile of what a histogram counted between two readings; null if that is nothing. It is never over what the
 * largest value can have been: the sum, without the least that the others must have. */
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
  let [below, before, least, lowest, found] = [0, 0, 0, 0, null];
  for (const [bound, n] of buckets) {
    if (n > before) [least, lowest] = [least + below * (n - before), below];
    if (found === null && n >= rank) found = bound === Infinity ? below : below + ((bound - below) * (rank - before)) / Math.max(1, n - before);
    [below, before] = [bound, n];
  }
  const total = sum(b.values, `${name}_sum`, want) - sum(a.values, `${name}_sum`, want);
  return Math.min(found ?? below, Math.max(0, total - least + lowest));
}
