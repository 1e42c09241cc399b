// Browsers start no worker for a page that was opened from a disk, so that its search would not work. There a hidden
// frame does what the worker would do. (The theme's own plugin fetches such a script from the network.)
class IFrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.waiting = []
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    document.body.appendChild(this.frame)
    const inside = this.frame.contentWindow
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
    inside.importScripts = (...urls) =>
      urls.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve())
    this.load(url).then(() => {
      const waiting = this.waiting
      this.waiting = null
      waiting.forEach((data) => this.postMessage(data))
    })
  }

  load(url) {
    return new Promise((done, failed) => {
      const script = this.frame.contentDocument.createElement("script")
      script.src = url
      script.onload = done
      script.onerror = failed
      this.frame.contentDocument.body.appendChild(script)
    })
  }

  postMessage(data) {
    if (this.waiting) this.waiting.push(data)
    else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
  }

  terminate() {
    this.frame.remove()
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
}
