// The samples of the microphone, 16 bits at 24 kHz, in chunks of 100 ms. Runs on the browser's audio thread.

const RATE = 24000; // also in talk/audio.js
const CHUNK = 2400; // samples

class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.chunk = new Int16Array(CHUNK);
    this.filled = 0;
    this.ratio = sampleRate / RATE; // input samples of an output sample, which is their mean
    this.sum = 0;
    this.weight = 0;
    this.port.onmessage = () => {
      this.send(); // what there is, now
      this.port.postMessage(null); // all that was heard before has been sent
    };
  }

  process([[samples]]) {
    for (const sample of samples ?? []) {
      let left = 1;
      while (this.weight + left >= this.ratio) {
        const part = this.ratio - this.weight;
        this.put((this.sum + sample * part) / this.ratio);
        left -= part;
        this.sum = this.weight = 0;
      }
      this.sum += sample * left;
      this.weight += left;
    }
    return true;
  }

  put(value) {
    this.chunk[this.filled] = Math.max(-32768, Math.min(32767, Math.round(value * 32768)));
    this.filled += 1;
    if (this.filled === CHUNK) this.send();
  }

  send() {
    this.port.postMessage(this.chunk.slice(0, this.filled));
    this.filled = 0;
  }
}

registerProcessor("microphone", Microphone);
