// One parameter as /v3/capabilities describes it: a control for its schema, its default, its range; what is
// ignored or rejected says why.

import { html, useEffect, useState } from "../../vendor/ui.js";

const REJECTED = /refused|rejected/;
const IGNORED = /reported|ignored/;

const low = (schema) => schema.minimum ?? schema.exclusiveMinimum;
const high = (schema) => schema.maximum ?? schema.exclusiveMaximum;

/** The range in words, if it is one that a person chose and not that of an integer type. */
function range(schema) {
  const [from, to] = [low(schema), high(schema)];
  const sane = (n) => n !== undefined && Math.abs(n) < 1e6;
  if (sane(from) && sane(to)) return `${from} to ${to}`;
  if (sane(from)) return `${schema.exclusiveMinimum !== undefined ? "above" : "from"} ${from}`;
  return "";
}

function fault(schema, value) {
  if (typeof value !== "number") return "";
  if (schema.type === "integer" && !Number.isInteger(value)) return "a whole number is expected";
  const below = value < schema.minimum || value <= schema.exclusiveMinimum;
  const above = value > schema.maximum || value >= schema.exclusiveMaximum;
  return below || above ? `expected ${range(schema) || "a value in range"}` : "";
}

function Numeric({ row, id, value, disabled, onChange }) {
  const { schema } = row;
  const [from, to] = [low(schema), high(schema)];
  const slides = schema.type === "number" && from !== undefined && to !== undefined && to - from <= 10;
  const read = (event) => onChange(event.target.value === "" ? undefined : Number(event.target.value));
  return html`<div class="number">
    ${slides &&
    html`<input type="range" min=${from} max=${to} step="0.05" value=${value ?? row.default ?? from} disabled=${disabled} aria-label=${`${row.name}, slider`}
      class=${value === undefined ? "unset" : ""} onInput=${(e) => onChange(Number(e.target.value))} />`}
    <input id=${id} type="number" step=${schema.type === "integer" ? 1 : "any"} value=${value ?? ""} placeholder=${row.default ?? "–"} disabled=${disabled} onInput=${read} />
  </div>`;
}

/** JSON or plain text, for arrays and objects. Kept as typed until it can be read. */
function Structured({ row, id, value, disabled, onChange }) {
  const show = (v) => (v === undefined ? "" : typeof v === "string" ? v : JSON.stringify(v));
  const [text, setText] = useState(show(value));
  useEffect(() => setText(show(value)), [value === undefined]);
  const plain = [row.schema, ...(row.schema.anyOf ?? [])].some((s) => s.type === "string");
  const [problem, setProblem] = useState("");
  const read = (event) => {
    const typed = event.target.value;
    setText(typed);
    setProblem("");
    if (!typed.trim()) return onChange(undefined);
    if (plain && !/^\s*[[{"]/.test(typed)) return onChange(typed);
    try {
      return onChange(JSON.parse(typed));
    } catch (error) {
      return setProblem(error.message);
    }
  };
  return html`<input id=${id} type="text" class="mono" value=${text} disabled=${disabled} placeholder=${plain ? "text or JSON" : "JSON"} spellcheck="false" onInput=${read} />
    ${problem && html`<p class="bad-text small">${problem}</p>`}`;
}

function control(row, props) {
  const { schema } = row;
  if (schema.type === "boolean" || schema.enum) {
    const options = schema.enum ?? [true, false];
    const read = (event) => props.onChange(event.target.value === "" ? undefined : options[Number(event.target.value)]);
    const standard = row.default === undefined || row.default === null ? "not set" : `default: ${row.default}`;
    return html`<select id=${props.id} disabled=${props.disabled} value=${props.value === undefined ? "" : String(options.indexOf(props.value))} onChange=${read}>
      <option value="">${standard}</option>
      ${options.map((option, i) => html`<option key=${i} value=${String(i)}>${String(option)}</option>`)}
    </select>`;
  }
  if (schema.type === "number" || schema.type === "integer") return html`<${Numeric} row=${row} ...${props} />`;
  return html`<${Structured} row=${row} ...${props} />`;
}

export function Parameter({ row, value, onChange }) {
  const rejected = REJECTED.test(row.status);
  const ignored = IGNORED.test(row.status);
  const id = `parameter-${row.name}`;
  const problem = fault(row.schema ?? {}, value);
  const about = [range(row.schema ?? {}), row.why].filter(Boolean).join("; ");
  return html`<div class="field parameter ${rejected ? "rejected" : ""} ${value !== undefined ? "set" : ""}">
    <div class="parameter-row">
      <label for=${id} class="field-name" title=${about}>${row.name}</label>
      ${control({ ...row, schema: row.schema ?? {} }, { id, value, disabled: rejected, onChange })}
    </div>
    ${problem && html`<p class="bad-text small">${problem}</p>`}
    ${(rejected || (ignored && value !== undefined)) && html`<p class="why small">${rejected ? "rejected" : "ignored"}: ${row.why}</p>`}
  </div>`;
}
