// The microphone as it was sent, with what was recognised as speech.

import { html, useEffect, useRef } from "../../vendor/ui.js";
import { theme, useStore } from "../session.js";
import { RATE } from "./audio.js";

const BAR = 1200; // samples, 50 ms
const KEPT = 600; // bars, 30 s
const WIDTH = 3; // px of a bar with its gap

/** Peaks and spans on the clock of a session, which counts the samples that were sent. */
export class Track {
  constructor() {
    this.samples = 0;
    this.bars = []; // of the last 30 s: peaks from 0 to 1
    this.first = 0; // number of the first bar that is kept
    this.rest = 0; // peak of the bar that is not full
    this.spans = []; // { from, to }: ms; `to` is null while it goes on
  }

  add(samples) {
    for (const sample of samples) {
      this.rest = Math.max(this.rest, Math.abs(sample) / 32768);
      this.samples += 1;
      if (this.samples % BAR === 0) {
        this.bars.push(this.rest);
        this.rest = 0;
      }
    }
    const over = Math.max(0, this.bars.length - KEPT);
    this.bars.splice(0, over);
    this.first += over;
    const oldest = (this.first * BAR * 1000) / RATE;
    while (this.spans.length && this.spans[0].to !== null && this.spans[0].to < oldest) this.spans.shift();
  }

  get ms() {
    return (this.samples * 1000) / RATE;
  }

  begin(from) {
    this.spans.push({ from, to: null });
  }

  end(to) {
    const last = this.spans.at(-1);
    if (last && last.to === null) last.to = to;
  }

  /** Whether speech was recognised in the bar of this number. */
  spoken(number) {
    const at = ((number + 0.5) * BAR * 1000) / RATE;
    return this.spans.some(({ from, to }) => at >= from && (to === null || at < to));
  }
}

function draw(canvas, track) {
  const { clientWidth: w, clientHeight: h } = canvas;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(h * scale)) {
    canvas.width = Math.round(w * scale);
    canvas.height = Math.round(h * scale);
  }
  const { color: speech, caretColor: quiet, textDecorationColor: ground } = getComputedStyle(canvas); // of the theme
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, w, h);
  const shown = Math.min(track.bars.length, Math.floor(w / WIDTH));
  for (let i = 0; i < shown; i += 1) {
    const at = track.bars.length - shown + i;
    const x = w - (shown - i) * WIDTH;
    const spoken = track.spoken(track.first + at);
    if (spoken) {
      pen.fillStyle = ground;
      pen.fillRect(x, 0, WIDTH, h);
    }
    const size = Math.max(2, Math.sqrt(track.bars[at]) * (h - 8)); // as loudness is heard, rather than its power
    pen.fillStyle = spoken ? speech : quiet;
    pen.fillRect(x, (h - size) / 2, WIDTH - 1, size);
  }
}

const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

/** The spans in words, for those who do not see the picture. */
export function spansInWords(track) {
  const last = track.spans.at(-1);
  if (!last) return "no speech recognised yet";
  return last.to === null ? `speech since ${seconds(last.from)}` : `speech from ${seconds(last.from)} to ${seconds(last.to)}`;
}

export function Waveform({ track, live }) {
  const canvas = useRef();
  useStore(theme);
  useEffect(() => {
    let frame = 0;
    let drawn = -1;
    const picture = canvas.current;
    const again = () => {
      const state = track.samples + track.spans.length + (track.spans.at(-1)?.to ?? 0);
      if (state !== drawn) draw(picture, track);
      drawn = state;
      if (live) frame = requestAnimationFrame(again);
    };
    again();
    return () => cancelAnimationFrame(frame);
  }, [track, live]);
  useEffect(() => {
    const picture = canvas.current;
    const again = () => draw(picture, track);
    const observer = new ResizeObserver(again);
    observer.observe(picture);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", again);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", again);
    };
  }, [track]);
  useEffect(() => draw(canvas.current, track)); // after each drawing of the page, such as in other colours
  return html`<canvas class="waveform" ref=${canvas} role="img" aria-label="Waveform of the microphone, with what was recognised as speech"></canvas>`;
}
