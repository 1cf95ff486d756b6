// Sound in and out: the microphone in chunks of samples, and a player that knows what was heard.

export const RATE = 24000; // samples a second, 16 bits, both ways
const LEAD = 0.06; // s before the first sound of an answer, in which its next parts arrive
const FLUSH = 5000; // ms that a microphone has for its last samples, on a busy machine

export function encoded(samples) {
  const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
  return btoa(String.fromCharCode(...bytes));
}

export const decoded = (text) => new Int16Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

const REASONS = {
  NotAllowedError: "The browser does not give the microphone to this page. Allow it beside the address, and try again.",
  NotFoundError: "This machine has no microphone that the browser can use.",
  NotReadableError: "The microphone is in use by another program.",
};

/** Open the microphone: `onChunk(samples)` for each 100 ms. Throws an Error with a sentence for the user. */
export async function openMicrophone(onChunk, onEnd) {
  if (!navigator.mediaDevices) throw new Error("Browsers give the microphone only to pages over HTTPS or from this machine. Serve with --tls_cert_file, or open the console on the machine itself.");
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true } });
  } catch (error) {
    throw new Error(REASONS[error.name] ?? `The microphone cannot be opened: ${error.message}`);
  }
  const close = () => {
    stream.getTracks().forEach((track) => track.stop());
    context?.close();
  };
  let context = new AudioContext({ sampleRate: RATE });
  try {
    let source;
    try {
      source = context.createMediaStreamSource(stream);
    } catch {
      context.close(); // a browser that does not convert; the worklet does
      context = new AudioContext();
      source = context.createMediaStreamSource(stream);
    }
    await context.audioWorklet.addModule(new URL("./microphone.js", import.meta.url));
    const node = new AudioWorkletNode(context, "microphone", { channelCount: 1, channelCountMode: "explicit", numberOfOutputs: 0 });
    const waiting = [];
    node.port.onmessage = ({ data }) => (data ? onChunk(data) : waiting.shift()());
    source.connect(node);
    await context.resume();
    stream.getTracks()[0].addEventListener("ended", onEnd); // unplugged, or no longer allowed
    /** Have all that was heard so far given to `onChunk`: of a busy page, chunks wait in a queue. */
    const flush = () =>
      new Promise((done) => {
        waiting.push(done);
        node.port.postMessage("flush");
        setTimeout(done, FLUSH); // where the system has suspended the sound
      });
    return { flush, close };
  } catch (error) {
    close();
    throw new Error(`The microphone cannot be opened: ${error.message}`);
  }
}

/** Plays the audio of items one after another. */
export class Player {
  constructor(onChange) {
    this.onChange = onChange;
    this.context = null;
    this.parts = []; // { item, source, at, length }: not yet ended
    this.ended = new Map(); // item -> seconds of its parts that have
    this.until = 0;
  }

  /** Must be called while a press of the user counts, else browsers keep the sound off. */
  open() {
    this.context ??= new AudioContext({ sampleRate: RATE });
    return this.context.resume();
  }

  get playing() {
    return this.parts.length > 0;
  }

  add(item, samples) {
    this.open();
    const { context } = this;
    const buffer = context.createBuffer(1, samples.length, RATE);
    const target = buffer.getChannelData(0);
    for (let i = 0; i < samples.length; i += 1) target[i] = samples[i] / 32768;
    const source = context.createBufferSource();
    source.buffer = buffer;
    source.connect(context.destination);
    const at = Math.max(this.until, context.currentTime + LEAD);
    this.until = at + buffer.duration;
    const part = { item, source, at, length: buffer.duration };
    this.parts.push(part);
    source.onended = () => this.drop(part);
    source.start(at);
    if (this.parts.length === 1) this.onChange();
  }

  drop(part) {
    if (!this.parts.includes(part)) return;
    this.parts = this.parts.filter((other) => other !== part);
    this.ended.set(part.item, (this.ended.get(part.item) ?? 0) + part.length);
    if (!this.parts.length) this.onChange();
  }

  /** Fall silent. Returns [[item, ms that were heard]] of the items that had not come to their end. */
  stop() {
    const now = this.context ? this.context.currentTime - (this.context.outputLatency || 0) : 0;
    const cut = new Map();
    for (const { item, source, at, length } of this.parts) {
      const before = cut.get(item) ?? this.ended.get(item) ?? 0;
      cut.set(item, before + Math.max(0, Math.min(length, now - at)));
      source.onended = null;
      source.stop();
    }
    this.parts = [];
    this.until = 0;
    if (cut.size) this.onChange();
    return [...cut].map(([item, heard]) => [item, Math.floor(heard * 1000)]);
  }

  close() {
    this.stop();
    this.context?.close();
    this.context = null;
  }
}
