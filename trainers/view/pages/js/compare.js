// Several runs: what they measured, their curves over the same steps, and how their configs differ.

// The metrics of all runs that have any; where they share none, all there are.
function sharedMetrics() {
  const runs = store.runs.filter((run) => run.metricNames.length);
  const all = [...new Set(runs.flatMap((run) => run.metricNames))];
  const shared = all.filter((name) => runs.every((run) => run.metricNames.includes(name)));
  return shared.length ? shared : all;
}

function compareView(here) {
  const key = store.runs.map((run, i) => h("span.run", null, swatch(i), inline(run.name, 80), h("span.faint", null, plural(run.metrics.size, "step"))));
  return h("section.view.curves", null,
    h("div.heading", null, h("h1", null, "Comparison"), h("span.faint", null, "point at a step to read it everywhere")),
    h("div.runs", null, key),
    h("h2", null, "Success on held-out tasks"), heldOut(store.runs),
    h("h2", null, "Curves"), curvesOf(here, store.runs, sharedMetrics()),
    h("h2", null, "What differs in their configs"), differences());
}

function swatch(number) {
  return svg("svg", { class: "swatch", viewBox: "0 0 22 8", "aria-hidden": "true" }, svg("path", { class: `line run${number % 6}`, d: "M0 4L22 4" }));
}

function differences() {
  if (!store.differences.length) return note_("Their configs are the same.");
  const head = h("tr", null, h("th"), store.runs.map((run, i) => h("th", null, swatch(i), inline(run.name, 40))));
  const rows = store.differences.map(([name, values]) => h("tr", null, h("td", null, inline(name, 80)), values.map((value) => h("td", null, value === null ? h("span.faint", null, "–") : inline(value, 120)))));
  return h("div.wide", null, h("table.compared", null, h("thead", null, head), h("tbody", null, rows)));
}
