// One task of one step: every rollout in a table, and their turns side by side.

const order = { column: "#", down: false };
let marked = [];

function columnsOf(group) {
  const names = (key) => [...new Set(group.members.flatMap((member) => member[key].map(([name]) => name)))];
  const of = (key, name) => (member) => member[key].find(([one]) => one === name)?.[1] ?? null;
  const some = (has) => group.members.some(has);
  const parts = names("parts");
  return [
    ["#", (m) => m.ordinal, (m) => String(m.ordinal), "which rollout of the group"],
    ["reward", (m) => m.reward, (m) => fixed(m.reward), "the environment's reward"],
    some((m) => m.terms.length) && ["training", (m) => m.train, (m) => signed(m.train), "the training reward: the sum of its terms"],
    some((m) => m.advantage !== null) && ["advantage", (m) => m.advantage, advantageBar, "how much better than its group"],
    some((m) => m.attempt > 1) && ["attempt", (m) => m.attempt, (m) => String(m.attempt), "2 has read a critique of a first attempt"],
    some((m) => m.score !== null) && ["score", (m) => m.score, (m) => (m.contradicts ? h("span.bad", { title: m.contradicts }, fixed(m.score)) : fixed(m.score)), "what a judge gave it"],
    ["tokens", (m) => m.sampled, (m) => count(m.sampled), "tokens that the agent sampled"],
    ["turns", (m) => m.turns, (m) => String(m.turns), "turns of the agent"],
    ["calls", (m) => m.calls, (m) => String(m.calls), "tool calls"],
    ["failed", (m) => m.failed, (m) => h(m.failed ? "span.bad" : "span.faint", null, String(m.failed)), "calls that were malformed, or failed"],
    ["ending", (m) => m.ending, (m) => badge(m.ending), "why it is over", "left"],
    ["answer", (m) => m.answer ?? "", (m) => (m.answer === null ? h("span.faint", null, "none") : inline(m.answer, 60)), "what it answered", "left"],
    ...(parts.length > 1 ? parts : []).map((name) => [name, of("parts", name), (m) => fixed(of("parts", name)(m)), "a part of the environment's reward"]),
    ...names("terms").map((name) => [name, of("terms", name), (m) => signed(of("terms", name)(m)), "a term of the training reward"]),
    ["seconds", (m) => m.seconds, (m) => fixed(m.seconds), "wall time"],
  ].filter(Boolean);
}

function badge(text) {
  const tone = { answered: "good", ok: "good", broken: "bad", bad_call: "bad", tool_error: "warn" }[text] ?? "warn";
  return h(`span.badge.${tone}`, null, spelled(text).replace("_", " "));
}

function advantageBar(member) {
  const value = member.advantage;
  if (value === null) return "–";
  const group = groupOf(member.stage, member.group);
  const most = Math.max(1e-9, ...group.members.map((one) => Math.abs(one.advantage ?? 0)));
  const bar = h(`span.bar.${value < 0 ? "down" : "up"}`, null);
  bar.style.setProperty("--share", `${(50 * Math.abs(value)) / most}%`);
  return h("span.advantage", null, h("span.track", null, bar), h("span.figure", null, signed(value)));
}

function sorted(group) {
  const column = columnsOf(group).find(([name]) => name === order.column);
  const members = group.members.slice();
  if (!column || (order.column === "#" && !order.down)) return members;
  const [, value] = column;
  const compare = (a, b) => (typeof a === "string" ? (a < b ? -1 : a > b ? 1 : 0) : (a ?? -Infinity) - (b ?? -Infinity));
  return members.sort((a, b) => (order.down ? -1 : 1) * compare(value(a), value(b)));
}

function groupView(group) {
  const one = group.members[0];
  const members = sorted(group);
  const visibleOnes = isFiltered() ? members.filter(passes) : members;
  const hidden = members.length - visibleOnes.length;
  marked = marked.filter((member) => group.members.includes(member));
  const compare = h("button", {
    click: () => {
      const [a, b] = marked.length === 2 ? marked : furthest(group);
      if (a && b) go({ ...toEpisode(a, "diff"), with: b.ordinal });
    },
    disabled: group.members.length < 2,
  }, marked.length === 2 ? `compare #${marked[0].ordinal} and #${marked[1].ordinal}` : "compare best and worst");
  return h("section.view", null,
    h("div.heading", null, h("h1", null, stageName(group), ", group ", String(group.group)),
      h("span.faint", null, inline(one.env, 60)), h("span.grow"), compare),
    h("div.task", null, longText(one.prompt, 2000), h("div.faint", null, "expected ", h("b", null, inline(one.expected)))),
    h("div.summary", null, groupFigures(group), hidden ? `; ${plural(hidden, "rollout")} filtered out` : ""),
    rolloutTable(group, visibleOnes),
    h("h2", null, "Side by side"),
    sideBySide(visibleOnes));
}

