// The page as numbered text, and acting on its elements by number. Runs in a world of its own: it shares the document
// with the page's scripts, but no object, so that they can neither change nor call it.
(() => {
  const MOST_CHARACTERS = 400000, MOST_ELEMENTS = 60000, MOST_DEPTH = 400, NAME = 200, OPTIONS = 100;
  const ROLES = new Set(['button', 'link', 'checkbox', 'radio', 'switch', 'tab', 'menuitem', 'menuitemcheckbox',
    'menuitemradio', 'option', 'treeitem', 'combobox', 'textbox', 'searchbox', 'spinbutton', 'slider', 'gridcell']);
  const SKIPPED = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'META', 'LINK', 'TITLE', 'OBJECT', 'DEFS']);
  const SHAPES = new Set(['circle', 'ellipse', 'rect', 'polygon', 'line']);
  const TYPED = new Set(['text', 'search', 'email', 'url', 'tel', 'password', 'number']);
  const PRESSED = new Set(['submit', 'button', 'reset', 'image', 'file']);
  const listening = new WeakSet();
  let numbered = [], changed = 0;
  document.addEventListener('palaestra-listens', (event) => event.relatedTarget && listening.add(event.relatedTarget), true);

  const squeeze = (text) => text.replace(/\s+/g, ' ').trim();
  const cut = (text) => (text.length > NAME ? text.slice(0, NAME - 3) + '...' : text);
  const tag = (element) => element.tagName.toUpperCase();
  const is = (element, name) => tag(element) === name;
  const inner = (element) => squeeze(element.innerText ?? element.textContent ?? '');

  // What can be acted on.

  function kind(element, style, above) {
    const role = element.getAttribute('role');
    switch (tag(element)) {
      case 'A': case 'AREA': if (element.hasAttribute('href')) return role === 'button' || role === 'tab' ? role : 'link'; break;
      case 'BUTTON': case 'SUMMARY': return role && ROLES.has(role) ? role : 'button';
      case 'SELECT': return 'select';
      case 'TEXTAREA': return 'textarea';
      case 'INPUT':
        if (element.type === 'hidden') return '';
        return PRESSED.has(element.type) && element.type !== 'file' ? 'button' : element.type;
    }
    if (role && ROLES.has(role)) return role;
    if (element.isContentEditable && !element.parentElement?.isContentEditable) return 'textbox';
    const page = is(element, 'BODY') || is(element, 'HTML') || is(element, 'LABEL');
    if (page || element.isContentEditable) return '';
    const pointed = style.cursor === 'pointer' && above !== 'pointer';
    const inline = element.hasAttribute('onclick') || element.hasAttribute('onmousedown');
    if (!(pointed || inline || listening.has(element) || element.tabIndex >= 0 && element.hasAttribute('tabindex'))) return '';
    return element instanceof SVGElement ? tag(element).toLowerCase() : 'clickable';
  }

  function named(element) {
    const by = (element.getAttribute('aria-labelledby') || '').split(/\s+/).filter(Boolean)
      .map((id) => element.getRootNode().getElementById?.(id)?.textContent || '').join(' ');
    const pressed = is(element, 'INPUT') && PRESSED.has(element.type);
    const labels = [...(element.labels || [])].map(inner).join(' ');
    const pictures = () => [...element.querySelectorAll('img, svg')]
      .map((one) => one.getAttribute('alt') || one.getAttribute('aria-label') || one.querySelector('title')?.textContent || '');
    const field = /^(INPUT|SELECT|TEXTAREA)$/.test(tag(element));
    const found = [by, element.getAttribute('aria-label'), pressed && (element.value || element.alt || element.type), labels,
      !field && !element.isContentEditable && inner(element), !field && pictures().join(' '), element.title,
      element.placeholder, element.name,
      field ? '' : squeeze(`${element.id} ${element.getAttribute('class') || ''}`)];
    return cut(squeeze(found.find((one) => one && squeeze(one)) || ''));
  }

  function state(element) {
    const said = [];
    const checked = element.checked ?? (element.getAttribute('aria-checked') === 'true');
    if (/^(checkbox|radio|switch)$/.test(element.type || element.getAttribute('role') || '')) said.push(checked ? 'checked' : 'unchecked');
    if (element.getAttribute('aria-selected') === 'true') said.push('selected');
    if (element.hasAttribute('aria-expanded')) said.push(element.getAttribute('aria-expanded') === 'true' ? 'open' : 'closed');
    if (element.disabled || element.getAttribute('aria-disabled') === 'true') said.push('disabled');
    if (element === element.ownerDocument.activeElement) said.push('focused');
    return said.length ? ` (${said.join(', ')})` : '';
  }

  function holds(element, what) {
    if (is(element, 'SELECT')) {
      const all = [...element.options], chosen = all.filter((one) => one.selected).map((one) => squeeze(one.text));
      const shown = all.slice(0, OPTIONS).map((one) => squeeze(one.text)).join(' | ');
      const more = all.length > OPTIONS ? ` | and ${all.length - OPTIONS} more` : '';
      return ` = "${chosen.join('", "')}"; options: ${shown}${more}`;
    }
    if (is(element, 'TEXTAREA')) return ` = "${element.value}"`;
    if (is(element, 'INPUT') && !/^(checkbox|radio|button|file)$/.test(what)) return ` = "${what === 'password' ? '*'.repeat(element.value.length) : element.value}"`;
    if (element.isContentEditable) return ` = "${inner(element)}"`;
    return '';
  }

  function shape(element) {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    const filled = style.fill === 'none' ? style.stroke : style.fill;
    return `${tag(element).toLowerCase()} ${element.getAttribute('fill') || filled} at ${Math.round(box.x)},${Math.round(box.y)} ` +
      `size ${Math.round(box.width)}x${Math.round(box.height)}`;
  }

  // The page as text.

  function render(only) {
    const lines = [], found = [];
    let line = '', total = 0, seen = 0, cutOff = false;
    const write = (text) => { line += text; };
    const end = () => {
      const done = line.replace(/[ \t]+/g, ' ').trim();
      if (done && !only) { lines.push(done); total += done.length; }
      line = '';
      if (total > MOST_CHARACTERS) cutOff = true;
    };
    const bracket = (element, what, name) => {
      found.push(element);
      const text = squeeze(`[${found.length}:${what} ${name}${holds(element, what)}${state(element)}`) + ']';
      if (only) { lines.push(text); total += text.length; } else write(text);
    };
    const hasInside = (element, style) => {
      for (const one of element.querySelectorAll('*'))
        if (kind(one, getComputedStyle(one), style.cursor) && one.getClientRects().length) return true;
      return false;
    };

    function children(node, above, depth) {
      const inside = node.shadowRoot || (is(node, 'SLOT') && node.assignedNodes().length ? { childNodes: node.assignedNodes() } : node);
      for (const child of inside.childNodes) {
        if (cutOff) return;
        if (child.nodeType === 3 && !above.mute) write(above.pre ? child.data.split('\n').map((one) => one.replace(/[ \t]+/g, ' ')).join('\n') : child.data.replace(/\s+/g, ' '));
        else if (child.nodeType === 1) walk(child, above, depth + 1);
      }
    }

    function walk(element, above, depth) {
      const name = tag(element);
      if (SKIPPED.has(name)) return;
      if (++seen > MOST_ELEMENTS || depth > MOST_DEPTH) { cutOff = true; return; }
      const style = getComputedStyle(element);
      if (style.display === 'none') return;
      if (style.opacity === '0' && name !== 'INPUT') return;  // An invisible box often lies over its picture.
      if (style.overflowX !== 'visible' || style.overflowY !== 'visible') {
        const box = element.getBoundingClientRect();
        if (box.width < 1 || box.height < 1) return;
      }
      const here = { cursor: style.cursor, pre: style.whiteSpace.startsWith('pre'), list: above.list };
      const block = !/^(inline|contents|ruby|table-cell)/.test(style.display) && !(element instanceof SVGElement && name !== 'svg');
      if (style.visibility !== 'visible') { children(element, { ...here, mute: true }, depth); return; }
      if (block) end();
      else if (style.display === 'table-cell' && line) write(' | ');
      else if (style.display.startsWith('inline-') && line && !/\s$/.test(line)) write(' ');
      if (name === 'BR') end();
      else if (name === 'HR') { end(); write('---'); }
      else if (/^H[1-6]$/.test(name)) write('#'.repeat(+name[1]) + ' ');
      else if (name === 'LI') write('- ');
      const what = kind(element, style, above.cursor);
      if (name === 'IFRAME' || name === 'FRAME') frame(element, depth);
      else if (what) numberOne(element, what, style, here, depth);
      else if (name === 'IMG') { const alt = squeeze(element.alt || element.title || ''); if (alt) write(`(image: ${cut(alt)})`); }
      else if (SHAPES.has(element.localName) && element instanceof SVGElement) write(`(${shape(element)}) `);
      else if (name === 'CANVAS') { write('(drawing)'); children(element, here, depth); }
      else children(element, here, depth);
      if (block) end();
    }

    function numberOne(element, what, style, here, depth) {
      const weak = what === 'clickable' || !(element instanceof HTMLElement);
      if (element instanceof SVGElement) {
        const text = squeeze(element.textContent);
        bracket(element, what, SHAPES.has(element.localName) ? shape(element).replace(/^\S+ /, '') : `${text || named(element)}`);
        write(' ');
        if (!SHAPES.has(element.localName) && !text) children(element, here, depth);
        return;
      }
      const compound = weak || !/^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(tag(element));
      if (compound && hasInside(element, style)) {
        // Its content stands behind the number, since it has numbers of its own.
        bracket(element, what, squeeze(element.getAttribute('aria-label') || ''));
        write(' ');
        children(element, here, depth);
        return;
      }
      bracket(element, what, named(element));
      if (weak && inner(element).length > NAME) { write(' '); children(element, here, depth); }
    }

    function frame(element, depth) {
      let inside = null;
      try { inside = element.contentDocument; } catch { /* of another origin */ }
      end();
      if (inside?.body) walk(inside.body, { cursor: '', pre: false }, depth + 1);
      else write(`(a frame with ${element.src || 'another page'})`);
      end();
    }

    if (document.body) walk(document.body, { cursor: '', pre: false }, 0);
    end();
    numbered = found;
    return { url: location.href, title: squeeze(document.title), lines, elements: found.length, cut: cutOff };
  }

  // Acting.

  const told = (error) => ({ error });
  const get = (number) => {
    const element = numbered[number - 1];
    if (!element) return [null, told(`there is no number ${number}; the numbers are 1 to ${numbered.length}`)];
    if (!element.isConnected || !element.getClientRects().length) return [null, told(`number ${number} is gone, for the page has changed; look at it again`)];
    if (element.disabled) return [null, told(`number ${number} is disabled`)];
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

  function aim(number) {
    const [element, error] = get(number);
    if (error) return error;
    if (is(element, 'SELECT')) return told(`number ${number} is a list; choose one of its options by name (select)`);
    if (element.type === 'file') return told('files cannot be uploaded here');
    here(element);
    element.scrollIntoView({ behavior: 'instant', block: 'nearest', inline: 'nearest' });
    const [left, top] = offset(element);
    let over = null;
    for (const box of [...element.getClientRects()].slice(0, 4))
      for (const [right, down] of [[0.5, 0.5], [0.2, 0.3], [0.8, 0.7], [0.5, 0.1], [0.5, 0.9]]) {
        const x = box.x + box.width * right, y = box.y + box.height * down;
        const hit = element.getRootNode().elementFromPoint(x, y);
        if (!hit) continue;
        const label = hit.closest?.('label')?.control === element;
        if (hit === element || element.contains(hit) || element.shadowRoot?.contains(hit) || label) return { x: x + left, y: y + top };
        over = over || hit;
      }
    // Out of sight or without an area, such as a hidden box behind its picture: the page gets the click without a mouse.
    if (!over || element.getBoundingClientRect().width < 2 || getComputedStyle(element).opacity === '0') { element.click(); return {}; }
    return told(`number ${number} is covered by something else: ${cut(named(over)) || tag(over).toLowerCase()}`);
  }

  function send(element, ...names) {
    for (const name of names) element.dispatchEvent(new Event(name, { bubbles: true, composed: true }));
  }

  function fill(number, text) {
    const [element, error] = get(number);
    if (error) return error;
    if (element.readOnly) return told(`number ${number} cannot be written to`);
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
      return told(`number ${number} is no field for text`);
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
    if (!is(element, 'SELECT')) return told(`number ${number} is no list of options; click it to open it`);
    const all = [...element.options], same = (one) => squeeze(one).toLowerCase() === squeeze(wanted).toLowerCase();
    const option = all.find((one) => one.text === wanted) || all.find((one) => same(one.text)) || all.find((one) => one.value === wanted);
    if (!option) return told(`no option is ${wanted.slice(0, 80)}; the options: ${cut(all.map((one) => squeeze(one.text)).join(' | '))}`);
    if (option.disabled) return told('that option is disabled');
    element.focus();
    option.selected = true;
    send(element, 'input', 'change');
    return {};
  }

  function submit(number) {
    const [element, error] = get(number);
    if (error) return error;
    const form = element.form || element.closest('form');
    if (!form) return told(`number ${number} belongs to no form`);
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

  async function rest() {
    const begun = performance.now();
    await soon(0);
    await soon(0);
    while (changed && performance.now() - changed < QUIET && performance.now() - begun < MOST) await soon(QUIET / 4);
  }

  async function view(only) {
    await rest();
    watch.disconnect();
    return render(only);
  }

  const actions = { aim, fill, choose, submit, scroll };
  function act(name, ...given) {
    changed = 0;
    watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    return actions[name](...given);
  }

  globalThis.palaestra = { act, view };
})();
