// The frame around the views, the keys, and asking a server for what is new.

const frame = { title: h("b.title"), counts: h("span.faint"), live: h("span.live"), defects: h("div.defects"), main: h("main", { tabindex: "-1" }) };
const HELP = [
  ["j  k", "next, previous episode"], ["n  p", "next, previous group"], ["t", "tokens and back"],
  ["d", "compare with the furthest of the group"], ["g", "the group"], ["c", "the curves"],
  ["/", "search all text"], ["Esc", "leave the search, close this"], ["?", "this help"],
];
const help = h("dialog.help", null, h("h2", null, "Keys"),
  h("table", null, h("tbody", null, HELP.map(([key, text]) => h("tr", null, h("td", null, key.split("  ").map((one) => [h("kbd", null, one), " "])), h("td", null, text))))),
  h("button", { click: () => help.close() }, "close"));

function build() {
  document.getElementById("app").replaceChildren(
    h("header", null, h("button.plain.home", { click: () => go({}), title: "the curves (key c)" }, frame.title), frame.counts, frame.live,
      h("span.grow"), h("button.plain", { click: () => go({}) }, "curves"), h("button.plain", { click: () => help.showModal(), title: "keys" }, "?")),
    frame.defects, h("div.frame", null, side(), frame.main), help);
}

function refreshFrame() {
  document.title = `${spelled(cut(store.name, 80))} · palaestra view`;
  frame.title.replaceChildren(inline(store.name, 60));
  document.body.classList.toggle("comparing", Boolean(store.runs));
  frame.counts.textContent = store.runs ? "" : [
    store.metrics.size ? plural(store.metrics.size, "step") : null, plural(store.episodes.length, "episode"),
  ].filter(Boolean).join(", ");
  frame.defects.replaceChildren(...(store.defects.length ? [defectBanner()] : []));
  if (!box.filters.contains(document.activeElement)) drawFilters(); // Nobody is interrupted while choosing.
  refilter("");
}

function defectBanner() {
  const line = ({ file, line: number, reason }) => h("li", null, h("b", null, inline(file, 200)), number === null ? "" : `, line ${count(number)}`, ": ", inline(reason, 400));
  const all = store.defects;
  return h("details.banner", { open: all.length <= 3 },
    h("summary", null, `${plural(all.length, "line")} could not be read; everything else is shown`),
    h("ul", null, all.slice(0, 200).map(line), all.length > 200 ? h("li", null, `and ${count(all.length - 200)} more`) : null));
}

let drawing = 0;

async function draw() {
  const mine = ++drawing;
  const here = route();
  drawRows();
  if (here.of) reveal(here.of);
  let view;
  try {
    if (here.step !== null && !here.of) view = missing("This address names a group that is not here.");
    else if (!here.of) view = store.runs ? compareView(here) : curvesView(here);
    else if (here.episode === null) view = groupView(here.of);
    else if (!here.chosen) view = missing("This address names an episode that is not here.");
    else if (here.view === "diff" && here.of.members.length > 1) view = await diffView(here);
    else {
      const content = await contentOf(here.chosen.index);
      view = here.view === "tokens" ? tokensView(here, content) : episodeView(here, content);
    }
  } catch (error) {
    view = missing(`This could not be shown: ${error.message}`);
  }
  if (mine !== drawing) return;
  frame.main.replaceChildren(view);
  frame.main.scrollTop = 0;
  if (here.view !== "tokens" && here.turn !== null) document.getElementById(`turn-${here.turn}`)?.scrollIntoView({ block: "start" });
  document.body.dataset.ready = location.hash || "#";
}

function missing(text) {
  return h("section.view", null, note_(text));
}

// -- keys ----------------------------------------------------------------------------------------------------------

function walkEpisodes(by) {
  const here = route();
  const list = shownGroups.flatMap((group) => (isFiltered() ? group.members.filter(passes) : group.members));
  const at = here.chosen ? list.indexOf(here.chosen) : here.of ? list.findIndex((one) => one.stage === here.of.stage && one.group === here.of.group) - (by > 0 ? 1 : 0) : -1;
  const next = list[Math.max(0, Math.min(list.length - 1, at + by))];
  if (next && next !== here.chosen) go(toEpisode(next, here.view === "tokens" && next.tokens ? "tokens" : null));
}

function walkGroups(by) {
  const at = shownGroups.indexOf(route().of);
  const next = shownGroups[at < 0 ? 0 : Math.max(0, Math.min(shownGroups.length - 1, at + by))];
  if (next) go(toGroup(next));
}

const ACTIONS = new Map([
  ["j", () => walkEpisodes(1)], ["k", () => walkEpisodes(-1)], ["n", () => walkGroups(1)], ["p", () => walkGroups(-1)],
  ["t", () => {
    const { chosen, view, turn } = route();
    if (chosen) go({ ...toEpisode(chosen, view === "tokens" ? null : "tokens"), turn });
  }],
  ["d", () => {
    const { chosen, of } = route();
    if (chosen && of.members.length > 1) go({ ...toEpisode(chosen, "diff"), with: partner(chosen, of).ordinal });
  }],
  ["g", () => route().of && go(toGroup(route().of))], ["c", () => go({})],
  ["/", () => box.search.focus()], ["?", () => help.showModal()],
]);

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || !ACTIONS.has(event.key)) return;
  event.preventDefault();
  ACTIONS.get(event.key)();
}

// -- what is new ---------------------------------------------------------------------------------------------------

async function follow() {
  let wait = 0;
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    try {
      const known = { generation: store.generation ?? "", ...store.counts };
      const reply = await fetch(`state?${new URLSearchParams(known)}`);
      if (!reply.ok) throw new Error(await reply.text());
      const state = await reply.json();
      const [before, damaged] = [store.generation, store.defects.length];
      const here = route();
      const members = here.of?.members.length;
      const fresh = ingest(state);
      if (fresh || before !== store.generation || damaged !== store.defects.length || !before) {
        refreshFrame();
        const drawn = document.body.dataset.ready;
        if (!drawn || before !== store.generation || (here.step === null) || (here.episode === null && route().of?.members.length !== members)) draw();
      }
      frame.live.textContent = state.more ? "reading" : "live";
      frame.live.classList.remove("lost");
      wait = state.more ? 0 : 1500;
    } catch {
      frame.live.textContent = "the server does not answer";
      frame.live.classList.add("lost");
      wait = 4000;
    }
  }
}

build();
addEventListener("hashchange", () => wasSilent() || draw());
addEventListener("keydown", pressed);
const given = JSON.parse(document.getElementById("state").textContent);
if (given) {
  ingest(given);
  refreshFrame();
  draw();
} else {
  follow();
}
