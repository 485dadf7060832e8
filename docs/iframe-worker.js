// The theme searches in a Worker, which browsers refuse to pages opened as files: there, its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>
        postMessage = (data) => frameElement.worker.dispatchEvent(new MessageEvent("message", { data }));
      </script><script src="${url}"></script>`;
      frame.worker = this;
      this.ready = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame.contentWindow)));
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((frame) => frame.dispatchEvent(new frame.MessageEvent("message", { data })));
    }
  };
}
