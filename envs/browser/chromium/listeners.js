// Runs in every document before its own scripts, in their world: tells page.js which elements listen to the mouse. A
// page may undo it; then those elements are found by their cursor, role or tag alone.
(() => {
  const listens = /^(click|dblclick|mousedown|mouseup|pointerdown|pointerup)$/;
  const add = EventTarget.prototype.addEventListener;
  const send = EventTarget.prototype.dispatchEvent;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (this instanceof Element && listens.test(type)) {
      // The worlds of a document share no objects, but an event carries an element from one to the other.
      const [at, relatedTarget] = this.isConnected ? [this, null] : [document, this];
      send.call(at, new MouseEvent('palaestra-listens', { relatedTarget, composed: true }));
    }
    return add.call(this, type, ...rest);
  };
})();
