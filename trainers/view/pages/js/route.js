// Where one is: what the part of the address behind # says. Every view has an address that survives a reload.

const KEYS = ["step", "group", "episode", "with", "row", "turn", "token", "view", "metric"];

function route() {
  const said = new URLSearchParams(location.hash.slice(1));
  const number = (key) => (/^-?\d{1,15}$/.test(said.get(key) ?? "") ? Number(said.get(key)) : null);
  const at = {
    step: said.get("step"), group: number("group"), episode: number("episode"), with: number("with"),
    row: number("row") ?? 0, turn: number("turn"), token: number("token"), view: said.get("view"),
    metric: said.getAll("metric"),
  };
  at.of = at.step === null || at.group === null ? undefined : groupOf(at.step, at.group);
  at.chosen = at.of && at.of.members.find((member) => member.ordinal === at.episode);
  return at;
}

function address(parts) {
  const said = new URLSearchParams();
  for (const key of KEYS) {
    const value = parts[key];
    if (Array.isArray(value)) value.forEach((one) => said.append(key, one));
    else if (value !== null && value !== undefined && !(key === "row" && value === 0)) said.set(key, value);
  }
  return "#" + said;
}

// Go there; the browser's back button returns. The change of the address draws the page.
function go(parts) {
  const next = address(parts);
  if (next === location.hash || (next === "#" && !location.hash)) draw();
  else location.hash = next;
}

let silent = null;

// Note where one is without drawing again and without a step in the history.
function note(parts) {
  silent = address(parts);
  location.replace(silent);
}

function wasSilent() {
  const yes = silent !== null && silent === location.hash;
  silent = null;
  return yes;
}

const toGroup = (group) => ({ step: group.stage, group: group.group });
const toEpisode = (episode, view) => ({ step: episode.stage, group: episode.group, episode: episode.ordinal, view });
