// The page as numbered text. Runs in a world of its own: it shares the document with the page's scripts, but no object,
// so that they can neither change nor call it.
(() => {
  const MOST_CHARACTERS = 400000, MOST_ELEMENTS = 60000, MOST_DEPTH = 400, MOST_NUMBERS = 5000, NAME = 200, OPTIONS = 30, BLANK = 0.15;
  const OPEN = '\ue000', CLOSE = '\ue001';
  const ROLES = new Set(['button', 'link', 'checkbox', 'radio', 'switch', 'tab', 'menuitem', 'menuitemcheckbox',
    'menuitemradio', 'option', 'treeitem', 'combobox', 'textbox', 'searchbox', 'spinbutton', 'slider', 'gridcell']);
  const SKIPPED = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'META', 'LINK', 'TITLE', 'OBJECT', 'DEFS']);
  const SHAPES = new Set(['circle', 'ellipse', 'rect', 'polygon', 'line']);
  const PLAIN = new Set(['text', 'search', 'email', 'url', 'tel']);
  const PRESSED = new Set(['submit', 'button', 'reset', 'image']);
  const listening = new WeakSet();
  let numbered = [];
  document.addEventListener('palaestra-listens', (event) => listening.add(event.relatedTarget || event.composedPath()[0]), true);

  const unmarked = (text) => text.replace(/[\ue000\ue001]/g, '');
  const squeeze = (text) => unmarked(String(text)).slice(0, 50000).replace(/\s+/g, ' ').trim();
  const cut = (text) => (text.length > NAME ? text.slice(0, NAME - 3) + '...' : text);
  const tag = (element) => element.tagName.toUpperCase();
  const is = (element, name) => tag(element) === name;
  const inner = (element) => squeeze(element.innerText ?? element.textContent ?? '');
  const withCase = (text, how) => how === 'uppercase' ? text.toUpperCase() : how === 'lowercase' ? text.toLowerCase()
    : how === 'capitalize' ? text.replace(/(^|\s)\p{L}/gu, (first) => first.toUpperCase()) : text;
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

  // What is drawn: where it is may be all that tells it from others.
  function shape(element) {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    const filled = element.getAttribute('fill') || (style.fill === 'none' ? style.stroke : style.fill);
    const name = SHAPES.has(element.localName) || element.localName === 'path' ? filled : named(element);
    return squeeze(`${name} at ${Math.round(box.x)},${Math.round(box.y)} size ${Math.round(box.width)}x${Math.round(box.height)}`);
  }

  // Whether a reader sees a gap between two texts that follow one another.
  function apart(before, after) {
    const range = document.createRange();
    const boxes = (text) => { range.selectNodeContents(text); return [...range.getClientRects()]; };
    const one = boxes(before).at(-1), other = boxes(after)[0];
    if (!one || !other || one.bottom <= other.top || other.bottom <= one.top) return true;
    return Math.max(other.left - one.right, one.left - other.right) > BLANK * parseFloat(getComputedStyle(after.parentNode).fontSize);
  }

  // The page as text, in the format of envs/browser/format.py.

  function render(only) {
    const lines = [], found = [], lists = [], plain = !/html|xml/.test(document.contentType);
    let line = '', prefix = '', total = 0, seen = 0, stopped = false, cell = 0;
    let last = null, boundary = false;  // The text that the line ends with; whether an inline box begins or ends behind it.
    const write = (text) => { line += boundary ? ` ${text}` : text; last = null; boundary = false; };
    const bound = () => { if (last) boundary = true; else if (/\S$/.test(line)) write(' '); };
    const writeText = (node, text) => {
      if (boundary && /\S$/.test(line) && /^\S/.test(text) && apart(last, node)) line += ' ';
      line += text;
      last = node;
      boundary = false;
    };
    const clear = () => { line = ''; last = null; boundary = false; };
    const end = () => {
      const done = line.replace(/\s+/g, ' ').trim();
      clear();
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
          const text = withCase(unmarked(child.data), here.case);
          if (!here.pre) writeText(child, text);
          else text.split('\n').forEach((words, at) => { if (at) raw(); writeText(child, words); });
        }
      }
    }

    function raw() {
      if (!only && line.trim()) lines.push(line.trimEnd());
      total += line.length;
      clear();
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
      const here = { cursor: style.cursor, pre: above.pre, mute: style.visibility !== 'visible', case: style.textTransform };
      if (name === 'LABEL' && element.control && shown(element.control)) here.mute = true;
      if (above.mute && style.visibility === 'visible' && name !== 'LABEL' && above.label) here.mute = true;
      here.label = name === 'LABEL' || above.label;
      if (style.visibility !== 'visible') { children(element, here, depth); return; }
      const inline = /^(inline|contents|ruby|none)/.test(style.display) || drawn && name !== 'SVG';
      const inTable = /^table-cell/.test(style.display);
      const strong = /^(H[1-6]|UL|OL|LI|TABLE|CAPTION|PRE|BLOCKQUOTE|TR)$/.test(name);
      if (inTable) { if (line) write(' | '); cell++; }
      else if (inline) { if (style.display !== 'inline') bound(); }
      else if (cell && !strong) write(' ');
      else end();
      if (name === 'UL' || name === 'OL') lists.push(name === 'OL' ? element.start : -Infinity);
      if (name === 'LI') begin('  '.repeat(Math.max(Math.min(lists.length - 1, 10), 0)) + (lists.at(-1) > -Infinity ? `${lists[lists.length - 1]++}. ` : '- '));
      else if (/^H[1-6]$/.test(name)) begin('#'.repeat(+name[1]) + ' ');
      else if (name === 'PRE') { if (!plain) rule('```'); here.pre = true; }
      else if (name === 'HR') rule('---');
      else if (name === 'BR') { if (above.pre) raw(); else if (cell) write(' '); else end(); }
      const what = kind(element, style, above.cursor);
      if (/^I?FRAME$/.test(name)) frame(element, depth);
      else if (what) numberOne(element, what, style, here, depth);
      else if (name === 'IMG') { const alt = squeeze(element.alt); if (alt) write(`(image: ${cut(alt)})`); }
      else if (drawn && SHAPES.has(element.localName)) write(` (${element.localName} ${shape(element)}) `);
      else children(element, here, depth);
      if (name === 'UL' || name === 'OL') lists.pop();
      if (name === 'PRE') { raw(); if (!plain) rule('```'); }
      if (inTable) cell--;
      else if (inline) { if (style.display !== 'inline') bound(); }
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
        bracket(element, what, drawn && element.ownerSVGElement ? shape(element) : named(element));
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

    const status = performance.getEntriesByType('navigation')[0]?.responseStatus || 0;
    if (document.body) walk(document.body, { cursor: '', pre: false }, 0);
    end();
    numbered = found;
    return { url: location.href, title: squeeze(document.title), lines, elements: found.length, cut: stopped, status };
  }

  globalThis.palaestra = { render, numbered: () => numbered, squeeze, cut, tag, is, named, PRESSED };
})();
