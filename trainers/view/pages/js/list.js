// The left side: search, filters, and the list of groups, of which only those in sight are drawn.

const filters = { text: "", found: null, ending: "", status: "", env: "", step: "", judged: "", low: "", high: "", sort: "step" };
const ROW = 54;
let shownGroups = [];

function passes(episode) {
  if (filters.found && !filters.found.has(episode.index)) return false;
  if (filters.ending && episode.ending !== filters.ending) return false;
  if (filters.status && !episode.statuses.includes(filters.status)) return false;
  if (filters.env && episode.env !== filters.env) return false;
  if (filters.step && episode.stage !== filters.step) return false;
  if (filters.judged && episode.contradicts !== filters.judged) return false;
  if (filters.low !== "" && !(episode.reward !== null && episode.reward >= Number(filters.low))) return false;
  if (filters.high !== "" && !(episode.reward !== null && episode.reward <= Number(filters.high))) return false;
  return true;
}

function isFiltered() {
  return Boolean(filters.found || filters.ending || filters.status || filters.env || filters.step || filters.judged
    || filters.low !== "" || filters.high !== "");
}

function meanReward(group) {
  return mean(group.members.map((member) => member.reward).filter((value) => value !== null));
}

function spread(group) {
  const values = group.members.map((member) => member.train).filter((value) => value !== null);
  return values.length ? Math.max(...values) - Math.min(...values) : 0;
}

const SORTS = new Map([
  ["step", ["by step", null]],
  ["latest", ["latest first", (a, b) => b.order - a.order]],
  ["lowest", ["lowest reward", (a, b) => (meanReward(a) ?? -Infinity) - (meanReward(b) ?? -Infinity)]],
  ["spread", ["widest spread", (a, b) => spread(b) - spread(a)]],
  ["longest", ["longest", (a, b) => Math.max(...b.members.map((m) => m.tokens)) - Math.max(...a.members.map((m) => m.tokens))]],
]);

const box = {
  search: h("input.search", { type: "search", placeholder: "search all text  ( / )", "aria-label": "search all text" }),
  progress: h("div.faint.progress", { "aria-live": "polite" }),
  scroller: h("div.scroller", { tabindex: "0", role: "list", "aria-label": "groups" }),
  inner: h("div.inner"),
  filters: h("details.filters"),
};

function side() {
  box.search.addEventListener("input", () => later(box.search.value.trim()));
  box.scroller.addEventListener("scroll", () => requestAnimationFrame(drawRows), { passive: true });
  new ResizeObserver(drawRows).observe(box.scroller);
  box.scroller.append(box.inner);
  return h("nav.side", null, box.search, box.filters, box.progress, box.scroller);
}

let pause = 0;
let asked = 0;

function later(text) {
  clearTimeout(pause);
  pause = setTimeout(() => find(text), 200);
}

async function find(text) {
  const mine = ++asked; // A newer question ends this one.
  filters.text = text;
  filters.found = null;
  if (text) {
    filters.found = new Set();
    try {
      for await (const [found, share] of search(text)) {
        if (mine !== asked) return;
        filters.found = found;
        refilter(share < 1 ? `searching, ${Math.round(100 * share)} %` : "");
      }
    } catch (error) {
      refilter(`the search failed: ${error.message}`);
      return;
    }
  }
  refilter("");
}

function choices(values, key, all) {
  const options = [...values].map((value) => h("option", { value, selected: filters[key] === value }, spelled(cut(value, 60))));
  return h("select", {
    "aria-label": all,
    change: (event) => {
      filters[key] = event.target.value;
      refilter("");
    },
  }, h("option", { value: "" }, all), options);
}

function limit(key, hint) {
  return h("input.number", {
    type: "number", step: "any", placeholder: hint, value: filters[key], "aria-label": `reward ${hint}`,
    input: (event) => {
      filters[key] = event.target.value;
      refilter("");
    },
  });
}

