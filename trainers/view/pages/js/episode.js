// One episode, turn by turn: what was said, what was called with what outcome, and how it was judged.

// The agent's turns with their calls. A call belongs to the turn before its result; results stand in call order.
function turnsOf(content) {
  const turns = [];
  let next = 0;
  content.messages.forEach((message, index) => {
    if (index < content.prefix) return;
    if (message.turn) turns.push({ number: turns.length + 1, message, index, calls: [], after: [] });
    else if (!turns.length) return;
    else if (message.role === "tool" && content.dialogues === 1 && next < content.calls.length) turns[turns.length - 1].calls.push({ ...content.calls[next++], told: message.text });
    else turns[turns.length - 1].after.push(message);
  });
  if (turns.length) turns[turns.length - 1].calls.push(...content.calls.slice(next).map((call) => ({ ...call, told: null })));
  return turns;
}

function episodeHeading(member, group, view) {
  const tab = (name, text, key) => h("button.tab", {
    click: () => go({ ...toEpisode(member, name) }), "aria-current": (view ?? null) === name ? "page" : null, title: `key ${key}`,
  }, text);
  return h("div.heading", null,
    h("h1", null, h("button.crumb", { click: () => go(toGroup(group)) }, stageName(group), `, group ${group.group}`), ` #${member.ordinal}`),
    h("span.faint", null, `of ${group.members.length}`), badge(member.ending),
    h("span.grow"),
    h("div.tabs", null, tab(null, "turns", "t"), member.tokens ? tab("tokens", "tokens", "t") : null,
      group.members.length > 1 ? h("button.tab", { click: () => go({ ...toEpisode(member, "diff"), with: partner(member, group).ordinal }), "aria-current": view === "diff" ? "page" : null, title: "key d" }, "compare") : null));
}

// Whom to compare with: the member whose training reward is furthest away.
function partner(member, group) {
  const others = group.members.filter((other) => other !== member);
  const away = (other) => Math.abs((other.train ?? 0) - (member.train ?? 0));
  return others.reduce((a, b) => (away(b) > away(a) ? b : a));
}

function episodeView(here, content) {
  const member = here.chosen;
  const turns = turnsOf(content);
  const blocks = content.messages.slice(0, content.prefix).map((message) => messageBlock(message));
  if (content.earlier) {
    blocks.splice(content.prefix - content.earlier, 0, attemptMark("first attempt", "with its critique: what this agent has read, and is never trained on"));
    blocks.push(attemptMark("second attempt", "what is judged and learned from"));
  }
  for (const turn of turns) blocks.push(turnBlock(turn, member));
  if (content.fault) blocks.push(h("div.message.fault", null, h("div.role", null, "fault"), longText(content.fault)));
  blocks.push(h("div.message.end", null, h("div.role", null, "ending"),
    h("div.body", null, badge(member.ending), " ", content.answer === null ? h("span.faint", null, "no answer") : h("span.mono", null, inline(content.answer, 300)))));
  return h("section.view.episode", null, episodeHeading(member, here.of, null),
    h("div.split", null, h("div.turns", null, blocks), h("aside", null, judgement(member, here.of), verdict(member, content), facts(member, content))));
}

function attemptMark(name, text) {
  return h("div.message.end", null, h("div.role", null, name), h("div.body", null, h("span.faint", null, text)));
}

function messageBlock(message) {
  const others = message.others.length ? h("details", null, h("summary", null, "further fields"), pairTable(message.others)) : null;
  return h(`div.message.${["system", "user", "assistant", "tool"].includes(message.role) ? message.role : "other"}`, null,
    h("div.role", null, inline(message.role, 20), message.name ? h("div.name", null, inline(message.name, 40)) : null),
    h("div.body", null, longText(message.text), others));
}

function turnBlock(turn, member) {
  const label = h("button.plain.turnmark", { click: () => note({ ...toEpisode(member), turn: turn.number }), title: "an address of this turn" }, `turn ${turn.number}`);
  const others = turn.message.others.length ? h("details", null, h("summary", null, "further fields"), pairTable(turn.message.others)) : null;
  return h("div.turn", { id: `turn-${turn.number}` },
    h("div.message.assistant", null, h("div.role", null, "agent", label), h("div.body", null, longText(turn.message.text), others)),
    turn.calls.map(callBlock), turn.after.map(messageBlock));
}

function callBlock(call) {
  const shown = call.told ?? call.text;
  return h(`div.message.tool${call.status === "ok" ? "" : ".failed"}`, null,
    h("div.role", null, "call"),
    h("div.body", null,
      h("div.callhead", null, h("b.mono", null, inline(call.name || "(no name)", 60)), badge(call.status), h("span.faint.seconds", null, `${fixed(call.seconds, 3)} s`)),
      call.arguments.length ? h("div.arguments", null, call.arguments.map(([name, text]) => [h("div.key", null, inline(name, 60)), longText(text, 4000, "div.text.small")])) : null,
      h("div.outcome", null, longText(shown)),
      call.told !== null && call.told !== call.text ? h("details", null, h("summary", null, "the whole result, of which the agent was shown the above"), longText(call.text)) : null));
}

