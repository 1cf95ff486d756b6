// Chats are kept by the browser, in IndexedDB; the server keeps nothing. Without it (a private window that
// forbids it) they live as long as the page. Other tabs hear of what one of them writes.

const NAME = "ovserve";
const memory = new Map();
let opened = null;
const others = "BroadcastChannel" in window ? new BroadcastChannel("ovserve.chats") : null;

/** Call `fn(id)` when another tab has written or removed a chat. */
export function onOthers(fn) {
  if (others) others.onmessage = (event) => fn(event.data);
}

function open() {
  opened ??= new Promise((resolve) => {
    let request;
    try {
      request = indexedDB.open(NAME, 1);
    } catch {
      resolve(null);
      return;
    }
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
  });
  return opened;
}

async function run(mode, act) {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("chats", mode);
    const request = act(transaction.objectStore("chats"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** All chats, the one used last first. */
export async function all() {
  const kept = (await run("readonly", (chats) => chats.getAll())) ?? [...memory.values()];
  return kept.sort((a, b) => b.updated - a.updated);
}

/** One chat as it was written last; undefined if it was removed. */
export async function get(id) {
  return (await run("readonly", (chats) => chats.get(id))) ?? memory.get(id);
}

export async function put(chat) {
  if (!(await open())) memory.set(chat.id, chat);
  else await run("readwrite", (chats) => chats.put(structuredClone(chat)));
  others?.postMessage(chat.id);
}

export async function remove(id) {
  memory.delete(id);
  await run("readwrite", (chats) => chats.delete(id));
  others?.postMessage(id);
}
