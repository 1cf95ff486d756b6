// The messages of a chat, which stay at their end while an answer grows, and what stands there before the first.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/ui.js";
import { Empty, Icon } from "../parts.js";
import { IDLE } from "../picker.js";
import { session } from "../session.js";
import { AnswerMessage, ToolMessage, UserMessage } from "./message.js";

const STARTS = ["Say hello in three languages.", "Explain how a lighthouse works in two sentences.", "Write a haiku about rain.", "Write a Python function that reverses a list."];

export function Conversation({ chat, shown, actions, model, models, busy, editLast, children }) {
  const box = useRef();
  const stick = useRef(true);
  const content = useRef();
  const [away, setAway] = useState(false);
  useLayoutEffect(() => {
    stick.current = true;
    box.current.scrollTop = box.current.scrollHeight;
  }, [chat.id, shown.length]);
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (stick.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    });
    observer.observe(content.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (editLast) [...box.current.querySelectorAll(".message.user [aria-label^='Edit']")].at(-1)?.click();
  }, [editLast]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    stick.current = scrollHeight - scrollTop - clientHeight < 60;
    setAway(!stick.current);
  };
  const toEnd = () => box.current.scrollTo({ top: box.current.scrollHeight });
  return html`<div class="conversation">
    <div class="messages" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="Conversation" aria-live="off">
      <div class="messages-inner ${shown.some((n) => n.answers?.length > 1) ? "broad" : ""}" ref=${content}>
        ${!shown.length && html`<${Start} model=${model} models=${models} chat=${chat} onPick=${actions} />`}
        ${shown.map((node, i) => {
          const props = { chat, node, actions, last: i === shown.length - 1 };
          if (node.role === "user") return html`<${UserMessage} key=${node.id} ...${props} />`;
          if (node.role === "tool") return html`<${ToolMessage} key=${node.id} ...${props} />`;
          return html`<${AnswerMessage} key=${node.id} ...${props} />`;
        })}
        ${shown.length > 0 && shown.at(-1).role !== "assistant" && !busy &&
        html`<button type="button" class="button ask" onClick=${() => actions.again({ parent: shown.at(-1).id })}><${Icon} name="play" size=${16} />Ask for an answer</button>`}
      </div>
    </div>
    ${away && html`<button type="button" class="to-end" aria-label="To the end" onClick=${toEnd}><${Icon} name="down" size=${18} /></button>`}
    <div class="composer-box">${children}</div>
  </div>`;
}

function Start({ model, models, chat }) {
  const suggest = (text) => {
    const area = document.querySelector(".composer textarea");
    area.value = text;
    area.dispatchEvent(new Event("input", { bubbles: true }));
    area.focus();
  };
  if (!models.length) {
    return html`<${Empty} icon="server" title="No model is served"
      action=${session.value.who?.admin && html`<a class="button" href="#/server">Open the server page</a>`}>A model appears here as soon as the server has loaded one.<//>`;
  }
  if (!model) return html`<${Empty} icon="warning" title=${`${chat.model} is not served any more`}>Pick another model above.<//>`;
  return html`<div class="start">
    <h2>${model.id}</h2>
    ${model.parent && html`<p class="muted">LoRA adapter of ${model.parent}</p>`}
    <p class="muted">${model.idle ? IDLE : model.state === "AVAILABLE" ? `Ready${model.max_model_len ? `, with a context of ${model.max_model_len.toLocaleString("en-US")} tokens` : ""}.` : model.reason || "It is loading."}</p>
    <div class="starts">${STARTS.map((text) => html`<button key=${text} type="button" onClick=${() => suggest(text)}>${text}</button>`)}</div>
  </div>`;
}