// Why this reward, and why this advantage: the sum, and the comparison with the group, worked out again here.
function judgement(member, group) {
  const rows = [["the environment's reward", fixed(member.reward, 3), "total"]];
  for (const [name, value] of member.parts) rows.push([inline(name, 40), fixed(value, 3), "part"]);
  if (member.terms.length) {
    rows.push(["training reward", signed(member.train, 3), "total"]);
    for (const [name, value] of member.terms) rows.push([inline(name, 40), signed(value, 3), "part"]);
  }
  const lines = rows.map(([name, value, kind]) => h(`tr.${kind}`, null, h("td", null, name), h("td", null, value)));
  return h("div.card.judge", null, h("h2", null, "Why this reward"), h("table.sums", null, h("tbody", null, lines)), advantageWorked(member, group));
}

// What a judge said of the whole episode: its score, its critique, its analysis.
function verdict(member, content) {
  if (!content.remarks.length) return null;
  return h("div.card", null, h("h2", null, "What the judge said"),
    member.contradicts ? h("p.warning", null, inline(member.contradicts, 40)) : null,
    content.remarks.map(([name, text]) => (name === "analysis"
      ? h("details", null, h("summary", null, "analysis"), longText(text))
      : [h("div.key", null, inline(name, 40)), longText(text)])));
}

function advantageWorked(member, group) {
  if (member.reward === null) return h("p", null, "Broken: the infrastructure failed, so it has no reward and is never trained on.");
  if (member.advantage === null) return h("p.faint", null, "No advantage: this episode was not trained on.");
  const of = groupStatistics(group);
  const expected = of.equal ? 0 : (member.train - of.mean) / (of.deviation + 1e-6);
  const same = Math.abs(expected - member.advantage) <= 1e-3 * Math.max(1, Math.abs(expected));
  const others = group.members.map((other) => h(`button.peer${other === member ? ".self" : ""}`, {
    click: () => go(toEpisode(other, route().view === "tokens" ? "tokens" : null)), title: `rollout ${other.ordinal}`,
  }, signed(other.reward === null ? null : other.train, 2)));
  return h("div.worked", null,
    h("div.sum", null, h("span", null, "advantage"), h(`b.${member.advantage < 0 ? "down" : "up"}`, null, signed(member.advantage, 3))),
    h("div.formula", null, "from the training rewards of its group"), h("div.peers", null, others),
    of.equal
      ? h("p", null, "All training rewards of the group are equal: nothing to compare, advantage 0.")
      : h("p.formula", null, `(${signed(member.train, 3)} − mean ${signed(of.mean, 3)}) / deviation ${fixed(of.deviation, 3)} = ${signed(expected, 3)}`),
    same ? null : h("p.warning", null, `The recorded advantage is not that of this formula over the ${plural(of.count, "rollout")} here: the run used another formula, or more rollouts than were recorded.`));
}

function facts(member, content) {
  const rows = [
    ["expected", content.expected], ["task", content.task_id.endsWith(String(member.task)) ? content.task_id : `${content.task_id} (index ${member.task})`.trim()], ["environment", member.env],
    ["agent", member.agent || "–"], ["synthetic", member.synthetic ? "calls were put into a written solution, and made" : ""], ["seed", member.seed], ["seat", member.seat ?? ""],
    ["weights", member.versions.length ? (member.versions[0] === member.versions[1] ? `version ${member.versions[0]}` : `versions ${member.versions.join(" to ")}`) : ""],
    ["tokens", member.tokens ? `${count(member.sampled)} sampled of ${count(member.tokens)}, ${plural(content.rows.length, "row")}` : "none recorded"],
    ["refused", content.refused ? `${plural(content.refused, "request")} too long for the model` : ""],
    ["seconds", fixed(member.seconds, 3)], ["file", `${member.file}, line ${count(member.line)}`],
  ].filter(([, text]) => text !== "");
  const world = [["task data", content.data], ["environment options", content.options]].filter(([, values]) => values.length);
  return [
    h("div.card", null, h("h2", null, "Facts"), h("div.pairs.facts", null, rows.map(([name, text]) => [h("div.key", null, name), h("div", null, inline(text, 300))]))),
    world.map(([title, values]) => h("details.card", { open: title !== "task data" || undefined }, h("summary", null, title), pairTable(values))),
    content.tools.length ? h("details.card", null, h("summary", null, plural(content.tools.length, "tool")),
      content.tools.map(([name, about, schema]) => h("div.tooldoc", null, h("b.mono", null, inline(name, 60)), longText(about, 1000, "div.text.small"), longText(schema, 1000, "div.text.small.faint")))) : null,
  ];
}
