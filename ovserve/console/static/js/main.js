// The frame: the rail with the pages, the key box, and the page of the moment. A page's code is loaded on demand.

import { Fragment, html, render, useEffect, useRef, useState } from "../vendor/ui.js";
import { hasKey } from "./api.js";
import { Icon, Mark } from "./icons.js";
import { Failure, IconButton, Skeleton } from "./parts.js";
import { go, identify, place, restarted, session, setTheme, signIn, signOut, start, theme, useStore } from "./session.js";

const PAGES = [
  { name: "chat", word: "Chat", load: () => import("./chat/page.js") },
  { name: "talk", word: "Talk", icon: "mic", load: () => import("./talk/page.js"), wanted: (models) => models?.some((m) => m.talks) },
  { name: "graph", word: "Graph", load: () => import("./graph/page.js") },
  { name: "metrics", word: "Metrics", load: () => import("./metrics/page.js") },
  { name: "requests", word: "Requests", load: () => import("./requests/page.js") },
  { name: "batches", word: "Batches", load: () => import("./batches/page.js") },
  { name: "server", word: "Server", load: () => import("./server/page.js"), admin: true },
];
const AHEAD = 3000; // ms after which the other pages' code is loaded too: a page opens at once, and without the server
const THEMES = { system: ["auto", "light"], light: ["sun", "dark"], dark: ["moon", "system"] };

function Rail({ page, who }) {
  const { models } = useStore(session);
  const pages = PAGES.filter((p) => (!p.admin || who?.admin) && (!p.wanted || p.name === page || p.wanted(models)));
  const [icon, next] = THEMES[useStore(theme)];
  return html`<nav class="rail" aria-label="Pages">
    <a class="brand" href="#/chat"><${Mark} /><span>ovserve</span></a>
    <div class="rail-pages">
      ${pages.map(
        (p) =>
          html`<a key=${p.name} href="#/${p.name}" class=${p.name === page ? "here" : ""}
            aria-current=${p.name === page ? "page" : undefined}><${Icon} name=${p.icon ?? p.name} /><span>${p.word}</span></a>`,
      )}
    </div>
    <div class="rail-more" id="rail-more"></div>
    <div class="rail-foot">
      ${who?.keys_required &&
      html`<button type="button" class="who" onClick=${signOut} title="Forget the key of this tab">
        <${Icon} name="key" size=${18} /><span>${who.name || "API key"}${who.admin ? " · admin" : ""}</span>
      </button>`}
      <div class="rail-row">
        <span class="muted small">${who ? `v${who.version}` : ""}</span>
        <${IconButton} icon=${icon} label=${`Colours: ${theme.value}; switch to ${next}`} onClick=${() => setTheme(next)} />
      </div>
    </div>
  </nav>`;
}

function KeyBox({ reason }) {
  const [key, setKey] = useState("");
  const [admin, setAdmin] = useState("");
  const [error, setError] = useState(hasKey("use") || hasKey("admin") ? reason : ""); // it was valid before, or kept by the tab
  const submit = async (event) => {
    event.preventDefault();
    setError("");
    if (!(await signIn(key.trim(), admin.trim()))) setError(session.value.needsKey || session.value.error?.message || reason);
  };
  return html`<main class="key-page">
    <form class="key-box" onSubmit=${submit}>
      <${Mark} size=${40} />
      <h1>This server needs an API key</h1>
      <label>API key
        <input type="password" autocomplete="off" value=${key} onInput=${(e) => setKey(e.target.value)} autofocus />
      </label>
      <details class="fold">
        <summary><${Icon} name="right" size=${16} /><span>A second key for administration</span></summary>
        <div class="fold-body"><label>Admin key
          <input type="password" autocomplete="off" value=${admin} onInput=${(e) => setAdmin(e.target.value)} />
        </label></div>
      </details>
      ${error && html`<p class="bad-text" role="alert">${error}</p>`}
      <button class="button primary" disabled=${!key.trim() && !admin.trim()}>Continue</button>
      <p class="muted small">The key stays in this tab until you close it or press the key's name. It is sent to this server alone.</p>
    </form>
  </main>`;
}

function Page({ page }) {
  const [code, setCode] = useState(null);
  const [error, setError] = useState(null);
  const { modelsError } = useStore(session);
  const away = useRef(false);
  useEffect(() => {
    if (error && modelsError) away.current = true;
    else if (error && away.current) location.reload(); // the server is back; browsers keep a failed import
  }, [error, modelsError]);
  useEffect(() => {
    let current = true;
    setCode(null);
    setError(null);
    page.load().then(
      (module) => current && setCode(() => module.default),
      (failure) => current && setError(failure),
    );
    return () => (current = false);
  }, [page.name]);
  useEffect(() => {
    document.title = `${page.word} · ovserve`;
  }, [page.name]);
  if (error) return html`<main class="page" id="main" tabindex="-1"><div class="page-body"><${Failure} error=${error} title="This page could not be loaded" retry=${() => location.reload()} /></div></main>`;
  if (!code) return html`<main class="page" aria-busy="true"><div class="page-body"><${Skeleton} lines=${6} /></div></main>`;
  return html`<${code} />`;
}

function App() {
  const { who, error, needsKey, modelsError } = useStore(session);
  const { page: name } = useStore(place);
  const ended = useStore(restarted);
  const page = PAGES.find((p) => p.name === name) || PAGES[0];
  useEffect(() => {
    if (!who) return undefined;
    const timer = setTimeout(() => PAGES.filter((p) => !p.admin || who.admin).forEach((p) => p.load().catch(() => {})), AHEAD);
    return () => clearTimeout(timer);
  }, [Boolean(who)]);
  useEffect(() => {
    if (who && page.admin && !who.admin) go("chat");
  }, [who, page]);
  if (needsKey) return html`<${KeyBox} reason=${needsKey} />`;
  return html`<${Fragment}>
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Rail} page=${page.name} who=${who} />
    ${who && modelsError && html`<p class="away" role="status"><${Icon} name="warning" size=${16} />${modelsError.message}</p>`}
    ${who && !modelsError && ended && html`<p class="away passing" role="status"><${Icon} name="redo" size=${16} />${ended}</p>`}
    ${who
      ? html`<${Page} page=${page} key=${page.name} />`
      : html`<main class="page"><div class="page-body">
          ${error ? html`<${Failure} error=${error} title="The console cannot be shown" retry=${identify} />` : html`<${Skeleton} lines=${6} />`}
        </div></main>`}
  <//>`;
}

function skip(event) {
  event.preventDefault();
  document.querySelector("main")?.focus();
}

start();
render(html`<${App} />`, document.getElementById("app"));
