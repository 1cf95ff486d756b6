// The chats of this browser, in the rail: open, rename, delete, export and import.

import { html, useState } from "../../vendor/ui.js";
import { Icon, IconButton } from "../parts.js";
import { age } from "../format.js";
import { title } from "./tree.js";

export function ChatList({ chats, current, onOpen, onNew, onRemove, onRename, onExport, onImport }) {
  const [editing, setEditing] = useState("");
  const [query, setQuery] = useState("");
  const shown = query ? chats.filter((chat) => title(chat).toLowerCase().includes(query.toLowerCase())) : chats;
  const pickFile = (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) onImport(file);
  };
  return html`<section class="chats" aria-label="Chats">
    <div class="row">
      <button type="button" class="button grow" onClick=${onNew}><${Icon} name="plus" size=${16} />New chat</button>
    </div>
    ${chats.length > 8 && html`<input type="search" class="chats-search" aria-label="Search chats" placeholder="Search chats" value=${query} onInput=${(e) => setQuery(e.target.value)} />`}
    <ul>
      ${shown.map((chat) => {
        const here = chat.id === current;
        if (editing === chat.id) {
          let left = false; // Escape takes the box away, which takes the focus from it
          const end = (event) => {
            if (left) return;
            left = true;
            setEditing("");
            if (event.key !== "Escape") onRename(chat, event.target.value.trim());
          };
          return html`<li key=${chat.id}><input class="rename" aria-label="Name of the chat" value=${title(chat)} autofocus
            ref=${(el) => el?.focus()} onBlur=${end} onKeyDown=${(e) => (e.key === "Enter" || e.key === "Escape") && end(e)} /></li>`;
        }
        return html`<li key=${chat.id} class=${here ? "here" : ""}>
          <button type="button" class="chat-name" aria-current=${here ? "true" : undefined} onClick=${() => onOpen(chat.id)} onDblClick=${() => setEditing(chat.id)} title=${title(chat)}>
            <span>${title(chat)}</span><small>${age(chat.updated)}</small></button>
          <span class="chat-tools">
            <${IconButton} icon="edit" label=${`Rename ${title(chat)}`} onClick=${() => setEditing(chat.id)} />
            <${IconButton} icon="trash" label=${`Delete ${title(chat)}`} onClick=${() => onRemove(chat)} />
          </span>
        </li>`;
      })}
    </ul>
    <div class="row chats-foot">
      <label class="link file-link"><${Icon} name="upload" size=${14} />Import<input type="file" accept=".json,application/json" class="off-screen" onChange=${pickFile} /></label>
      ${chats.length > 0 && html`<button type="button" class="link" onClick=${onExport}><${Icon} name="download" size=${14} />Export all</button>`}
    </div>
  </section>`;
}
