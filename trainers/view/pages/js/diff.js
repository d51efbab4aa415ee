// Two rollouts of a group from where they part: the first turn and the first token that differ.

async function diffView(here) {
  const group = here.of;
  const one = here.chosen;
  const other = group.members.find((member) => member.ordinal === here.with) ?? partner(one, group);
  const contents = [await contentOf(one.index), await contentOf(other.index)];
  const [a, b] = contents.map((content) => content.messages);
  let same = 0;
  while (same < a.length && same < b.length && a[same].role === b[same].role && a[same].text === b[same].text) same += 1;
  const identical = same === a.length && same === b.length;
  const choose = (key) => h("select", {
    "aria-label": key === "episode" ? "left rollout" : "right rollout",
    change: (event) => go({ step: group.stage, group: group.group, view: "diff", episode: one.ordinal, with: other.ordinal, [key]: Number(event.target.value) }),
  }, group.members.map((member) => h("option", { value: member.ordinal, selected: member === (key === "episode" ? one : other) }, `#${member.ordinal}   ${signed(member.train)}   ${spelled(member.ending)}`)));
  const head = (member, key) => h("div.diffhead", null, choose(key), h("span.faint", null, "reward"), h("b", null, fixed(member.reward)),
    member.advantage === null ? null : [h("span.faint", null, "advantage"), h(`b.${member.advantage < 0 ? "down" : "up"}`, null, signed(member.advantage))]);
  return h("section.view.diff", null, episodeHeading(one, group, "diff"),
    h("p.summary", null, identical ? "Every message is the same." : sameWords(contents[0], a, same)),
    h("div.pair", null, head(one, "episode"), head(other, "with")),
    identical ? null : pairedMessages(a, b, same),
    h("h2", null, "Tokens where they part"),
    tokenDiff([one, other], contents));
}

function sameWords(content, messages, same) {
  const turn = messages.slice(content.prefix, same).filter((message) => message.turn).length + 1;
  const before = same ? `The first ${plural(same, "message")} are the same; ` : "";
  return `${before}they part at message ${same + 1}, turn ${turn} of the agent.`;
}

function pairedMessages(a, b, same) {
  const rows = [];
  for (let i = same; i < Math.max(a.length, b.length); i++) {
    const [left, right] = [a[i]?.text ?? "", b[i]?.text ?? ""];
    let until = 0;
    if (i === same) while (until < left.length && until < right.length && left[until] === right[until]) until += 1;
    rows.push(diffMessage(a[i], until, i === same, i === a.length), diffMessage(b[i], until, i === same, i === b.length));
  }
  return h("div.pair", null, rows);
}

function diffMessage(message, until, first, ended) {
  if (!message) return h("div.diffmessage.absent", null, ended ? "(it had ended)" : "");
  const same = first ? cut(message.text, until) : "";
  const rest = message.text.slice(same.length);
  const apart = first ? cut(rest.split("\n", 1)[0], 60) : ""; // Marking all that follows would say nothing.
  const after = rest.slice(apart.length);
  return h(`div.diffmessage.${message.role === "assistant" ? "assistant" : "other"}`, null,
    h("div.role", null, inline(message.role === "assistant" ? "agent" : message.role, 20), message.name ? ` ${spelled(cut(message.name, 40))}` : ""),
    same ? longText(same, 4000, "span.text.same") : null,
    first ? h("span.text.parts", null, apart ? visible(apart) : rest ? "⏎" : "(ends)") : null,
    after || !first ? longText(after, 6000, first ? "span.text" : "div.text") : null);
}

function tokenDiff(members, contents) {
  const rows = contents.map((content) => content.rows.map(decodeRow));
  if (!rows[0].length || !rows[1].length) return note_("At least one of them has no recorded tokens.");
  for (let i = 0; i < Math.min(rows[0].length, rows[1].length); i++) {
    const [a, b] = [rows[0][i], rows[1][i]];
    let at = 0;
    while (at < a.ids.length && at < b.ids.length && a.ids[at] === b.ids[at]) at += 1;
    if (at < a.ids.length || at < b.ids.length) return tokenWindows(members, contents, [a, b], i, at);
  }
  return note_(rows[0].length === rows[1].length ? "Every token is the same." : "Every token of the rows that both have is the same; one has more rows.");
}

function tokenWindows(members, contents, rows, index, at) {
  const windows = rows.map((row, side_) => {
    const paint = { row, member: members[side_], content: contents[side_], scale: ALLOWED_GAP };
    const node = h("div.tokentext.window", { dir: "ltr" });
    for (let i = Math.max(0, at - 24); i < Math.min(row.ids.length, at + 72); i++) {
      const token = tokenNode(paint, i);
      if (i === at) token.classList.add("pinned");
      token.title = tokenTitle(row, i, members[side_], contents[side_].updates);
      node.append(token);
    }
    if (at >= row.ids.length) node.append(h("span.faint", null, "(it had ended)"));
    const open = h("button", { click: () => go({ ...toEpisode(members[side_], "tokens"), row: index, token: Math.min(at, row.ids.length - 1) }) }, "open there");
    return h("div", null, node, open);
  });
  const chosen = rows.map((row) => (at < row.ids.length ? `${row.sampled[at] ? "sampled" : "context"}, log-prob ${fixed(row.logprobs[at], 3)}` : "ended"));
  return [h("p.summary", null, `${rows.length && index ? `In row ${index + 1}, the` : "The"} first ${plural(at, "token")} are the same; token ${count(at)} is the first that differs (${chosen[0]} against ${chosen[1]}).`), h("div.pair", null, windows)];
}
