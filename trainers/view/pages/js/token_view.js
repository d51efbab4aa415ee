// The tokens drawn as running text in pieces; a piece is filled when it comes into sight, so a long row opens at once.

const PIECE_TOKENS = 256;
let colouring = "logprob";

function tokensView(here, content) {
  const member = here.chosen;
  const rows = content.rows.map(decodeRow);
  const row = rows[here.row];
  const heading = episodeHeading(member, here.of, "tokens");
  if (!row) return h("section.view", null, heading, note_("No tokens were recorded: scripts, people and endpoints have none."));
  const found = survey(row, content.updates);
  const scale = content.updates === 0 ? ALLOWED_GAP : Math.max(1e-6, found.gap[1]);
  const paint = { row, member, content, scale };
  const text = tokenText_(paint);
  const jump = (at) => {
    note({ ...toEpisode(member, "tokens"), row: here.row, token: at });
    text.show(at);
  };
  const map = minimap(paint, jump);
  const redraw = () => {
    text.repaint();
    map.repaint();
    legend.replaceChildren(...legendOf(paint));
  };
  const legend = h("div.legend", null, legendOf(paint));
  const colours = h("div.tabs", { role: "group", "aria-label": "colour" }, [...COLOURS].map(([name, label]) => h("button.tab", {
    "aria-current": colouring === name ? "true" : null,
    click: (event) => {
      colouring = name;
      for (const other of colours.children) other.removeAttribute("aria-current");
      event.target.setAttribute("aria-current", "true");
      redraw();
    },
  }, label)));
  const starts = turnsOfSpans(rows, turnsOf(content));
  const goTurn = starts && h("span.jumps", null, "turn ", starts.map(([index, begin], i) => h("button.peer", {
    click: () => (index === here.row ? jump(begin) : go({ ...toEpisode(member, "tokens"), row: index, token: begin })),
  }, String(i + 1))));
  const view = h("section.view.tokens", null, heading,
    h("div.bar", null, h("span.faint", null, "colour by"), colours, rowChoice(rows, here), goTurn),
    legend, figuresOf(found, row, jump), oddities(found, jump), map.node, text.node);
  queueMicrotask(() => requestAnimationFrame(() => {
    map.repaint();
    if (here.token !== null) text.show(here.token);
    else if (here.turn !== null && starts?.[here.turn - 1]?.[0] === here.row) text.show(starts[here.turn - 1][1]);
  }));
  return view;
}

function rowChoice(rows, here) {
  if (rows.length < 2) return null;
  return h("span.jumps", null, "row ", rows.map((row, i) => h("button.peer" + (i === here.row ? ".self" : ""), {
    click: () => go({ ...toEpisode(here.chosen, "tokens"), row: i }), title: plural(row.ids.length, "token"),
  }, String(i + 1))));
}

function figuresOf(found, row, jump) {
  const figure = (name, value, at) => h("span.figure", null, h("span.faint", null, name), " ", at === undefined || at < 0 ? h("b", null, value) : h("button.plain", { click: () => jump(at), title: `go to token ${count(at)}` }, value));
  const versions = [...found.versions].sort((a, b) => a[0] - b[0]);
  return h("div.figures", null,
    figure("tokens", count(row.ids.length)), figure("sampled", count(found.sampled)), figure("spans", count(row.spans.length)),
    figure("mean log-prob", fixed(found.sampled ? found.total / found.sampled : null, 4)),
    figure("lowest", fixed(found.lowest[0] < 0 ? null : found.lowest[1], 3), found.lowest[0]),
    row.said ? [figure("mean gap", short(found.gaps ? found.gapSum / found.gaps : null)), figure("largest gap", short(found.gap[1]), found.gap[0])] : null,
    figure("weights", versions.length > 4 ? `${versions.length} versions` : versions.map(([version, n]) => (versions.length > 1 ? `v${version} (${count(n)})` : `version ${version}`)).join(", ") || "–"));
}

function oddities(found, jump) {
  if (!found.odd.length) return null;
  return h("div.warning", null, `${found.odd.length >= 100 ? "100 or more tokens are" : found.odd.length === 1 ? "1 token is" : found.odd.length + " tokens are"} odd: `,
    found.odd.slice(0, 12).map(([at, why]) => h("button.plain", { click: () => jump(at) }, `${count(at)} (${why}) `)));
}

function legendOf({ content, scale, member }) {
  const sample = (tone, strength, text) => {
    const mark = h(`span.token.sampled.${tone}`, null, text);
    mark.style.setProperty("--strength", strength);
    return mark;
  };
  const parts = [h("span.token.context", null, "context"), " is what the agent read; ", sample("none", 0, "sampled"), " is what it chose and what is trained on. "];
  if (colouring === "logprob") parts.push("Log-prob ", [0, -1, -2.5, -5].map((value) => [sample("surprise", -value / 5, fixed(value, 1)), " "]), "and below.");
  if (colouring === "gap") parts.push(sample("up", 1, `engine higher by ${short(scale)}`), " ", sample("down", 1, "trainer higher"), ". ", gapNote(content));
  if (colouring === "advantage") parts.push(member.advantage === null ? "It has no advantage." : member.advantage === 0 ? "The advantage is 0: nothing is pushed." : [sample(member.advantage > 0 ? "up" : "down", Math.min(1, Math.abs(member.advantage) / 2), signed(member.advantage, 3)), member.advantage > 0 ? " every sampled token is pushed up." : " every sampled token is pushed down."]);
  if (colouring === "version") parts.push("One colour a version of the weights.");
  return parts;
}