function stageName(group) {
  return group.order >= 0 && group.order < Number.MAX_SAFE_INTEGER ? h("span", null, "Step ", inline(group.stage, 60)) : inline(group.stage, 60);
}

function furthest(group) {
  const by = group.members.filter((member) => member.reward !== null).sort((a, b) => a.train - b.train);
  return by.length > 1 ? [by[by.length - 1], by[0]] : group.members.slice(0, 2);
}

// The figures that the advantage was made of.
function groupStatistics(group) {
  const values = group.members.filter((member) => member.reward !== null).map((member) => member.train);
  const middle = mean(values);
  const deviation = values.length > 1 ? Math.sqrt(sum(values.map((value) => (value - middle) ** 2)) / (values.length - 1)) : 0;
  return { count: values.length, mean: middle, deviation, equal: Math.max(...values) === Math.min(...values) };
}

function groupFigures(group) {
  const of = groupStatistics(group);
  if (!of.count) return "no rollout has a reward";
  const text = `${plural(of.count, "scored rollout")}, training reward ${signed(of.mean, 3)} on average, deviation ${fixed(of.deviation, 3)}`;
  if (of.count < 2) return text;
  return of.equal ? `${text}: all are equal, so this group teaches nothing` : text;
}

function rolloutTable(group, members) {
  const columns = columnsOf(group);
  const head = columns.map(([name, , , about, side_]) => h(`th${side_ ? "." + side_ : ""}`, {
    title: spelled(about), "aria-sort": order.column === name ? (order.down ? "descending" : "ascending") : "none",
  }, h("button.plain", {
    click: () => {
      order.down = order.column === name ? !order.down : name !== "#"; // The largest first, but the first rollout first.
      order.column = name;
      draw();
    },
  }, inline(name, 24), order.column === name ? (order.down ? " ↓" : " ↑") : "")));
  const rows = members.map((member) => {
    const pick = h("input", {
      type: "checkbox", checked: marked.includes(member), "aria-label": `compare rollout ${member.ordinal}`,
      click: (event) => {
        event.stopPropagation();
        marked = marked.includes(member) ? marked.filter((other) => other !== member) : [...marked, member].slice(-2);
        draw();
      },
    });
    return h("tr", { click: () => go(toEpisode(member)), "data-episode": member.ordinal },
      h("td", null, pick), columns.map(([, , show, , side_]) => h(`td${side_ ? "." + side_ : ""}`, null, show(member))));
  });
  return h("div.wide", null, h("table.rollouts", null, h("thead", null, h("tr", null, h("th"), head)), h("tbody", null, rows)));
}

// Each rollout as a narrow column; its content is read when the column comes into sight.
function sideBySide(members) {
  const watch = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      watch.unobserve(target);
      const member = store.episodes[Number(target.dataset.index)];
      contentOf(member.index).then((content) => target.append(...columnTurns(member, content)), (error) => target.append(note_(error.message)));
    }
  }, { rootMargin: "400px" });
  const columns = members.map((member) => {
    const column = h("article.column", { "data-index": member.index },
      h("button.columnhead", { click: () => go(toEpisode(member)) },
        h("b", null, `#${member.ordinal}`), h("span", null, `reward ${fixed(member.reward)}`),
        member.advantage === null ? null : h(`span.${member.advantage < 0 ? "down" : "up"}`, null, signed(member.advantage)), badge(member.ending)));
    watch.observe(column);
    return column;
  });
  return h("div.columns", null, columns);
}

function columnTurns(member, content) {
  const turns = turnsOf(content);
  return turns.map((turn) => h("div.columnturn", { click: () => go({ ...toEpisode(member), turn: turn.number }) },
    h("div.label", null, `turn ${turn.number}`),
    longText(turn.message.text, 600, "div.text.small"),
    turn.calls.map((call) => h("div.outcome", null, h("b", null, inline(call.name, 40)), " ", call.status === "ok" ? null : badge(call.status), longText(call.text, 300, "div.text.small")))));
}
