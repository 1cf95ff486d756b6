// The log of the server, as it is written: filtered by level and by words.

import { html, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../../vendor/ui.js";
import { follow } from "../api.js";
import { clock } from "../format.js";
import { Empty, Failure } from "../parts.js";

const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];
const MOST = 2000;
const DRAWN = 500; // lines in the document

export function Logs() {
  const lines = useRef([]);
  const [, again] = useReducer((n) => n + 1, 0);
  const [error, setError] = useState(null);
  const [level, setLevel] = useState("INFO");
  const [query, setQuery] = useState("");
  const [following, setFollowing] = useState(true);
  const box = useRef();
  useEffect(
    () =>
      follow(
        "console/api/logs",
        (event) => {
          const newest = lines.current.at(-1)?.number ?? 0;
          lines.current = [...lines.current, ...event.lines.filter((line) => line.number > newest)].slice(-MOST);
          again();
        },
        setError,
      ),
    [],
  );
  const shown = useMemo(() => {
    const from = LEVELS.indexOf(level);
    const words = query.toLowerCase();
    return lines.current.filter((line) => {
      const at = LEVELS.indexOf(line.level);
      if ((at < 0 ? (line.level === "CRITICAL" ? 3 : 0) : at) < from) return false;
      return !words || `${line.logger} ${line.request} ${line.message}`.toLowerCase().includes(words);
    });
  }, [lines.current, level, query]);
  useLayoutEffect(() => {
    if (following && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    setFollowing(scrollHeight - scrollTop - clientHeight < 40);
  };
  return html`<div class="logs">
    <div class="logs-head">
      <label class="check">Level <select value=${level} onChange=${(e) => setLevel(e.target.value)}>${LEVELS.map((name) => html`<option key=${name}>${name}</option>`)}</select></label>
      <input type="search" aria-label="Search the log" placeholder="Search: words, a request id" value=${query} onInput=${(e) => setQuery(e.target.value)} />
      <label class="check"><input type="checkbox" checked=${following} onChange=${(e) => setFollowing(e.target.checked)} />Follow</label>
    </div>
    ${error && html`<${Failure} error=${error} title="The log is not followed; trying again" />`}
    ${shown.length
      ? html`<div class="log-lines" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="Log" aria-live="off">
          ${shown.slice(-DRAWN).map(
            (line) => html`<div key=${line.number} class="log-line ${line.level}"><time class="num">${clock(line.at * 1000)}</time><b>${line.level}</b><span class="logger">${line.logger}</span>
              <span class="log-text">${line.message}${line.request !== "-" && html` <a href=${`#/requests/${encodeURIComponent(line.request)}`}>${line.request.slice(0, 8)}</a>`}</span></div>`,
          )}
        </div>`
      : html`<${Empty} icon="requests" title=${lines.current.length ? "No line fits" : "Nothing is logged yet"} />`}
  </div>`;
}
