// What an inference gave: numbers in short, the highest of a row of scores, texts, and maps as pictures.

import { html, useEffect, useRef } from "../../vendor/ui.js";
import { count } from "../format.js";
import { CopyButton } from "../parts.js";
import { Card } from "./parts.js";

const FIRST = 24; // values shown
const MOST_SCORES = 20000;
const show = (v) => (typeof v !== "number" ? String(v) : Number.isInteger(v) ? String(v) : Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-4) ? v.toExponential(3) : v.toPrecision(5).replace(/\.?0+$/, ""));

export const Outputs = ({ outputs }) => outputs.map((output) => html`<${Output} key=${output.name} output=${output} />`);

function stats(data) {
  let [low, high, sum, odd] = [Infinity, -Infinity, 0, 0];
  for (const value of data) {
    if (!Number.isFinite(value)) odd += 1;
    else {
      low = Math.min(low, value);
      high = Math.max(high, value);
      sum += value;
    }
  }
  return { low, high, mean: sum / Math.max(1, data.length - odd), odd };
}

function Output({ output }) {
  const { name, datatype, shape, data } = output;
  const texts = datatype === "BYTES" || typeof data?.[0] === "string";
  const about = `${datatype} [${shape.join(", ")}]`;
  const tools = html`<${CopyButton} text=${() => JSON.stringify(Array.from(data))} label=${`Copy the elements of ${name}`} />`;
  if (!data?.length) return html`<${Card} title=${name} about=${about}><p class="muted card-body">No elements.</p><//>`;
  if (texts) return html`<${Card} title=${name} about=${about} tools=${tools}><ol class="output-texts card-body">${data.slice(0, 500).map((t, i) => html`<li key=${i}>${t}</li>`)}</ol><//>`;
  const { low, high, mean, odd } = stats(data);
  const row = shape.filter((n) => n !== 1).length <= 1 && data.length > 1 && data.length <= MOST_SCORES;
  const [height, width] = shape.slice(-2);
  const map = shape.length >= 2 && height >= 8 && width >= 8 && data.length === height * width;
  return html`<${Card} title=${name} about=${about} tools=${tools}><div class="card-body output">
    ${(data.length > FIRST || odd > 0) && html`<dl class="facts"><dt>Least</dt><dd class="num">${show(low)}</dd><dt>Mean</dt><dd class="num">${show(mean)}</dd><dt>Most</dt><dd class="num">${show(high)}</dd>
      ${odd > 0 && html`<dt>Not finite</dt><dd class="num bad-text">${count(odd)}</dd>`}</dl>`}
    ${map && html`<${Picture} data=${data} width=${width} height=${height} low=${low} high=${high} name=${name} />`}
    ${row && data.length > 4 && html`<${Top} data=${data} low=${low} high=${high} />`}
    <p class="mono small wrapped">${Array.from(data.slice(0, FIRST), show).join("  ")}${data.length > FIRST ? html` <span class="muted">… ${count(data.length)} in all</span>` : ""}</p>
  </div><//>`;
}

function Top({ data, low, high }) {
  const best = Array.from(data, (value, i) => [value, i]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  return html`<ol class="ranking top">${best.map(([value, i]) => html`<li key=${i}><span class="rank-text">index <b class="num">${i}</b></span><b class="num">${show(value)}</b><i style=${{ width: `${high > low ? (100 * (value - low)) / (high - low) : 0}%` }}></i></li>`)}</ol>`;
}

function Picture({ data, width, height, low, high, name }) {
  const canvas = useRef();
  useEffect(() => {
    const context = canvas.current.getContext("2d");
    const image = context.createImageData(width, height);
    const scale = high > low ? 255 / (high - low) : 0;
    for (let i = 0; i < data.length; i += 1) image.data.set([0, 1, 2].map(() => (data[i] - low) * scale).concat(255), i * 4);
    context.putImageData(image, 0, 0);
  }, [data]);
  return html`<canvas ref=${canvas} width=${width} height=${height} class="output-map" role="img" aria-label=${`${name} as a picture, ${width} by ${height}`}></canvas>`;
}