function tokenNode(paint, at) {
  const { row } = paint;
  const text = tokenText(row.ids[at]);
  const node = h(row.sampled[at] ? "span.token.sampled" : "span.token.context", null);
  node.dataset.at = at;
  if (text === null) node.append(`${row.ids[at]} `);
  else if (text.includes("\n")) {
    const [first, ...lines] = text.split("\n");
    node.append(...visible(first), ...lines.flatMap((line) => [h("span.newline", null, "⏎"), "\n", ...visible(line)]));
  } else node.append(...visible(text));
  tint(node, paint, at);
  return node;
}

function tint(node, { row, member, scale }, at) {
  const tone = shade(row, at, colouring, member, scale);
  node.className = `token ${row.sampled[at] ? "sampled" : "context"}${tone ? " " + tone[0] : ""}`;
  node.style.setProperty("--strength", tone ? tone[1].toFixed(2) : "0");
}

// A piece ends behind a new line where there is one, so that its end breaks no line. Else the number beside it shows it.
function pieceEnd(row, begin) {
  const most = Math.min(begin + PIECE_TOKENS, row.ids.length);
  if (most === row.ids.length) return most;
  for (let end = most; end > begin + PIECE_TOKENS / 4; end--) if (tokenText(row.ids[end - 1])?.endsWith("\n")) return end;
  return most;
}

// The running text. Pieces out of sight are empty and as tall as they were, or as they will be by a guess.
function tokenText_(paint) {
  const { row, member, content } = paint;
  const node = h("div.tokentext", { dir: "ltr" });
  const pieces = [];
  let pinned = -1;
  for (let begin = 0, end; begin < row.ids.length; begin = end) {
    end = pieceEnd(row, begin);
    const piece = h("div.tokenpiece", { "data-begin": begin, "data-end": end });
    piece.style.minHeight = `${Math.ceil((end - begin) / 14) * 22}px`;
    pieces.push(piece);
  }
  const fillPiece = (piece) => {
    if (piece.childElementCount) return;
    const [begin, end] = [Number(piece.dataset.begin), Number(piece.dataset.end)];
    for (let at = begin; at < end; at++) piece.append(tokenNode(paint, at));
    piece.style.minHeight = "";
    if (pinned >= begin && pinned < end) piece.children[pinned - begin].classList.add("pinned");
  };
  const watch = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target, boundingClientRect } of seen) {
      if (isIntersecting) fillPiece(target);
      else if (target.childElementCount) {
        target.style.minHeight = `${boundingClientRect.height}px`;
        target.replaceChildren();
      }
    }
  }, { rootMargin: "1200px 0px" });
  pieces.forEach((piece) => watch.observe(piece));
  node.append(...pieces);
  node.addEventListener("pointerover", (event) => {
    const token = event.target.closest?.(".token");
    if (token && !token.title) token.title = tokenTitle(row, Number(token.dataset.at), member, content.updates);
  });
  return {
    node,
    repaint: () => node.querySelectorAll(".token").forEach((token) => tint(token, paint, Number(token.dataset.at))),
    show: (at) => {
      const piece = pieces.find((one) => at < Number(one.dataset.end));
      if (!piece) return;
      fillPiece(piece);
      pinned = at;
      node.querySelector(".pinned")?.classList.remove("pinned");
      const token = piece.children[at - Number(piece.dataset.begin)];
      token.classList.add("pinned");
      token.scrollIntoView({ block: "center" });
    },
  };
}

// The whole row as a strip: the mask below, the colouring above. A wrong mask is seen before it is read.
function minimap(paint, jump) {
  const { row, member, scale } = paint;
  const node = h("canvas.minimap", { height: 28, title: "the whole row: mask below, colour above; click to go there" });
  const repaint = () => {
    const width = (node.width = Math.max(100, node.clientWidth) * (window.devicePixelRatio || 1));
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--tone-${name}`).trim();
    const drawing = node.getContext("2d");
    const tones = new Map();
    const [mask, rest] = [colour("sampled"), colour("context")];
    for (let x = 0; x < width; x++) {
      const begin = Math.floor((x * row.ids.length) / width);
      const end = Math.max(begin + 1, Math.floor(((x + 1) * row.ids.length) / width));
      let [best, sampled] = [null, 0];
      for (let at = begin; at < end; at++) {
        sampled += row.sampled[at];
        const tone = shade(row, at, colouring, member, scale);
        if (tone && (!best || tone[1] > best[1])) best = tone;
      }
      drawing.globalAlpha = 1;
      drawing.fillStyle = rest;
      drawing.fillRect(x, 20, 1, 8);
      drawing.globalAlpha = sampled / (end - begin);
      drawing.fillStyle = mask;
      drawing.fillRect(x, 20, 1, 8);
      if (!best) continue;
      if (!tones.has(best[0])) tones.set(best[0], colour(best[0]));
      drawing.globalAlpha = 0.15 + 0.85 * best[1];
      drawing.fillStyle = tones.get(best[0]);
      drawing.fillRect(x, 0, 1, 18);
    }
  };
  node.addEventListener("click", (event) => {
    const bounds = node.getBoundingClientRect();
    jump(Math.min(row.ids.length - 1, Math.floor(((event.clientX - bounds.left) / bounds.width) * row.ids.length)));
  });
  return { node, repaint };
}
