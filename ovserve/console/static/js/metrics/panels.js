// The panels: titles as on the Grafana dashboard of the examples, and how each value comes from two readings a
// (about ten seconds older) and b.

import { bytes, rate as number, seconds } from "../format.js";
import { labelsOf, quantile, rate, sum } from "./prometheus.js";

const gauge = (name, label) => ({ label, value: (a, b, want) => sum(b.values, name, want) });
const perSecond = (name, label) => ({ label, value: (a, b, want) => rate(a, b, name, want) });
const at = (name, q, label) => ({ label, value: (a, b, want) => quantile(a, b, name, q, want) });
const ratio = (up, down, label) => ({
  label,
  value: (a, b, want) => {
    const [x, y] = [rate(a, b, up, want), rate(a, b, down, want)];
    return y > 0 ? x / y : null;
  },
});
const mean = (name, label) => ratio(`${name}_sum`, `${name}_count`, label);
/** One line for each value of a label that is there. */
const by = (name, label, most = 4) => ({
  many: (b, want) => labelsOf(b.values, name, label, want).slice(0, most).map((value) => ({ label: value, value: (a, now, w) => rate(a, now, name, { ...w, [label]: value }) })),
});

const percent = (v) => `${(v * 100).toFixed(v && v < 0.1 ? 1 : 0)} %`;
const short = (v) => (Number.isInteger(v) ? v.toLocaleString("en-US") : number(v));
const perS = (v) => (v ? `${number(v)}/s` : "0");

export const PANELS = [
  { title: "Tokens per second", unit: number, series: [perSecond("ovserve_generated_tokens_total", "generated"), perSecond("ovserve_prompt_tokens_total", "prompt")] },
  { title: "Running and waiting", unit: short, series: [gauge("ovserve_requests_running", "running"), gauge("ovserve_requests_waiting", "waiting")] },
  { title: "Requests per second by end", unit: perS, series: [perSecond("ovserve_requests_finished_total", "finished"), perSecond("ovserve_requests_failed_total", "failed"), perSecond("ovserve_requests_cancelled_total", "cancelled")] },
  { title: "Time to first token", unit: seconds, series: [at("ovserve_time_to_first_token_seconds", 0.5, "p50"), at("ovserve_time_to_first_token_seconds", 0.95, "p95")] },
  { title: "Between tokens", unit: seconds, series: [at("ovserve_inter_token_latency_seconds", 0.5, "p50"), at("ovserve_inter_token_latency_seconds", 0.95, "p95")] },
  { title: "Whole request", unit: seconds, series: [at("ovserve_request_latency_seconds", 0.5, "p50"), at("ovserve_request_latency_seconds", 0.95, "p95")] },
  { title: "Where the time goes (mean)", unit: seconds, series: [mean("ovserve_queue_time_seconds", "queue"), mean("ovserve_prefill_time_seconds", "prefill"), mean("ovserve_decode_time_seconds", "decode")] },
  { title: "KV cache in use", unit: percent, range: [0, 1], series: [gauge("ovserve_kv_cache_usage_ratio", "used")] },
  { title: "Prompt tokens found in the prefix cache", unit: percent, range: [0, 1], series: [ratio("ovserve_prefix_cache_hits_total", "ovserve_prefix_cache_queries_total", "found")] },
  { title: "Drafted tokens that were accepted", unit: percent, range: [0, 1], series: [ratio("ovserve_accepted_tokens_total", "ovserve_drafted_tokens_total", "accepted")] },
  { title: "Tokens per request (mean)", unit: short, series: [mean("ovserve_request_prompt_tokens", "prompt"), mean("ovserve_request_generated_tokens", "generated")] },
  { title: "Queue", unit: short, series: [gauge("ovserve_queue_requests", "requests"), gauge("ovserve_queue_tokens", "tokens")] },
  { title: "Refused per second", unit: perS, series: [by("ovserve_requests_refused_total", "cause", 5)] },
  { title: "HTTP responses by status", unit: perS, series: [by("ovserve_http_responses_total", "status", 6)] },
  { title: "Resident memory", unit: bytes, series: [gauge("process_resident_memory_bytes", "server"), gauge("ovserve_engine_process_resident_memory_bytes", "engines")] },
  { title: "Processor seconds per second", unit: number, series: [perSecond("process_cpu_seconds_total", "server"), perSecond("ovserve_engine_process_cpu_seconds_total", "engines")] },
  { title: "Engine restarts", unit: short, series: [gauge("ovserve_engine_restarts_total", "since the start")] },
  { title: "Reloads", unit: short, series: ["changed", "failed", "invalid"].map((result) => ({ label: result, value: (a, b) => sum(b.values, "ovserve_reloads_total", { result }) })) },
];
