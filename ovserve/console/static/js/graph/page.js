// Graph: the file that serves, drawn, at work, and its text.

import { html, useEffect, useRef, useState } from "../../vendor/ui.js";
import { get } from "../api.js";
import { Empty, Failure, Icon, IconButton, Pill, Skeleton, StatePill } from "../parts.js";
import { ModelPicker } from "../picker.js";
import { go, place, session, useStore } from "../session.js";
import { NodeDetails, StreamDetails } from "./details.js";
import { useLive } from "./live.js";
import { TextPanel } from "./panel.js";
import { GraphView } from "./view.js";

/** A reason without the directory of the file that it is about. */
const shorter = (reason, path) => (path ? reason.replaceAll(path.slice(0, path.lastIndexOf("/") + 1), "") : reason);

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export function useGraph(name, stamp) {
  const [state, setState] = useState({});
  const loads = useRef(0);
  const load = () => {
    loads.current += 1;
    const mine = loads.current; // an earlier load may answer later, with the file as it was before an edit
    if (!name) return undefined;
    get(`console/api/graphs/${encodeURIComponent(name)}`, { admin: true }).then(
      (found) => mine === loads.current && setState({ found }),
      (error) => mine === loads.current && setState({ error }),
    );
    return () => (loads.current += 1);
  };
  useEffect(() => {
    setState((before) => (before.found?.name === name ? before : {}));
    return load();
  }, [name, stamp]);
  return [state, load];
}

/** A graph that was found, drawn at work, with what is known of the node or the stream that is pressed. */
export function GraphStage({ found, live, who, dots, onLines, children }) {
  const [selected, setSelected] = useState(null);
  const graph = found?.graph;
  const node = selected?.node && graph?.nodes.find((n) => n.name === selected.node);
  const shows = Boolean(node) || (Boolean(selected?.stream) && graph);
  return html`<div class="graph-stage">
    ${children}
    ${graph && html`<${GraphView} graph=${graph} live=${live} selected=${selected} onSelect=${setSelected} dots=${dots} />`}
    ${shows && html`<aside class="graph-detail" aria-label="Details"><${IconButton} icon="close" label="Close" onClick=${() => setSelected(null)} />
      ${node
        ? html`<${NodeDetails} node=${node} all=${live} live=${live?.nodes[node.name]} text=${found.text} onStream=${(stream) => setSelected({ stream })} onLines=${(at) => { onLines(at); setSelected(null); }} />`
        : html`<${StreamDetails} name=${selected.stream} graph=${graph} live=${live?.streams[selected.stream]} packet=${live?.packets[selected.stream]} admin=${who.admin} onNode=${(n) => setSelected({ node: n })} />`}
    </aside>`}
  </div>`;
}

export default function GraphPage() {
  const { who, models, modelsError } = useStore(session);
  const { rest } = useStore(place);
  const name = rest[0] || models?.find((m) => m.state === "AVAILABLE")?.id || models?.[0]?.id || "";
  const model = models?.find((m) => m.id === name);
  const [live] = useLive(name);
  const [{ found, error }, load] = useGraph(name, `${model?.created}${model?.state}${live?.revision ?? ""}`);
  const [dots, setDots] = useState(!calm.matches && localStorage.getItem("ovserve.dots") !== "no");
  const [text, setText] = useState(false);
  const [line, setLine] = useState(null);
  useEffect(() => setLine(null), [name]); // of another file

  const graph = found?.graph;
  const toggleDots = () => {
    localStorage.setItem("ovserve.dots", dots ? "no" : "yes");
    setDots(!dots);
  };
  const panel = text && found?.text !== undefined;
  return html`<main class="page" id="main" tabindex="-1">
    <header class="page-head chat-like"><h1 class=${models?.length ? "off-screen" : ""}>Graph</h1>
      ${models?.length > 0 && html`<${ModelPicker} models=${models} value=${name} hotkey label="Graph" onPick=${(id) => go("graph", id)} />`}
      ${model && model.state !== "AVAILABLE" && html`<${StatePill} state=${model.state} reason=${model.reason} />`}
      ${live && html`<${Pill} tone=${live.running ? "accent" : "wide-only"}><b class="num">${live.running}</b> running<//>`}
      <span class="grow"></span>
      ${graph && !calm.matches && html`<label class="check wide-only"><input type="checkbox" checked=${dots} onChange=${toggleDots} />Moving packets</label>`}
      ${found?.text !== undefined && html`<button type="button" class="button small" aria-pressed=${panel} onClick=${() => setText(!text)}><${Icon} name="edit" size=${16} />${panel ? "Close text" : "Edit"}</button>`}
    </header>
    ${found?.reason && html`<div class="capture-bar reason-bar" role="status" tabindex="0"><${Icon} name="warning" size=${16} /><span class="grow">${shorter(found.reason, found.path)}</span></div>`}
    <div class="graph-columns ${panel ? "with-text" : ""}">
      <${GraphStage} key=${name} found=${found} live=${live} who=${who} dots=${dots} onLines=${(at) => { setText(true); setLine({ at }); }}>
        ${modelsError && !models ? html`<${Failure} error=${modelsError} />` : null}
        ${models && !models.length && html`<${Empty} icon="graph" title="No graph is served" action=${who.admin && html`<a class="button" href="#/server">Open the server page</a>`}>A graph appears here as soon as the server has loaded one.<//>`}
        ${error && html`<div class="panel-note"><${Failure} error=${error} title="The graph cannot be shown" retry=${load} /></div>`}
        ${name && !found && !error && html`<div class="panel-note"><${Skeleton} lines=${8} /></div>`}
        ${found && !graph && html`<${Empty} icon="warning" title="This graph cannot be drawn" action=${found.text !== undefined && !text && html`<button type="button" class="button" onClick=${() => setText(true)}>Open its text</button>`}>Its file has an error, which the text shows at its line.<//>`}
      <//>
      ${panel && html`<${TextPanel} key=${name} found=${found} who=${who} line=${line} onApplied=${load} />`}
    </div>
  </main>`;
}
