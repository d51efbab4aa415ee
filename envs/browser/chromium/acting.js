// Acting on the numbered elements of the page, and when it has come to rest. Runs after page.js, in its world.
(() => {
  const { render, numbered, squeeze, cut, tag, is, named, PRESSED } = globalThis.palaestra;
  const TYPED = new Set(['text', 'search', 'email', 'url', 'tel', 'password', 'number']);
  const HEARD = ['pointerdown', 'pointerup'];
  let changed = 0, aimed = null;

  const told = (error) => ({ error });
  const get = (number) => {
    const element = numbered()[number - 1];
    if (!element) return [null, told(numbered().length ? `there is no [${number}]; the numbers are 1 to ${numbered().length}` : `there is no [${number}]; the page has no numbers`)];
    if (!element.isConnected || !element.getClientRects().length) return [null, told(`[${number}] is gone, for the page has changed; look at it again`)];
    if (element.disabled) return [null, told(`[${number}] is disabled`)];
    return [element, null];
  };

  function here(element) {
    // One tab: what would open another one opens in this.
    for (const one of [element.closest('a, area, form'), element.form]) if (one?.target && one.target !== '_self') one.target = '_self';
  }

  function offset(element) {
    let x = 0, y = 0;
    for (let view = element.ownerDocument.defaultView; view !== window; view = view.parent) {
      const box = view.frameElement.getBoundingClientRect();
      x += box.x + view.frameElement.clientLeft;
      y += box.y + view.frameElement.clientTop;
    }
    return [x, y];
  }

  const labelOf = (element) => cut(named(element)) || tag(element).toLowerCase();

  function* points(element, left, top) {
    for (const box of [...element.getClientRects()].slice(0, 4))
      for (const [right, down] of [[0.5, 0.5], [0.2, 0.3], [0.8, 0.7], [0.5, 0.1], [0.5, 0.9]])
        yield { x: left + box.x + box.width * right, y: top + box.y + box.height * down };
  }

  async function aim(number, mouse) {
    // Where to click. Called again once the mouse is there, until the element is settled under it: the mouse may have
    // moved it, or exchanged its picture for one that has no area before it is loaded, which lets go of the mouse.
    for (const begun = performance.now(); ; await soon(QUIET / 2)) {
      const [element, error] = get(number);
      if (error) return error;
      if (is(element, 'SELECT')) return told(`[${number}] is a list; choose one of its options by name (select)`);
      if (is(element, 'INPUT') && element.type === 'file') return told('files cannot be uploaded here');
      here(element);
      element.scrollIntoView({ behavior: 'instant', block: 'nearest', inline: 'nearest' });
      const [left, top] = offset(element);
      let over = null;
      for (const at of [...(mouse ? [mouse] : []), ...points(element, left, top)]) {
        const hit = element.getRootNode().elementFromPoint(at.x - left, at.y - top);
        if (hit && (hit === element || element.contains(hit) || element.shadowRoot?.contains(hit) || hit.closest?.('label')?.control === element)) {
          // In quirks mode ':hover' alone matches links only.
          const same = mouse && at.x === mouse.x && at.y === mouse.y, settled = !!same && hit.matches(':hover:not(_)');
          if (same && !settled) await soon(QUIET);
          for (const name of HEARD) element.ownerDocument.defaultView.addEventListener(name, recordHit, true);
          aimed = { element, number, missed: `the click on [${number}] hit nothing` };
          return { x: at.x, y: at.y, settled };
        }
        over = over || hit;
      }
      if (mouse && performance.now() - begun < MOST) continue;
      // Out of sight or without an area, such as a hidden box behind its picture: the page gets the click without a mouse.
      if (!over || element.getBoundingClientRect().width < 2 || getComputedStyle(element).opacity === '0') { element.click(); return {}; }
      return told(`[${number}] is covered by something else: ${labelOf(over)}`);
    }
  }

  function recordHit(event) {
    // Before the page's own listeners: where the mouse was pressed and released.
    if (!aimed || !event.isTrusted) return;
    const path = event.composedPath(), pressed = event.type === 'pointerdown';
    const hit = path.some((one) => one === aimed.element || one.control === aimed.element);
    if (hit && pressed) aimed.missed = '';
    if (hit || !pressed && (aimed.missed || !aimed.element.isConnected)) return;
    const name = path[0].contains(aimed.element) ? 'what is around it' : labelOf(path[0]);
    aimed.missed = pressed ? `the click on [${aimed.number}] hit ${name}` : `the mouse was pressed on [${aimed.number}], but released on ${name}`;
  }
  for (const name of HEARD) addEventListener(name, recordHit, true);

  function send(element, ...names) {
    for (const name of names) element.dispatchEvent(new Event(name, { bubbles: true, composed: true }));
  }

  function fill(number, text) {
    const [element, error] = get(number);
    if (error) return error;
    if (element.readOnly) return told(`[${number}] cannot be written to`);
    const typed = is(element, 'TEXTAREA') || is(element, 'INPUT') && TYPED.has(element.type);
    if (typed || element.isContentEditable) {
      element.scrollIntoView({ behavior: 'instant', block: 'nearest', inline: 'nearest' });
      element.focus();
      if (typed) element.select();
      else element.ownerDocument.getSelection().selectAllChildren(element);
      if (!text) element.ownerDocument.execCommand('delete');
      return {};
    }
    if (!is(element, 'INPUT') || PRESSED.has(element.type) || /^(checkbox|radio)$/.test(element.type))
      return told(`[${number}] is no field for text`);
    element.focus();
    element.value = text;
    if (element.value !== text) return told(`${text.slice(0, 40)} is no ${element.type}; it has the form ${
      { date: '2025-12-31', time: '23:59', month: '2025-12', week: '2025-W07', 'datetime-local': '2025-12-31T23:59', color: '#ff8800' }[element.type] || 'of a number within its limits'}`);
    send(element, 'input', 'change');
    return { done: true };
  }

  function choose(number, wanted) {
    const [element, error] = get(number);
    if (error) return error;
    if (!is(element, 'SELECT')) return told(`[${number}] is no list of options; click it to open it`);
    const all = [...element.options], same = (one) => squeeze(one).toLowerCase() === squeeze(wanted).toLowerCase();
    const option = all.find((one) => one.text === wanted) || all.find((one) => same(one.text)) || all.find((one) => one.value === wanted);
    if (!option) return told(`no option is ${wanted.slice(0, 80)}; the options: ${cut(all.map((one) => squeeze(one.text)).join(' | '))}`);
    if (option.disabled) return told('that option is disabled');
    element.focus();
    option.selected = element.multiple ? !option.selected : true;
    send(element, 'input', 'change');
    return {};
  }

  function submit(number) {
    const [element, error] = get(number);
    if (error) return error;
    const form = element.form || element.closest('form');
    if (!form) return told(`[${number}] belongs to no form`);
    here(element);
    const wrong = form.noValidate ? null : [...form.elements].find((one) => one.willValidate && !one.validity.valid);
    if (wrong) return told(`the form was not sent: ${named(wrong)}: ${wrong.validationMessage}`);
    const button = (element.type === 'submit' || element.type === 'image') && element.form ? element : null;
    button ? form.requestSubmit(button) : form.requestSubmit();
    return {};
  }

  function scroll(down) {
    const moves = (one) => { const before = one.scrollTop; one.scrollBy({ top: (down ? 0.9 : -0.9) * one.clientHeight, behavior: 'instant' }); return one.scrollTop !== before; };
    if (moves(document.scrollingElement || document.documentElement)) return {};
    const inner = [...document.querySelectorAll('*')].filter((one) => one.scrollHeight > one.clientHeight + 4 && /auto|scroll/.test(getComputedStyle(one).overflowY));
    inner.sort((one, other) => other.clientHeight * other.clientWidth - one.clientHeight * one.clientWidth);
    return inner.some(moves) ? {} : { note: `the page does not scroll further ${down ? 'down' : 'up'}` };
  }

  // When a page has come to rest: no change for QUIET ms, or MOST ms have passed.

  const QUIET = 25, MOST = 1000;
  const watch = new MutationObserver(() => { changed = performance.now(); });
  const soon = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  async function rest(patience) {
    const begun = performance.now();
    await soon(0);
    await soon(0);
    while (!changed && performance.now() - begun < patience) await soon(QUIET / 2);
    while (changed && performance.now() - changed < QUIET && performance.now() - begun < MOST) await soon(QUIET / 4);
  }

  async function view(only, patience) {
    if (patience) watched();
    await rest(patience);
    watch.disconnect();
    const missed = aimed?.missed || '';
    aimed = null;
    return { ...render(only), missed };
  }

  const actions = { aim, fill, choose, submit, scroll };
  function watched() {
    changed = 0;
    watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  }

  function act(name, ...given) {
    watched();
    aimed = null;
    return actions[name](...given);
  }

  Object.assign(globalThis.palaestra, { act, view });
})();
