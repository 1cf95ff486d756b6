// Lets the search work from a file: page, where browsers refuse `new Worker`. The worker's script runs in a
// hidden frame instead. The theme's offline plugin would load such a shim from another host.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const worker = frame.contentWindow;
      worker.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.deliver = (data) => worker.dispatchEvent(new worker.MessageEvent("message", { data }));
      const script = worker.document.createElement("script");
      script.src = url;
      this.ready = new Promise((resolve) => (script.onload = resolve));
      worker.document.body.append(script);
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(data));
    }
  };
}
