// The run as a whole: one small drawing a metric, all with the same steps; hovering one reads all.

const FIRST_CHOSEN = [
  "rewards/success/mean", HELD_OUT, "reward", "reward_std", "judge/score", "judge/correlation", "frac_reward_zero_std", "entropy", "completions/mean_length",
  "episodes/turns", "tools/call_frequency", "tools/failure_frequency", "loss", "kl", "grad_norm", "clip_ratio/region_mean",
  "sampling/sampling_logp_difference/max", "learning_rate", "step_time",
];
const HEIGHT = 96;
const ROOM = { left: 44, right: 8, top: 8, bottom: 18 };
let charts = [];

function chosenMetrics(here, names) {
  const known = new Set(names);
  if (here.metric.length) return here.metric.filter((name) => known.has(name));
  const usual = FIRST_CHOSEN.filter((name) => known.has(name));
  return usual.length ? usual : names.slice(0, 12);
}

function curvesView(here) {
  if (!store.metrics.size) {
    return h("section.view", null, h("h1", null, inline(store.name)), note_("There are no metrics here, so no curves: choose a group on the left."), heldOut([store]), settingsCard());
  }
  return h("section.view.curves", null,
    h("div.heading", null, h("h1", null, "Curves"), h("span.faint", null, `${plural(store.metrics.size, "step")}; point at a step to read it everywhere, click to see its groups`)),
    heldOut([store]), curvesOf(here, [store], store.metricNames), settingsCard());
}

// A drawing a metric, with a line a run, and the choice among the metrics.
function curvesOf(here, runs, names) {
  const chosen = chosenMetrics(here, names);
  const toggle = (name) => go({ metric: chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name] });
  const chips = names.map((name) => h("button.chip", {
    click: () => toggle(name), "aria-pressed": chosen.includes(name),
  }, inline(name, 60)));
  const all = h("button.plain", { click: () => go({ metric: names }) }, "all");
  const usual = h("button.plain", { click: () => go({}) }, "the usual");
  charts = chosen.map((name) => chart(name, runs));
  return [h("div.charts", null, charts.map((one) => one.node)),
    h("details.metrics", null, h("summary", null, `Metrics: ${chosen.length} of ${names.length} shown`), h("div.chips", null, chips, all, usual))];
}

// Success with its 95 % interval, before, on the way where it is the best, and after.
function heldOut(runs) {
  if (!runs.some((run) => run.measured.length)) return null;
  const figure = (interval) => (interval ? [h("b", null, fixed(interval[0], 3)), h("span.faint", null, ` ${fixed(interval[1])} to ${fixed(interval[2])}`)] : h("span.faint", null, "–"));
  const rows = runs.map((run, i) => {
    const before = run.measured.find((one) => one.when === "before");
    const after = run.measured.find((one) => one.when === "after");
    const trained = run.measured.filter((one) => one.when !== "before");
    const best = trained.some((one) => one.when !== "after") ? trained.reduce((a, b) => (b.sampled[0] > a.sampled[0] ? b : a)) : null;
    return h("tr", null, h("td", null, runs.length > 1 ? [swatch(i), inline(run.name, 60)] : "success"),
      h("td", null, figure(before?.sampled)), h("td", null, figure(after?.sampled)), h("td", null, figure(after?.greedy)),
      h("td", null, best ? [figure(best.sampled), h("span.faint", null, `, step ${count(best.step)}`)] : figure(null)));
  });
  const head = ["", "before", "after", "after, greedy", "best on the way"].map((text) => h("th", null, text));
  return h("div.wide", null, h("table.compared.heldout", null, h("thead", null, h("tr", null, head)), h("tbody", null, rows)));
}

function note_(text) {
  return h("p.note", null, text);
}

function pointsOf(run, name) {
  const points = name === HELD_OUT ? run.measured.map((one) => [one.step, one.sampled[0]]) : [...run.metrics].map(([step, figures]) => [step, figures.get(name) ?? null]);
  return points.filter(([, value]) => value !== null).sort((a, b) => a[0] - b[0]);
}

