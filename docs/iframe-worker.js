// The theme searches in a worker, which browsers refuse to pages that are opened as files: there a hidden frame does it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((started) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow, script = inside.document.createElement("script");
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          script.addEventListener("load", () => started(inside));
          script.src = url;
          inside.document.body.append(script);
        }, { once: true });
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
