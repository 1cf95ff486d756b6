// Chat: a conversation with one model, or with two side by side.

import { Fragment, html, useCallback, useEffect, useReducer, useRef, useState } from "../../vendor/ui.js";
import { Drawer, Failure, IconButton, StatePill } from "../parts.js";
import { ModelPicker } from "../picker.js";
import { capabilitiesOf, go, place, session, useStore } from "../session.js";
import { fault } from "./check.js";
import * as db from "./db.js";
import { ChatList } from "./list.js";
import { Conversation } from "./conversation.js";
import { Composer } from "./composer.js";
import { Panel } from "./panel.js";
import { InRail } from "./rail.js";
import { Playground, tryable } from "../playground/page.js";
import { anyRunning, generate, markCut, resume, stop } from "./run.js";
import { adopt } from "./shared.js";
import { addNode, newChat, newId, path, pick, prune, SettingError, tip, title } from "./tree.js";

const WIDE = matchMedia("(min-width: 1180px)");
const kept = { chats: null, current: null }; // while other pages are shown

function saved(name, standard) {
  const value = localStorage.getItem(name);
  return value === null ? standard : value === "yes";
}

function useChats() {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    db.onOthers((id) => readAgain(id).then(again, () => {}));
    if (kept.chats) return;
    db.all().catch(() => []).then((stored) => {
      const chats = stored.filter((chat) => !fault(chat)); // such as of a later version
      markCut(chats);
      kept.chats = chats;
      again();
    });
  }, []);
  return again;
}

/** Take over what another tab wrote of a chat. */
async function readAgain(id) {
  const found = await db.get(id);
  const stored = found && !fault(found) ? found : null;
  const known = kept.chats?.find((c) => c.id === id);
  if (!kept.chats || (!stored && !known)) return;
  if (!stored) {
    kept.chats = kept.chats.filter((c) => c !== known);
    if (kept.current === known) kept.current = null;
  } else if (known) adopt(known, stored);
  else kept.chats.unshift(stored);
  kept.chats.sort((a, b) => b.updated - a.updated);
}

function download(name, value) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const LAST = "ovserve.model"; // the one that was picked last
const usable = (models) => models.find((m) => m.id === localStorage.getItem(LAST) && m.state !== "FAILED") || models.find((m) => m.state === "AVAILABLE") || models[0];

