// The tokens of an episode as figures: how each is coloured, what is odd about them. Drawing is in token_view.js.

const COLOURS = new Map([
  ["logprob", "log-prob"], ["gap", "gap to the trainer"], ["advantage", "advantage"], ["version", "weights"], ["mask", "mask only"],
]);
const ALLOWED_GAP = 1e-3;

// Colour of a token as [class, strength 0..1], or null where it has none.
function shade(row, at, by, member, scale) {
  if (!row.sampled[at]) return null;
  if (by === "logprob") {
    const value = row.logprobs[at];
    return Number.isNaN(value) ? ["odd", 1] : ["surprise", Math.min(1, -value / 5)];
  }
  if (by === "gap") {
    if (!row.said) return null;
    const value = row.logprobs[at] - row.said[at];
    return Number.isNaN(value) ? ["odd", 1] : [value > 0 ? "up" : "down", Math.min(1, Math.abs(value) / scale)];
  }
  if (by === "advantage") {
    if (!member.advantage) return null;
    return [member.advantage > 0 ? "up" : "down", Math.min(1, Math.abs(member.advantage) / 2)];
  }
  if (by === "version") return row.versions[at] < 0 ? ["odd", 1] : [`version${row.versions[at] % 6}`, 0.5];
  return null;
}

// One pass over a row: sums, extremes, and tokens that should not be as they are.
function survey(row, updates) {
  const found = {
    sampled: 0, total: 0, lowest: [-1, 0], gap: [-1, 0], gapSum: 0, gaps: 0, versions: new Map(), odd: [],
  };
  const odd = (at, why) => {
    if (found.odd.length < 100) found.odd.push([at, why]);
  };
  for (const [begin, end] of row.spans) {
    for (let at = begin; at < end; at++) {
      const value = row.logprobs[at];
      found.sampled += 1;
      if (Number.isNaN(value)) odd(at, "its log-prob is no number");
      else if (value > 1e-6) odd(at, "its log-prob is above 0");
      else {
        found.total += value;
        if (value < found.lowest[1]) found.lowest = [at, value];
      }
      const version = row.versions[at];
      found.versions.set(version, (found.versions.get(version) ?? 0) + 1);
      if (version < 0) odd(at, "it is sampled, but by no weights");
      if (row.said && !Number.isNaN(value)) {
        const gap = Math.abs(value - row.said[at]);
        if (Number.isNaN(gap)) odd(at, "the trainer's log-prob is no number");
        else {
          found.gapSum += gap;
          found.gaps += 1;
          if (gap > found.gap[1]) found.gap = [at, gap];
          if (updates === 0 && gap > ALLOWED_GAP) odd(at, `engine and trainer differ by ${short(gap)}`);
        }
      }
    }
  }
  return found;
}

// Which sampled span belongs to which turn: the n-th span of all rows is the n-th turn, if there are as many.
function turnsOfSpans(rows, turns) {
  const spans = rows.flatMap((row, index) => row.spans.map(([begin]) => [index, begin]));
  return spans.length === turns.length ? spans : null;
}

function tokenTitle(row, at, member, updates) {
  const id = row.ids[at];
  const text = tokenText(id);
  const lines = [`token ${count(at)}: id ${id}${text === null ? "" : " " + JSON.stringify(spelled(text))}`];
  if (!row.sampled[at]) return [...lines, "context: masked out, never trained on"].join("\n");
  lines.push(`sampled by weights of version ${row.versions[at]}`, `log-prob of the engine   ${fixed(row.logprobs[at], 6)}`);
  if (row.said) {
    lines.push(`log-prob of the trainer  ${fixed(row.said[at], 6)}`);
    lines.push(`gap ${signed(row.logprobs[at] - row.said[at], 6)}${updates ? ` after ${plural(updates, "update")} of this batch: not expected to be 0` : ""}`);
  }
  if (member.advantage !== null) lines.push(`advantage ${signed(member.advantage, 3)}`);
  return lines.join("\n");
}

function gapNote(content) {
  const withSaid = content.rows.some((row) => row.said !== null);
  if (content.updates === null) return "This episode was not trained on, so the trainer never said its log-probs.";
  if (!withSaid) return "The trainer never computed this episode's log-probs: an advantage of 0 has no gradient.";
  if (content.updates === 0) return "Compared before any update of this batch: engine and trainer must agree, and a gap is a fault.";
  return `Compared after ${plural(content.updates, "optimizer step")} of this batch, so a gap is learning and not a fault. Only episodes with 0 updates compare exactly.`;
}
