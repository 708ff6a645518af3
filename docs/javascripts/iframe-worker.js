// Where a page is opened as a file, browsers start no worker. The search then runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      const script = document.createElement("script")
      script.src = url
      this.frame.srcdoc = script.outerHTML
      this.started = new Promise(resolve => this.frame.addEventListener("load", resolve))
      this.started.then(() => {
        this.frame.contentWindow.postMessage = data =>
          this.dispatchEvent(new MessageEvent("message", { data }))
      })
      document.documentElement.append(this.frame)
    }

    postMessage(data) {
      this.started.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      )
    }

    terminate() {
      this.frame.remove()
    }
  }
