// The page as numbered text, and acting on its elements by number. Runs in a world of its own: it shares the document
// with the page's scripts, but no object, so that they can neither change nor call it.
(() => {
  const MOST_CHARACTERS = 400000, MOST_ELEMENTS = 60000, MOST_DEPTH = 400, MOST_NUMBERS = 5000, NAME = 200, OPTIONS = 30;
  const OPEN = '\ue000', CLOSE = '\ue001';
  const ROLES = new Set(['button', 'link', 'checkbox', 'radio', 'switch', 'tab', 'menuitem', 'menuitemcheckbox',
    'menuitemradio', 'option', 'treeitem', 'combobox', 'textbox', 'searchbox', 'spinbutton', 'slider', 'gridcell']);
  const SKIPPED = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'META', 'LINK', 'TITLE', 'OBJECT', 'DEFS']);
  const SHAPES = new Set(['circle', 'ellipse', 'rect', 'polygon', 'line']);
  const TYPED = new Set(['text', 'search', 'email', 'url', 'tel', 'password', 'number']);
  const PLAIN = new Set(['text', 'search', 'email', 'url', 'tel']);
  const PRESSED = new Set(['submit', 'button', 'reset', 'image']);
  const listening = new WeakSet();
  let numbered = [], changed = 0;
  document.addEventListener('palaestra-listens', (event) => listening.add(event.relatedTarget || event.composedPath()[0]), true);

  const unmarked = (text) => text.replace(/[\ue000\ue001]/g, '');
  const squeeze = (text) => unmarked(String(text)).slice(0, 50000).replace(/\s+/g, ' ').trim();
  const cut = (text) => (text.length > NAME ? text.slice(0, NAME - 3) + '...' : text);
  const tag = (element) => element.tagName.toUpperCase();
  const is = (element, name) => tag(element) === name;
  const inner = (element) => squeeze(element.innerText ?? element.textContent ?? '');
  const shown = (element) => element.getClientRects().length > 0;

  // What can be acted on.

  function kind(element, style, above) {
    const role = element.getAttribute('role');
    switch (tag(element)) {
      case 'A': case 'AREA':
        if (!element.hasAttribute('href')) break;
        if (!/^(https?|javascript):/.test(element.href)) return '';
        return role && ROLES.has(role) ? role : 'link';
      case 'BUTTON': case 'SUMMARY': return role && ROLES.has(role) ? role : 'button';
      case 'SELECT': return 'select';
      case 'TEXTAREA': return 'textarea';
      case 'INPUT': return element.type === 'hidden' ? '' : PRESSED.has(element.type) ? 'button' : PLAIN.has(element.type) ? 'field' : element.type;
      case 'LABEL': return /^(checkbox|radio)$/.test(element.control?.type) && !shown(element.control) ? element.control.type : '';
      case 'BODY': case 'HTML': return '';
    }
    if (role && ROLES.has(role)) return role;
    if (element.isContentEditable) return element.parentElement?.isContentEditable ? '' : 'textbox';
    const pointed = style.cursor === 'pointer' && above !== 'pointer';
    const inline = element.hasAttribute('onclick') || element.hasAttribute('onmousedown');
    const reached = element.hasAttribute('tabindex') && element.tabIndex >= 0;
    return pointed || inline || reached || listening.has(element) ? (element instanceof SVGElement ? element.localName : 'clickable') : '';
  }

  function named(element) {
    const by = (element.getAttribute('aria-labelledby') || '').split(/\s+/).filter(Boolean)
      .map((id) => element.getRootNode().getElementById?.(id)?.textContent || '').join(' ');
    const pictures = () => [element, ...element.querySelectorAll('img, svg')].map((one) =>
      one.getAttribute('alt') || (one !== element && (one.getAttribute('aria-label') || one.querySelector('title')?.textContent)) || '').join(' ');
    const given = element.getAttribute('aria-label') || by;
    const hint = () => squeeze(`${element.id} ${element.getAttribute('class') || ''}`);
    const last = (address) => (address || '').split(/[?#]/)[0].replace(/\/+$/, '').split('/').pop();
    let found;
    if (is(element, 'INPUT') && PRESSED.has(element.type))
      found = [given, element.value, element.alt, { submit: 'Submit', reset: 'Reset', image: 'Submit' }[element.type], element.name, hint()];
    else if (/^(INPUT|SELECT|TEXTAREA)$/.test(tag(element)) || element.isContentEditable)
      found = [given, [...(element.labels || [])].map(labelled).join(' '), element.title, element.placeholder, element.name];
    else found = [given, inner(element), pictures(), element.title, element.name, last(element.getAttribute('href') || element.getAttribute('src')), hint()];
    return cut(squeeze(found.find((one) => typeof one === 'string' && squeeze(one)) || ''));
  }

  function labelled(label) {
    if (!label.querySelector('select, textarea')) return inner(label);
    const copy = label.cloneNode(true);
    copy.querySelectorAll('select, textarea').forEach((one) => one.remove());
    return copy.textContent;
  }

  function states(element, what) {
    const said = [], aria = (name) => element.getAttribute(`aria-${name}`);
    const box = is(element, 'LABEL') ? element.control : element;
    if (/^(checkbox|radio|switch|menuitemcheckbox|menuitemradio)$/.test(what))
      said.push((box.checked ?? aria('checked') === 'true') ? 'checked' : 'unchecked');
    if (aria('selected') === 'true') said.push('selected');
    if (aria('expanded')) said.push(aria('expanded') === 'true' ? 'open' : 'closed');
    if (element.disabled || aria('disabled') === 'true') said.push('disabled');
    return said.length ? ` (${said.join(', ')})` : '';
  }

  function holds(element, what) {
    if (is(element, 'SELECT')) {
      const all = [...element.options].map((one) => cut(squeeze(one.text)));
      const held = [...element.selectedOptions].map((one) => `"${cut(squeeze(one.text))}"`).join(', ') || '""';
      return ` = ${held}; options: ${all.slice(0, OPTIONS).join(' | ')}${all.length > OPTIONS ? ` | and ${all.length - OPTIONS} more` : ''}`;
    }
    if (what === 'password') return ` = "${'*'.repeat(Math.min(element.value.length, 20))}"`;
    if (is(element, 'TEXTAREA') || is(element, 'INPUT') && !/^(checkbox|radio|button)$/.test(what)) return ` = "${cut(unmarked(element.value).replace(/\s+/g, ' '))}"`;
    return element.isContentEditable ? ` = "${cut(inner(element))}"` : '';
  }

  function shape(element) {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    const filled = element.getAttribute('fill') || (style.fill === 'none' ? style.stroke : style.fill);
    return squeeze(`${filled} at ${Math.round(box.x)},${Math.round(box.y)} size ${Math.round(box.width)}x${Math.round(box.height)}`);
  }

  // The page as text, in the format of envs/browser/format.py.

  function render(only) {
    const lines = [], found = [], lists = [];
    let line = '', prefix = '', total = 0, seen = 0, stopped = false, cell = 0;
    const write = (text) => { line += text; };
    const end = () => {
      const done = line.replace(/\s+/g, ' ').trim();
      line = '';
      if (!done) return;
      if (!only) lines.push(prefix + done);
      prefix = '';
      total += done.length;
      if (total > MOST_CHARACTERS) stopped = true;
    };
    const begin = (text) => { end(); prefix = text; };
    const rule = (text) => { end(); if (!only) lines.push(text); };
    const bracket = (element, what, name) => {
      if (found.length >= MOST_NUMBERS) { write(name); return; }
      found.push(element);
      const text = `${OPEN}${found.length}:${what}${name ? ' ' + name : ''}${holds(element, what)}${states(element, what)}${CLOSE}`;
      if (only) lines.push(text); else write(text);
    };
    const acts = (element, style) => {
      if (element.shadowRoot) return true;
      for (const one of element.querySelectorAll('*'))
        if (shown(one) && kind(one, getComputedStyle(one), style.cursor)) return true;
      return false;
    };

    function children(node, here, depth) {
      const inside = node.shadowRoot?.childNodes || (is(node, 'SLOT') && node.assignedNodes().length ? node.assignedNodes() : node.childNodes);
      for (const child of inside) {
        if (stopped) return;
        if (child.nodeType === 1) walk(child, here, depth + 1);
        else if (child.nodeType === 3 && !here.mute) {
          if (!here.pre) write(unmarked(child.data));
          else unmarked(child.data).split('\n').forEach((part, at) => { if (at) raw(); line += part; });
        }
      }
    }

    function raw() {
      if (!only && line.trim()) lines.push(line.trimEnd());
      total += line.length;
      line = '';
    }

    function walk(element, above, depth) {
      const name = tag(element);
      if (SKIPPED.has(name) || element.getAttribute('aria-hidden') === 'true') return;
      if (++seen > MOST_ELEMENTS || depth > MOST_DEPTH) { stopped = true; return; }
      const style = getComputedStyle(element), drawn = element instanceof SVGElement;
      if (style.display === 'none' || style.opacity === '0' && name !== 'INPUT') return;  // An invisible box may lie over its picture.
      if (style.overflowX !== 'visible' && !drawn) {
        const box = element.getBoundingClientRect();
        if (box.width < 1 || box.height < 1) return;
      }
      const here = { cursor: style.cursor, pre: above.pre, mute: style.visibility !== 'visible' };
      if (name === 'LABEL' && element.control && shown(element.control)) here.mute = true;
      if (above.mute && style.visibility === 'visible' && name !== 'LABEL' && above.label) here.mute = true;
      here.label = name === 'LABEL' || above.label;
      if (style.visibility !== 'visible') { children(element, here, depth); return; }
      const inline = /^(inline|contents|ruby|none)/.test(style.display) || drawn && name !== 'SVG';
      const inTable = /^table-cell/.test(style.display);
      const strong = /^(H[1-6]|UL|OL|LI|TABLE|CAPTION|PRE|BLOCKQUOTE|TR)$/.test(name);
      if (inTable) { if (line) write(' | '); cell++; }
      else if (inline) { if (style.display !== 'inline' && /\S$/.test(line)) write(' '); }
      else if (cell && !strong) write(' ');
      else end();
      if (name === 'UL' || name === 'OL') lists.push(name === 'OL' ? element.start : -Infinity);
      if (name === 'LI') begin('  '.repeat(Math.max(Math.min(lists.length - 1, 10), 0)) + (lists.at(-1) > -Infinity ? `${lists[lists.length - 1]++}. ` : '- '));
      else if (/^H[1-6]$/.test(name)) begin('#'.repeat(+name[1]) + ' ');
      else if (name === 'PRE') { rule('```'); here.pre = true; }
      else if (name === 'HR') rule('---');
      else if (name === 'BR') { if (above.pre) raw(); else if (cell) write(' '); else end(); }
      const what = kind(element, style, above.cursor);
      if (/^I?FRAME$/.test(name)) frame(element, depth);
      else if (what) numberOne(element, what, style, here, depth);
      else if (name === 'IMG') { const alt = squeeze(element.alt); if (alt) write(`(image: ${cut(alt)})`); }
      else if (drawn && SHAPES.has(element.localName)) write(` (${element.localName} ${shape(element)}) `);
      else children(element, here, depth);
      if (name === 'UL' || name === 'OL') lists.pop();
      if (name === 'PRE') { raw(); rule('```'); }
      if (inTable) cell--;
      else if (inline) { if (style.display !== 'inline') write(' '); }
      else if (cell && !strong) write(' ');
      else { end(); prefix = ''; }
    }

    function numberOne(element, what, style, here, depth) {
      const drawn = element instanceof SVGElement;
      if (drawn && (SHAPES.has(element.localName) || element.localName === 'path')) {
        bracket(element, what, shape(element));
        write(' ');
      } else if (!/^(INPUT|SELECT|TEXTAREA|BUTTON|LABEL)$/.test(tag(element)) && !element.isContentEditable && acts(element, style)) {
        // Its content stands behind its number, since it has numbers of its own.
        bracket(element, what, squeeze(element.getAttribute('aria-label') || ''));
        write(' ');
        children(element, here, depth);
      } else {
        bracket(element, what, named(element));
        if (is(element, 'TEXTAREA') && element.value.length > NAME) write(' ' + unmarked(element.value));  // The rest of it, to be read.
        if (what === 'clickable' && inner(element).length > NAME) { write(' '); children(element, here, depth); }
      }
    }

    function frame(element, depth) {
      let inside = null;
      try { inside = element.contentDocument; } catch { /* of another origin */ }
      end();
      if (inside?.body) walk(inside.body, { cursor: '', pre: false }, depth + 1);
      else write(`(a frame with ${cut(squeeze(element.src || 'another page'))})`);
      end();
    }

    if (document.body) walk(document.body, { cursor: '', pre: false }, 0);
    end();
    numbered = found;
    return { url: location.href, title: squeeze(document.title), lines, elements: found.length, cut: stopped };
  }

  // Acting.

  const told = (error) => ({ error });
  const get = (number) => {
    const element = numbered[number - 1];
    if (!element) return [null, told(numbered.length ? `there is no [${number}]; the numbers are 1 to ${numbered.length}` : `there is no [${number}]; the page has no numbers`)];
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

  function aim(number) {
    const [element, error] = get(number);
    if (error) return error;
    if (is(element, 'SELECT')) return told(`[${number}] is a list; choose one of its options by name (select)`);
    if (is(element, 'INPUT') && element.type === 'file') return told('files cannot be uploaded here');
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
    return told(`[${number}] is covered by something else: ${cut(named(over)) || tag(over).toLowerCase()}`);
  }

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
    return render(only);
  }

  const actions = { aim, fill, choose, submit, scroll };
  function watched() {
    changed = 0;
    watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  }

  function act(name, ...given) {
    watched();
    return actions[name](...given);
  }

  globalThis.palaestra = { act, view };
})();
