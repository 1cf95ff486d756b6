// What parts of the page share: the message that is being written, and chats that several tabs have open.

import { store } from "../session.js";
import { isRunning } from "./run.js";

export const NOTHING = { text: "", files: [] };
export const draft = store(NOTHING); // the message in the composer

const runsHere = (node) => Boolean(node.answers?.some(isRunning));

/** Take over what another tab wrote of a chat. While an answer comes in this tab, it only adds to it. */
export function adopt(chat, stored) {
  if (Object.values(chat.nodes).some(runsHere)) merge(chat, stored);
  else {
    for (const name of Object.keys(chat)) delete chat[name];
    Object.assign(chat, stored);
  }
}

function merge(chat, stored) {
  for (const [id, node] of Object.entries(stored.nodes)) {
    const known = chat.nodes[id];
    if (!known) chat.nodes[id] = node;
    else {
      known.children.push(...node.children.filter((child) => !known.children.includes(child)));
      if (node.answers && !runsHere(known)) Object.assign(known, { answers: node.answers, chosen: node.chosen });
    }
  }
}