export default function ChatPage() {
  const again = useChats();
  const { models, modelsError } = useStore(session);
  const { rest } = useStore(place);
  const [, bump] = useReducer((n) => n + 1, 0);
  const version = useRef(0);
  const [panel, setPanel] = useState(saved("ovserve.panel", true) && WIDE.matches);
  const [listOpen, setListOpen] = useState(false);
  useEffect(() => {
    const resized = () => setPanel(WIDE.matches && saved("ovserve.panel", true)); // a narrow window has room for the chat alone
    WIDE.addEventListener("change", resized);
    return () => WIDE.removeEventListener("change", resized);
  }, []);
  const [problem, setProblem] = useState("");
  const [editLast, setEditLast] = useState(0);

  const chats = kept.chats;
  if (chats && rest[0] && kept.current?.id !== rest[0]) kept.current = chats.find((c) => c.id === rest[0]) ?? kept.current;
  if (chats && models && !kept.current) kept.current = newChat(usable(models)?.id ?? "");
  const chat = kept.current;
  if (chat && models?.length && !chat.model) chat.model = usable(models).id;

  const changed = useCallback(() => {
    version.current += 1;
    bump();
  }, []);
  const keep = useCallback((chat) => {
    chat.updated = Date.now();
    if (!kept.chats.includes(chat)) kept.chats.unshift(chat);
    kept.chats.sort((a, b) => b.updated - a.updated);
    db.put(chat).catch(() => {});
    changed();
  }, []);
  const ask = useCallback((chat, parent) => {
    setProblem("");
    try {
      generate(chat, parent, changed);
      keep(chat);
      return true;
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      setProblem(error.message);
      return false;
    }
  }, []);

  useEffect(() => {
    const onKey = (event) => {
      if (event.key !== "Escape" || !chat) return;
      const node = path(chat).at(-1);
      if (anyRunning(node)) stop(node);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [chat]);

  const about = useCapabilities(chat?.model);
  const chatting = !about.capabilities || tryable(about.capabilities).includes("chat/completions");
  const actions = useActions(chat, { ask, changed, keep });
  if (!chats || !models || !chat) {
    return html`<main class="page" id="main" tabindex="-1"><div class="page-body">
      ${modelsError && !models ? html`<${Failure} error=${modelsError} title="The list of models could not be read" />` : null}</div></main>`;
  }

  const open = (id) => {
    kept.current = chats.find((c) => c.id === id);
    setListOpen(false);
    setProblem("");
    go("chat", id);
    changed();
  };
  const fresh = () => {
    kept.current = newChat(chat.model, { params: chat.params, system: chat.system });
    setListOpen(false);
    setProblem("");
    go("chat");
    changed();
  };
  const list = {
    chats,
    current: chat.id,
    onOpen: open,
    onNew: fresh,
    onRemove: (gone) => {
      kept.chats = chats.filter((c) => c !== gone);
      db.remove(gone.id);
      if (gone === chat) fresh();
      else changed();
    },
    onRename: (named, name) => {
      named.title = name;
      db.put(named);
      changed();
    },
    onExport: () => download("ovserve-chats.json", { ovserve_chats: 1, chats }),
    onImport: async (file) => {
      try {
        const added = readChats(JSON.parse(await file.text()));
        for (const one of added) await db.put(one);
        kept.chats = [...added, ...chats];
        open(added[0].id);
      } catch (error) {
        setProblem(`${file.name} holds no chats: ${error.message}`);
      }
    },
  };

  const shown = path(chat);
  const last = shown.at(-1);
  const busy = anyRunning(last);
  const model = models.find((m) => m.id === chat.model);
  const others = models.filter((m) => m.chats && m.id !== chat.model);
  const set = (part) => {
    Object.assign(chat, part);
    if (kept.chats.includes(chat)) db.put(chat).catch(() => {});
    changed();
  };
  const pickModel = (id) => {
    localStorage.setItem(LAST, id);
    set({ model: id });
  };
  const onSend = ({ text, files }) => {
    const before = chat.nodes[tip(chat)];
    const node = addNode(chat, before.id, { role: "user", text, files });
    const begun = ask(chat, node);
    if (!begun) prune(chat, node);
    else if (location.hash !== `#/chat/${chat.id}`) go("chat", chat.id);
    return begun;
  };
  const togglePanel = () => {
    if (WIDE.matches) localStorage.setItem("ovserve.panel", panel ? "no" : "yes");
    setPanel(!panel);
  };
  const side = html`<${SidePanel} chat=${chat} ...${about} version=${version.current} onChange=${set} />`;

  return html`<${Fragment}>
    <${InRail}><${ChatList} ...${list} /><//>
    <main class="page chat-page ${panel && WIDE.matches ? "with-panel" : ""}" id="main" tabindex="-1">
      <header class="page-head">
        <span class="narrow-only"><${IconButton} icon="menu" label="Chats" onClick=${() => setListOpen(true)} /></span>
        <h1 class="off-screen">Chat</h1>
        <${ModelPicker} models=${models} value=${chat.model} hotkey onPick=${pickModel} />
        ${model && model.state !== "AVAILABLE" && html`<${StatePill} state=${model.state} reason=${model.reason} />`}
        ${chat.other
          ? html`<span class="versus">and</span><${ModelPicker} models=${others} value=${chat.other} label="Second model" none="No second model" onPick=${(id) => set({ other: id })} />`
          : null}
        <span class="grow"></span>
        ${chatting && others.length > 0 && !chat.other && html`<${IconButton} icon="columns" label="Compare with a second model" onClick=${() => set({ other: usable(others).id })} />`}
        ${chatting && models.length > 0 && html`<${IconButton} icon="plus" label="New chat" onClick=${fresh} />`}
        ${chatting && models.length > 0 && html`<${IconButton} icon="sliders" label="Settings of the chat" active=${panel} aria-pressed=${panel} onClick=${togglePanel} />`}
      </header>
      <div class="chat-columns">
        ${!chatting ? html`<${Playground} model=${chat.model} capabilities=${about.capabilities} problem=${problem} />` : html`<${Conversation} ...${{ chat, shown, actions, model, models, busy, editLast, bump: version.current }}>
          ${problem && html`<p class="bad-text" role="alert">${problem}</p>`}
          <${Composer} busy=${busy} disabled=${!model} focus=${chat.id} placeholder=${model ? "Message" : "No model is served"}
            onSend=${onSend} onStop=${() => stop(last)} onEditLast=${() => setEditLast(editLast + 1)} />
        <//>`}
        ${panel && chatting && models.length > 0 && WIDE.matches && html`<aside class="side" aria-label="Settings of the chat">${side}</aside>`}
      </div>
      ${panel && !WIDE.matches && html`<${Drawer} title="Settings of the chat" onClose=${togglePanel}>${side}<//>`}
      ${listOpen && html`<${Drawer} title="Chats" side="left" onClose=${() => setListOpen(false)}><${ChatList} ...${list} /><//>`}
    </main>
  <//>`;
}

function useActions(chat, { ask, changed, keep }) {
  return {
    pick: (node, step) => {
      pick(chat, node, step);
      keep(chat);
    },
    edit: (node, text) => {
      const made = addNode(chat, node.parent, { role: "user", text, files: node.files });
      if (!ask(chat, made)) prune(chat, made);
    },
    again: (node) => ask(chat, chat.nodes[node.parent]),
    resume: (node, answer) => resume(chat, node, answer, changed),
    choose: (node, answer) => {
      node.chosen = node.answers.indexOf(answer);
      keep(chat);
    },
    results: (node, results) => ask(chat, addNode(chat, node.id, { role: "tool", results })),
    remove: (node) => {
      if (anyRunning(node)) stop(node);
      prune(chat, node);
      keep(chat);
    },
  };
}

/** What the server says of a model; kept while its engine restarts, so that its page stays as it is. */
function useCapabilities(model) {
  const [state, setState] = useState({});
  useEffect(() => {
    let current = true;
    setState((before) => (before.model === model ? before : {}));
    const known = model && session.value.models?.some((m) => m.id === model && m.state === "AVAILABLE");
    if (known) capabilitiesOf(model).then((capabilities) => current && setState({ model, capabilities }), (error) => current && setState({ model, error }));
    return () => (current = false);
  }, [model, session.value.models]);
  return state.model === model ? state : {};
}

function SidePanel({ chat, capabilities, error, version, onChange }) {
  return html`${error && html`<div class="panel-note"><${Failure} error=${error} title="The model's parameters could not be read" /></div>`}
    <${Panel} chat=${chat} capabilities=${capabilities} version=${version} onChange=${onChange} />`;
}

function readChats(value) {
  const found = Array.isArray(value) ? value : (value?.chats ?? [value]);
  if (!Array.isArray(found) || !found.length) throw new Error("the file has no chats of this console");
  const added = found.map((c) => ({ ...newChat(""), nodes: null, ...c, id: newId() }));
  const faults = added.map(fault);
  const first = faults.findIndex(Boolean);
  if (first >= 0) throw new Error(`of chat ${first + 1}, ${faults[first]}`);
  return added;
}

/** Open a chat that another page made, such as a request to replay. */
export function openChat(chat) {
  kept.current = chat;
  chat.title ||= title(chat);
  go("chat");
}
