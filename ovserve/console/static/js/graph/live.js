// The counters of a graph at work: differences of what the server counts, over the last two seconds.

import { useEffect, useRef, useState } from "../../vendor/ui.js";
import { follow } from "../api.js";

const WINDOW = 4; // events, of half a second each

const stateOf = ({ running, revision, engines = {}, errors = {}, packets = {} }) => ({ running, revision, engines, errors, packets });

/** The state of the engine whose side packet a node takes; "" if it has none or it is ready. */
export function engineState(node, live) {
  const states = node.side_inputs.map((s) => live?.engines[s.packet]).filter((state) => state && state !== "ready");
  return states[0] ?? "";
}

const BUCKET_GROWTH = 1.2; // bucket n of a node's calls ends at 1.2**n microseconds, as in console/capture.py

/** The time in seconds that a share of the calls since `before` took at most, read to a tenth; null without any. */
export function percentile(buckets, before, share) {
  const found = Object.entries(buckets).map(([n, calls]) => [Number(n), calls - (before[n] ?? 0)]).sort(([a], [b]) => a - b);
  let left = share * found.reduce((sum, [, calls]) => sum + calls, 0);
  if (!left) return null;
  const [bucket] = found.find(([, calls]) => (left -= calls) <= 1e-9) ?? found.at(-1);
  return 1e-6 * BUCKET_GROWTH ** (bucket - 0.5);
}

// A percentile is the middle of a bucket, which may lie above the longest call in it.
const atMost = (value, most) => (value === null ? null : Math.min(value, most));

export function difference(before, now) {
  const span = now.at - before.at;
  if (!(span > 0)) return null;
  const nodes = {};
  let busy = 0;
  for (const [name, [calls, seconds, longest, errors, buckets]] of Object.entries(now.nodes)) {
    const [calls0, seconds0, , , buckets0] = before.nodes[name] ?? [0, 0, 0, 0, {}];
    const [n, time] = [calls - calls0, seconds - seconds0];
    busy += time;
    nodes[name] = { rate: n / span, mean: n ? time / n : null, p95: atMost(percentile(buckets, buckets0, 0.95), longest), time, longest, errors };
  }
  for (const one of Object.values(nodes)) one.share = busy > 0 ? one.time / busy : 0;
  const streams = {};
  for (const [name, [packets, longest]] of Object.entries(now.streams)) {
    streams[name] = { rate: (packets - (before.streams[name]?.[0] ?? 0)) / span, packets, longest };
  }
  return { ...stateOf(now), nodes, streams };
}

export function useLive(name) {
  const [live, setLive] = useState(null);
  const [error, setError] = useState(null);
  const events = useRef([]);
  useEffect(() => {
    events.current = [];
    setLive(null);
    if (!name) return undefined;
    return follow(
      `console/api/graphs/${encodeURIComponent(name)}/live`,
      (event) => {
        const list = events.current;
        if (list.length && event.at < list.at(-1).at) list.length = 0;
        list.push(event);
        if (list.length > WINDOW + 1) list.shift();
        setLive(difference(list[0], event) ?? { ...stateOf(event), nodes: {}, streams: {} });
      },
      (failure) => {
        setError(failure);
        if (!failure) return;
        events.current = [];
        setLive((before) => before && { ...before, running: 0, engines: {}, nodes: {}, streams: {} }); // of a moment that is over
      },
    );
  }, [name]);
  return [live, error];
}

const DOT_GAP = 26; // px between two dots of a stream
const MOST_DOTS = 30; // a second, over the whole picture
export const DOT_SECONDS = 1.1; // that a dot takes along its stream

/** How many dots each stream shows at a time, in proportion to the rates. */
export function dotsOf(live, edges) {
  const rates = edges.map((edge) => (edge.kind === "side" ? 0 : (live?.streams[edge.name]?.rate ?? 0)));
  const all = rates.reduce((a, b) => a + b, 0);
  const scale = Math.min(1, MOST_DOTS / Math.max(all, 0.001)) * DOT_SECONDS;
  return new Map(edges.map((edge, i) => [edge.id, rates[i] ? Math.max(1, Math.min(Math.floor(edge.length / DOT_GAP), Math.round(rates[i] * scale))) : 0]));
}
