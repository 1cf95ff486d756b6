// Images of a text, or of a text and an image: their steps and unfinished images as they are drawn.

import { html, useState } from "../../vendor/ui.js";
import { ApiError, events } from "../api.js";
import { Progress } from "../requests/stage.js";
import { Card, curlForm, curlJson, DropFile, Field, given, known, post, RunForm, useRun, useUrl } from "./parts.js";

const SOURCE = /^data:|^https?:/;
const number = (text) => (text === "" ? undefined : Number(text));

export const Generations = (props) => html`<${Images} ...${props} edit=${false} />`;
export const Edits = (props) => html`<${Images} ...${props} edit=${true} />`;

function Images({ model, endpoint, parameters, edit }) {
  const row = (name) => known(parameters, name);
  const [values, setValues] = useState({ prompt: edit ? "the same at night" : "a lighthouse at night", negative_prompt: "", size: "", n: "", num_inference_steps: "", seed: "", strength: "" });
  const [file, setFile] = useState(null);
  const [mask, setMask] = useState(null);
  const run = useRun();
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const fields = () =>
    given({
      model, prompt: values.prompt, negative_prompt: values.negative_prompt, size: values.size, n: number(values.n),
      num_inference_steps: number(values.num_inference_steps), seed: number(values.seed), strength: edit ? number(values.strength) : undefined,
    });
  const streams = Boolean(row("stream"));
  const body = () => {
    const all = { ...fields(), ...(streams ? { stream: true, partial_images: 2 } : {}) };
    if (!edit) return all;
    const form = new FormData(); // the image as it is, without the third that base64 adds
    for (const [name, value] of Object.entries({ ...all, image: file, ...(mask ? { mask } : {}) })) form.append(name, value);
    return form;
  };
  const work = async (signal, show) => {
    const { response, id } = await post(`v3/${endpoint}`, body(), signal);
    const made = { id, images: [] };
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
      const value = await response.json();
      made.images = value.data.map((one) => ({ url: source(one, value.output_format), seed: one.seed, done: true }));
      return made;
    }
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, event.error);
      const index = event.image_index ?? 0;
      const image = { ...made.images[index] };
      if (event.steps) Object.assign(image, { step: event.step, steps: event.steps });
      if (event.b64_json) image.url = source(event, event.output_format);
      if (/completed$/.test(event.type)) Object.assign(image, { done: true, seed: event.seed });
      made.images = [...made.images];
      made.images[index] = image;
      show({ ...made });
    }
    return made;
  };
  const { result } = run.state;
  const input = (name, label, more = {}) => (row(name) || more.always) && html`<${Field} label=${label}><input type="number" min="0" placeholder=${row(name)?.default ?? "default"} ...${more} value=${values[name]} onInput=${set(name)} /><//>`;
  return html`<${RunForm} run=${run} work=${work} ready=${Boolean(values.prompt.trim()) && (!edit || Boolean(file))} word=${edit ? "Edit" : "Draw"}
        code=${() => (edit ? curlForm(`v3/${endpoint}`, { ...fields(), image: `@${file?.name ?? "image.png"}`, ...(mask ? { mask: `@${mask.name}` } : {}) }) : curlJson(`v3/${endpoint}`, fields()))}>
      ${edit && html`<${DropFile} label="Image to edit" accept="image/*" icon="image" file=${file} onFile=${setFile} />`}
      ${edit && row("mask") && html`<${DropFile} label="Mask, if only a part may change" accept="image/*" icon="image" file=${mask} onFile=${setMask} />`}
      <${Field} label="What to draw"><textarea rows="3" value=${values.prompt} onInput=${set("prompt")}></textarea><//>
      ${row("negative_prompt") && html`<${Field} label="What not to draw"><input value=${values.negative_prompt} placeholder="nothing" onInput=${set("negative_prompt")} /><//>`}
      <div class="fields">
        <${Field} label="Size"><input value=${values.size} placeholder=${row("size")?.default ?? "default"} onInput=${set("size")} /><//>
        ${input("n", "Images", { min: 1 })}
        ${input("num_inference_steps", "Steps", { min: 1 })}
        ${input("seed", "Seed", { placeholder: "random" })}
        ${edit && input("strength", "Strength", { max: 1, step: 0.05 })}
      </div>
    <//>
    ${edit && file && !result && html`<${Original} file=${file} />`}
    ${result?.images.length > 0 && html`<${Card} title=${result.images.length > 1 ? "Images" : "Image"}><div class="pictures card-body">
      ${result.images.map((image, i) => html`<${Picture} key=${i} image=${image} index=${i} />`)}</div><//>`}`;
}

const source = (one, format) => (one.b64_json ? `data:image/${format || "png"};base64,${one.b64_json}` : SOURCE.test(one.url) ? one.url : "");

function Picture({ image, index }) {
  const { url, done, step, steps, seed } = image ?? {};
  return html`<figure class="picture ${done ? "" : "unfinished"}" aria-busy=${!done}>
    ${url ? html`<img src=${url} alt=${`Image ${index + 1}`} />` : html`<div class="picture-none"></div>`}
    <figcaption class="row small muted">${done
      ? html`${seed !== undefined && html`<span>seed <b class="num">${seed}</b></span>`}<span class="grow"></span><a href=${url} download=${`image-${index + 1}.${/image\/(\w+)/.exec(url)?.[1] ?? "png"}`}>Download</a>`
      : html`<${Progress} part=${steps ? step / steps : 0} label=${`Image ${index + 1}`} /><span class="num">${steps ? `step ${step} of ${steps}` : "waiting"}</span>`}</figcaption>
  </figure>`;
}

function Original({ file }) {
  const url = useUrl(file);
  return url && html`<img class="playground-image" src=${url} alt="The image to edit" />`;
}
