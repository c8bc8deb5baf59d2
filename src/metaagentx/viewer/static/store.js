// Where the data comes from: the server, or the file that this page was exported into.

const embedded = document.getElementById("answers");
const exported = embedded ? JSON.parse(embedded.textContent) : null;
const cache = new Map();
const KEPT = 60;
// A resumed run may write a step again: after this number of milliseconds a tree is requested again.
const FRESH = 30000;

export const isExport = exported !== null;
export const exportStart = exported ? exported.start : null;

export class Problem extends Error {}

// `keep`: the answer is kept for a while, so that moving around within a tree asks for it once.
export async function get(name, parameters = {}, keep = false) {
  const key = keyOf(name, parameters);
  if (exported) return fromFile(name, key, parameters);
  const known = cache.get(key);
  if (keep && known && Date.now() - known.time < FRESH) return known.answer;
  let response;
  try {
    response = await fetch(`api/${key}`, { headers: { Accept: "application/json" } });
  } catch (error) {
    throw new Problem("the viewer does not answer: is `metaagentx view` still running?");
  }
  if (response.status === 403) throw new Problem(await response.text());
  const answer = await response.json();
  if (answer.error) throw new Problem(answer.error);
  if (keep) {
    cache.delete(key);
    cache.set(key, { answer, time: Date.now() });
    if (cache.size > KEPT) cache.delete(cache.keys().next().value);
  }
  return answer;
}

export function keyOf(name, parameters) {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  pairs.sort(([a], [b]) => (a < b ? -1 : 1));
  return `${name}?${new URLSearchParams(pairs.map(([key, value]) => [key, String(value)]))}`;
}

export function exportLink(parameters) {
  return exported ? null : keyOf("export", parameters);
}

// Calls back after each change of a run; returns what ends that. A tab that nobody sees watches nothing: browsers allow a
// server few connections at a time, whichever tab has them.
export function watch(run, onChange) {
  if (exported || typeof EventSource === "undefined") return () => {};
  let source = null;
  const follow = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) {
      source = new EventSource(`api/${keyOf("events", { run })}`);
      source.addEventListener("change", (event) => onChange(JSON.parse(event.data)));
    }
  };
  document.addEventListener("visibilitychange", follow);
  follow();
  return () => {
    document.removeEventListener("visibilitychange", follow);
    source?.close();
  };
}

function fromFile(name, key, parameters) {
  const answer = exported.answers[key];
  if (answer === undefined) {
    if (name === "task") return { occurrences: tasksInFile(parameters.id), indexed: 1, files: 1 };
    throw new Problem(name === "search" ? "search needs the live viewer: metaagentx view" : "this is not in the file: only some steps of the run were exported. `metaagentx view` shows all of them.");
  }
  if (answer.error) throw new Problem(answer.error);
  return answer;
}

function tasksInFile(id) {
  const found = [];
  for (const [key, answer] of Object.entries(exported.answers)) {
    if (!key.startsWith("step?") || !answer.tasks) continue;
    for (const task of answer.tasks) if (task.id === id) found.push([answer.step, task.task, task.solved, task.reward]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