function chart(name, runs) {
  const lines = runs.map((run, i) => ({ points: pointsOf(run, name), tone: runs.length > 1 ? `.run${i % 6}` : "", value: h(`span.value${runs.length > 1 ? `.run${i % 6}` : ""}`) }));
  const steps = runs.flatMap((run) => [...run.metrics.keys()]).concat(lines.flatMap((line) => line.points.map(([step]) => step)));
  const at = h("span.faint", null, "");
  const canvas = svg("svg", { class: "plot", height: HEIGHT, role: "img", "aria-label": spelled(name) });
  const node = h("figure.chart", null, h("figcaption", null, h("span.name", { title: spelled(name) }, inline(name, 60)), at, lines.map((line) => line.value)), canvas);
  const range = steps.reduce(([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
  const made = { lines, points: lines.flatMap((line) => line.points), at, canvas, range, node };
  for (const line of lines) line.value.textContent = short(line.points.at(-1)?.[1]);
  new ResizeObserver(() => plot(made)).observe(canvas);
  canvas.addEventListener("pointermove", (event) => point(stepAt(made, event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => openStep(stepAt(made, event)));
  return made;
}

function niceTicks(low, high) {
  const raw = (high - low) / 4.5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw) ?? power * 10;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9 && ticks.length < 8; at += step) ticks.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return ticks;
}

function scales(made) {
  const width = Math.max(120, made.canvas.clientWidth);
  let [low, high] = [Infinity, -Infinity];
  for (const [, value] of made.points) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (!(high > low)) {
    const around = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - around, high + around];
  }
  const [first, last] = made.range;
  const x = (step) => ROOM.left + (last > first ? (step - first) / (last - first) : 0.5) * (width - ROOM.left - ROOM.right);
  const y = (value) => ROOM.top + (1 - (value - low) / (high - low)) * (HEIGHT - ROOM.top - ROOM.bottom);
  return { width, low, high, x, y };
}

// The points to draw: of many that share a column of pixels, the lowest and the highest.
function thinned(points, width) {
  if (points.length <= 2 * width) return points;
  const size = points.length / width;
  const kept = [];
  for (let i = 0; i < width; i++) {
    const part = points.slice(Math.floor(i * size), Math.floor((i + 1) * size));
    if (!part.length) continue;
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low[0] < high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

function plot(made) {
  made.canvas.replaceChildren();
  if (!made.points.length || !made.canvas.clientWidth) return;
  const { width, low, high, x, y } = scales(made);
  made.canvas.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  for (const tick of niceTicks(low, high)) {
    made.canvas.append(
      svg("line", { class: "grid", x1: ROOM.left, x2: width - ROOM.right, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "tick", x: ROOM.left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, short(tick)),
    );
  }
  const [first, last] = made.range;
  made.canvas.append(svg("text", { class: "tick", x: ROOM.left, y: HEIGHT - 4 }, count(first)));
  if (last > first) made.canvas.append(svg("text", { class: "tick", x: width - ROOM.right, y: HEIGHT - 4, "text-anchor": "end" }, count(last)));
  for (const { points, tone } of made.lines) {
    const drawn = thinned(points, width - ROOM.left - ROOM.right);
    const path = drawn.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    made.canvas.append(svg("path", { class: `line${tone.replace(".", " ")}`, d: path }));
    if (drawn.length === 1) made.canvas.append(svg("circle", { class: "dot", cx: x(drawn[0][0]), cy: y(drawn[0][1]), r: 2.5 }));
  }
  made.mark = svg("g", { class: "mark" });
  made.canvas.append(made.mark);
}

function stepAt(made, event) {
  const bounds = made.canvas.getBoundingClientRect();
  const { x } = scales(made);
  const away = (one) => Math.abs(x(one[0]) - (event.clientX - bounds.left));
  return made.points.length ? made.points.reduce((a, b) => (away(b) < away(a) ? b : a))[0] : null;
}

function point(step) {
  for (const made of charts) {
    if (!made.mark) continue;
    made.mark.replaceChildren();
    made.at.textContent = step === null ? "" : `step ${count(step)}`;
    const { x, y } = scales(made);
    let crossed = false;
    for (const { points, value } of made.lines) {
      const found = step === null ? null : points.find(([one]) => one === step);
      value.textContent = short(found ? found[1] : step === null ? points.at(-1)?.[1] : null);
      if (!found) continue;
      if (!crossed) made.mark.append(svg("line", { class: "cross", x1: x(step), x2: x(step), y1: ROOM.top, y2: HEIGHT - ROOM.bottom }));
      crossed = true;
      made.mark.append(svg("circle", { class: "dot", cx: x(step), cy: y(found[1]), r: 3 }));
    }
  }
}

function openStep(step) {
  const first = store.groups.find((group) => group.order === step);
  if (first) go(toGroup(first));
}

// config.json and summary.json as they are.
function settingsCard() {
  return store.settings.map(([title, values]) => h("details.settings", null, h("summary", null, inline(title)), pairTable(values)));
}

function pairTable(values) {
  return h("div.pairs", null, values.map(([name, text]) => [h("div.key", null, inline(name, 80)), longText(text, 2000, "div.text.small")]));
}
