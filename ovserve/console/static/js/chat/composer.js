// Where the next message is written: text, images and files by paste, drop or choice.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/ui.js";
import { Icon, IconButton } from "../parts.js";
import { bytes } from "../format.js";
import { draft, NOTHING } from "./shared.js";

const LARGEST = 20e6; // bytes of a file, as the server's default --max_image_bytes
const LONG = 10000; // characters of a pasted text that is attached: a text box with megabytes takes seconds a key

const readFile = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ kind: file.type.startsWith("image/") ? "image" : "file", name: file.name || "pasted", url: reader.result });
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

export function Composer({ busy, disabled, placeholder, onSend, onStop, onEditLast, focus }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState([]);
  const [over, setOver] = useState(false);
  const [problem, setProblem] = useState("");
  const area = useRef();
  const chooser = useRef();

  useEffect(() => area.current?.focus(), [focus]);
  useEffect(() => draft.set({ text: text.trim(), files }), [text, files]);
  useEffect(() => () => draft.set(NOTHING), []);
  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight, 240)}px`;
  }, [text]);

  const add = async (list) => {
    setProblem("");
    for (const file of list) {
      if (file.size > LARGEST) setProblem(`${file.name} has ${bytes(file.size)}; at most ${bytes(LARGEST)} can be sent.`);
      else {
        const made = await readFile(file);
        setFiles((known) => [...known, made]);
      }
    }
  };
  const submit = () => {
    if (busy || disabled || !(text.trim() || files.length)) return;
    if (onSend({ text: text.trim(), files }) === false) return;
    setText("");
    setFiles([]);
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === "ArrowUp" && !text && !event.shiftKey) {
      event.preventDefault();
      onEditLast();
    }
  };
  const onPaste = (event) => {
    const list = [...event.clipboardData.files];
    if (list.length) {
      event.preventDefault();
      add(list);
      return;
    }
    const pasted = event.clipboardData.getData("text/plain");
    if (pasted.length > LONG) {
      event.preventDefault();
      setFiles((known) => [...known, { kind: "text", name: "Pasted text", text: pasted }]);
    }
  };
  const hasFiles = (event) => event.dataTransfer.types.includes("Files"); // a dropped text is the text box's own
  const onDrop = (event) => {
    setOver(false);
    if (!hasFiles(event)) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  };

  return html`<div class="composer ${over ? "over" : ""}" onDragOver=${(e) => { if (!hasFiles(e)) return; e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${onDrop}>
    ${problem && html`<p class="bad-text small" role="alert">${problem}</p>`}
    ${files.length > 0 &&
    html`<div class="files">
      ${files.map(
        (file, i) => html`<span class="attached" key=${i}>
          ${file.kind === "image" ? html`<img src=${file.url} alt=${file.name} />` : html`<span class="file"><${Icon} name="attach" size=${16} />${file.name}${file.kind === "text" ? ` · ${bytes(file.text.length)}` : ""}</span>`}
          <button type="button" aria-label=${`Remove ${file.name}`} onClick=${() => setFiles(files.filter((f) => f !== file))}><${Icon} name="close" size=${12} /></button>
        </span>`,
      )}
    </div>`}
    <div class="composer-row">
      <${IconButton} icon="attach" label="Add an image or a file" onClick=${() => chooser.current.click()} />
      <input ref=${chooser} type="file" multiple hidden accept="image/*,application/pdf,text/*,.md,.json,.py,.js,.csv" aria-label="Files"
        onChange=${(e) => { add([...e.target.files]); e.target.value = ""; }} />
      <textarea ref=${area} rows="1" aria-label="Message" placeholder=${placeholder} value=${text}
        onInput=${(e) => setText(e.target.value)} onKeyDown=${onKey} onPaste=${onPaste}></textarea>
      ${busy
        ? html`<button type="button" class="send stop" aria-label="Stop" title="Stop (Esc)" onClick=${onStop}><${Icon} name="stop" /></button>`
        : html`<button type="button" class="send" aria-label="Send" title="Send (Enter)" disabled=${disabled || !(text.trim() || files.length)} onClick=${submit}><${Icon} name="send" /></button>`}
    </div>
  </div>`;
}
