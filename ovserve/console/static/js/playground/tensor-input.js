// The form of one input tensor: its shape, and where its elements come from.

import { html, useState } from "../../vendor/ui.js";
import { DropFile, Field, useUrl } from "./parts.js";

const FILLS = { random: "random numbers", zeros: "zeros", values: "these values", text: "these texts", image: "an image" };

/** The pixels of an image file: { width, height, data } with three bytes each, blue first if `bgr`. */
async function pixelsOf(file, bgr) {
  const picture = await createImageBitmap(file);
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const { data } = context.getImageData(0, 0, picture.width, picture.height);
  const out = new Uint8Array((data.length / 4) * 3);
  for (let i = 0, o = 0; i < data.length; i += 4, o += 3) {
    out[o] = data[bgr ? i + 2 : i];
    out[o + 1] = data[i + 1];
    out[o + 2] = data[bgr ? i : i + 2];
  }
  return { width: picture.width, height: picture.height, data: out };
}

export function TensorInput({ input, types, layout, onChange }) {
  const [problem, setProblem] = useState("");
  const url = useUrl(input.fill === "image" ? input.file : null);
  const sides = input.shape.split(",").length;
  const may = (fill) => {
    if (fill === "text") return input.datatype === "BYTES";
    if (fill === "image") return input.open || sides === 4;
    return input.datatype !== "BYTES";
  };
  const fills = Object.keys(FILLS).filter(may);
  const set = (part) => {
    const next = { ...input, ...part };
    if (input.open && part.fill === "image") next.datatype = "UINT8"; // what pixels are
    if (part.datatype && part.datatype !== "UINT8" && next.fill === "image") next.fill = "random";
    const allowed = next.datatype === "BYTES" ? ["text"] : fills.filter((f) => f !== "text");
    if (!allowed.includes(next.fill)) next.fill = next.datatype === "BYTES" ? "text" : "random";
    onChange(next);
  };
  const take = async (file, bgr = input.bgr) => {
    setProblem("");
    try {
      // A model's own image input decodes and scales the file itself; a graph of tensors takes pixels.
      if (input.open) onChange({ ...input, fill: "image", file, bgr, pixels: await pixelsOf(file, bgr) });
      else onChange({ ...input, fill: "image", file, bytes: new Uint8Array(await file.arrayBuffer()) });
    } catch {
      setProblem(`${file.name} cannot be read as an image.`);
    }
  };
  return html`<fieldset class="tensor">
    <legend><code>${input.name}</code>${layout && html` <span class="muted small">${layout}</span>`}</legend>
    <div class="fields">
      ${input.open && html`<${Field} label="Datatype"><select value=${input.datatype} onChange=${(e) => set({ datatype: e.target.value })}>${types.map((t) => html`<option key=${t}>${t}</option>`)}</select><//>`}
      ${input.fill !== "image" && input.datatype !== "BYTES" && html`<${Field} label="Shape"><input class="mono" value=${input.shape} onInput=${(e) => set({ shape: e.target.value })} /><//>`}
      <${Field} label="Filled with"><select value=${input.fill} onChange=${(e) => set({ fill: e.target.value })}>${fills.map((f) => html`<option key=${f} value=${f}>${FILLS[f]}</option>`)}</select><//>
    </div>
    ${(input.fill === "values" || input.fill === "text") && html`<textarea rows="4" class="mono" aria-label=${`Elements of ${input.name}`} placeholder=${input.fill === "text" ? "one text a line" : "1, 2, 3"} value=${input.text} onInput=${(e) => set({ text: e.target.value })}></textarea>`}
    ${input.fill === "image" && html`<${DropFile} label="Image" accept="image/*" icon="image" file=${input.file} onFile=${(file) => take(file)} />
      ${url && html`<img class="preview" src=${url} alt=${input.file.name} />`}
      ${input.open
        ? html`<label class="check"><input type="checkbox" checked=${input.bgr} onChange=${(e) => { set({ bgr: e.target.checked }); if (input.file) take(input.file, e.target.checked); }} />Blue first (BGR); the tensor is [height, width, 3]</label>`
        : html`<p class="muted small">The server decodes the file and scales it to the input.</p>`}`}
    ${problem && html`<p class="bad-text small" role="alert">${problem}</p>`}
  </fieldset>`;
}