function drawFilters() {
  const all = store.episodes;
  const values = (of) => new Set(all.flatMap(of));
  const envs = values((episode) => [episode.env]);
  const contradicted = values((episode) => (episode.contradicts ? [episode.contradicts] : []));
  const clear = h("button.plain", {
    click: () => {
      Object.assign(filters, { text: "", found: null, ending: "", status: "", env: "", step: "", judged: "", low: "", high: "" });
      box.search.value = "";
      drawFilters();
      refilter("");
    },
  }, "clear all");
  const sorting = h("select", {
    "aria-label": "order",
    change: (event) => {
      filters.sort = event.target.value;
      refilter("");
    },
  }, [...SORTS].map(([name, [text]]) => h("option", { value: name, selected: filters.sort === name }, text)));
  box.filters.replaceChildren(
    h("summary", null, "Filter and order"),
    h("div.choices", null,
      choices(values((episode) => [episode.ending]), "ending", "any ending"),
      choices(values((episode) => episode.statuses), "status", "any call status"),
      choices(new Set(store.groups.map((group) => group.stage)), "step", "any step"),
      contradicted.size ? choices(contradicted, "judged", "any score of the judge") : null,
      envs.size > 1 ? choices(envs, "env", "any environment") : null,
      h("span.range", null, "reward", limit("low", "from"), limit("high", "to")),
      sorting, clear),
  );
}

function refilter(said) {
  const [, order] = SORTS.get(filters.sort);
  shownGroups = isFiltered() ? store.groups.filter((group) => group.members.some(passes)) : store.groups.slice();
  if (order) shownGroups.sort(order);
  const matching = isFiltered() ? store.episodes.filter(passes).length : store.episodes.length;
  box.progress.textContent = said || (isFiltered()
    ? `${count(shownGroups.length)} of ${plural(store.groups.length, "group")}, ${plural(matching, "episode")}`
    : `${plural(store.groups.length, "group")}, ${plural(matching, "episode")}`);
  box.inner.replaceChildren();
  box.inner.style.height = `${shownGroups.length * ROW}px`;
  drawRows();
}

function cell(episode, most) {
  const advantage = episode.advantage;
  const tone = episode.reward === null ? "broken" : advantage === null ? "none" : advantage > 0 ? "up" : advantage < 0 ? "down" : "flat";
  const mark = h(`i.cell.${tone}`, null);
  const share = advantage === null ? Math.max(0, Math.min(1, episode.reward ?? 0)) : Math.abs(advantage) / most;
  mark.style.setProperty("--share", `${Math.round(25 + 75 * Math.min(1, share))}%`);
  if (isFiltered() && !passes(episode)) mark.classList.add("out");
  return mark;
}

function drawRows() {
  const here = route();
  const first = Math.max(0, Math.floor(box.scroller.scrollTop / ROW) - 8);
  const last = Math.min(shownGroups.length, first + Math.ceil(box.scroller.clientHeight / ROW) + 16);
  const rows = [];
  for (let i = first; i < last; i++) {
    const group = shownGroups[i];
    const one = group.members[0];
    const most = Math.max(1e-9, ...group.members.map((member) => Math.abs(member.advantage ?? 0)));
    const label = one.step === null ? group.stage : `step ${group.stage}`;
    const cells = group.members.slice(0, 24).map((member) => cell(member, most));
    const row = h(`div.row${group === here.of ? ".chosen" : ""}`, { role: "listitem", click: () => go(toGroup(group)) },
      h("div.top", null, h("span.label", null, inline(label, 40)), h("span.faint", null, `group ${group.group}`),
        h("span.cells", null, cells), h("span.value", null, fixed(meanReward(group)))),
      h("div.prompt", null, inline(one.prompt, 120)));
    row.style.top = `${i * ROW}px`;
    rows.push(row);
  }
  box.inner.replaceChildren(...rows);
}

// Bring the chosen group into sight.
function reveal(group) {
  const at = shownGroups.indexOf(group);
  if (at < 0) return;
  const [top, height] = [at * ROW, box.scroller.clientHeight];
  if (top < box.scroller.scrollTop || top + ROW > box.scroller.scrollTop + height) box.scroller.scrollTop = top - (height - ROW) / 2;
}
