// What the page knows: entries and groups from the state, and the content of episodes when they are opened.
// The state is in the page, or comes from the server that gave the page out, a bit more each time.

const store = {
  name: "", live: false, generation: null, complete: false,
  episodes: [], groups: [], byKey: new Map(), metrics: new Map(), metricNames: [], vocabulary: new Map(),
  defects: [], settings: [], measured: [], runs: null, differences: [], counts: { episodes: 0, metrics: 0, vocabulary: 0 },
};

const HELD_OUT = "held-out success"; // A curve of what was measured between steps, beside those of the steps.

function stageOrder(episode) {
  if (episode.step !== null) return episode.step;
  return Number.MAX_SAFE_INTEGER - (/before/.test(episode.stage) ? 1 : 0); // Training comes first.
}

function trainingReward(episode) {
  if (!episode.terms.length) return episode.reward;
  return sum(episode.terms.map(([, value]) => value ?? NaN));
}

// Take in a state or what has come since; true if anything is new.
function ingest(state) {
  if (state.generation !== undefined && state.generation !== store.generation) {
    Object.assign(store, {
      generation: state.generation, episodes: [], groups: [], byKey: new Map(), metrics: new Map(), metricNames: [],
      vocabulary: new Map(), counts: { episodes: 0, metrics: 0, vocabulary: 0 },
    });
    opened.clear();
  }
  store.name = state.name;
  store.live = state.live;
  store.defects = state.defects;
  store.settings = state.settings;
  store.measured = state.measured;
  store.runs = state.runs ? state.runs.map(({ name, metrics, measured }) => {
    const steps = new Map(metrics.map(([step, figures]) => [step, new Map(figures)]));
    return { name, measured, metrics: steps, metricNames: withHeldOut([...new Set(metrics.flatMap(([, figures]) => figures.map(([one]) => one)))], measured) };
  }) : null;
  store.differences = state.differences ?? [];
  for (const episode of state.episodes) {
    episode.index = store.episodes.length;
    episode.train = trainingReward(episode);
    store.episodes.push(episode);
    const key = `${episode.stage}\n${episode.group}`;
    if (!store.byKey.has(key)) {
      const group = { stage: episode.stage, order: stageOrder(episode), group: episode.group, members: [] };
      store.byKey.set(key, group);
      store.groups.push(group);
    }
    store.byKey.get(key).members.push(episode);
  }
  if (state.episodes.length) {
    store.groups.sort((a, b) => a.order - b.order || (a.stage < b.stage ? -1 : a.stage > b.stage ? 1 : a.group - b.group));
  }
  for (const [step, figures] of state.metrics) {
    store.metrics.set(step, new Map(figures)); // A run that went on from a checkpoint may repeat a step: the last counts.
    for (const [name] of figures) if (!store.metricNames.includes(name)) store.metricNames.push(name);
  }
  store.metricNames = withHeldOut(store.metricNames, store.measured);
  for (const [id, text] of state.vocabulary) store.vocabulary.set(id, text);
  store.counts.episodes += state.episodes.length;
  store.counts.metrics += state.metrics.length;
  store.counts.vocabulary += state.vocabulary.length;
  return state.episodes.length + state.metrics.length > 0;
}

function withHeldOut(names, measured) {
  return measured.length > 1 && !names.includes(HELD_OUT) ? [...names, HELD_OUT] : names;
}

function groupOf(stage, group) {
  return store.byKey.get(`${stage}\n${group}`);
}

// -- the content of an episode -------------------------------------------------------------------------------------

const opened = new Map(); // The last few that were opened: index -> content.
const MOST_OPENED = 64;

async function contentOf(index) {
  if (opened.has(index)) {
    const known = opened.get(index);
    opened.delete(index);
    opened.set(index, known);
    return known;
  }
  const content = parsed(await rawContent(index));
  opened.set(index, content);
  if (opened.size > MOST_OPENED) opened.delete(opened.keys().next().value);
  return content;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("the episode's content is cut off or changed in this file");
  }
}

async function rawContent(index) {
  if (store.live) {
    const reply = await fetch(`episode/${store.generation}/${index}`);
    if (!reply.ok) throw new Error(await reply.text());
    return reply.text();
  }
  let element = document.getElementById(`episode-${index}`);
  // While the browser reads this file an element may be missing, or hold a part of its text: whole is what has a next.
  while (!element?.nextSibling && document.readyState === "loading") {
    await new Promise((resolve) => setTimeout(resolve, 20));
    element = document.getElementById(`episode-${index}`);
  }
  if (!element) throw new Error("this file ends before the episode: was it cut off?");
  return element.textContent;
}

function bytesOf(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes.buffer;
}

// A token row as flat arrays, one value a token; what the row holds for sampled tokens alone is spread over it.
function decodeRow(row) {
  const ids = new Int32Array(bytesOf(row.ids));
  const sampled = new Uint8Array(ids.length);
  const logprobs = new Float32Array(ids.length).fill(NaN);
  const versions = new Int32Array(ids.length).fill(-1);
  const said = row.said === null ? null : new Float32Array(ids.length).fill(NaN);
  const givenLogprobs = new Float32Array(bytesOf(row.logprobs));
  const givenVersions = new Int32Array(bytesOf(row.versions));
  const givenSaid = row.said === null ? null : new Float32Array(bytesOf(row.said));
  const spans = [];
  let at = 0;
  for (let i = 0; i < row.spans.length; i += 2) {
    const [begin, end] = [row.spans[i], row.spans[i + 1]];
    spans.push([begin, end]);
    sampled.fill(1, begin, end);
    logprobs.set(givenLogprobs.subarray(at, at + end - begin), begin);
    versions.set(givenVersions.subarray(at, at + end - begin), begin);
    if (said) said.set(givenSaid.subarray(at, at + end - begin), begin);
    at += end - begin;
  }
  return { ids, sampled, logprobs, versions, said, spans };
}

function tokenText(id) {
  return store.vocabulary.get(id) ?? null;
}

// -- full-text search ----------------------------------------------------------------------------------------------

function textsOf(content) {
  const calls = content.calls.flatMap((call) => [call.name, call.text, ...call.arguments.flat()]);
  return [...content.messages.map((message) => message.text), ...calls, content.prompt, content.task_id,
    content.answer ?? "", content.fault];
}

// The episodes that hold a text, found bit by bit: yields [set so far, share done].
async function* search(text) {
  const wanted = text.toLowerCase();
  const found = new Set();
  let at = 0;
  while (at < store.episodes.length) {
    if (store.live) {
      const reply = await fetch(`search/${store.generation}/${at}?${new URLSearchParams({ q: text })}`);
      if (!reply.ok) throw new Error(await reply.text());
      const part = await reply.json();
      part.found.forEach((index) => found.add(index));
      at = part.next;
    } else {
      const until = performance.now() + 30;
      while (at < store.episodes.length && performance.now() < until) {
        const content = opened.get(at) ?? parsed(await rawContent(at));
        if (textsOf(content).some((one) => one.toLowerCase().includes(wanted))) found.add(at);
        at += 1;
      }
      await new Promise((resolve) => setTimeout(resolve));
    }
    yield [found, at / store.episodes.length];
  }
}
