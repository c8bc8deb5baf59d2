// All runs: a table, and for those that are chosen their curves over one another and their differing settings.

import { Chart, LINE_COLORS } from "./charts.js";
import { h, replace } from "./dom.js";
import { ago, date, duration, fixed } from "./format.js";
import { note, solvedText, stateTag, table, tag } from "./parts.js";
import { toRun, withQuery } from "./route.js";
import { Curves, align, band, windowFor } from "./series.js";
import { get } from "./store.js";

const FIRST_METRICS = ["solved", "reward/executor", "reward/designer", "evaluation/solved"];
// What tells apart runs that are repetitions of one another.
const SEEDS = ["seed"];
const NOT_COMPARED = ["run.", "model.threads"];
const REFRESH = 4000;

export async function runsPage(main, place, page) {
  const chosen = new Set((place.query.get("runs") || "").split("\n").filter(Boolean));
  const list = h("div", {});
  const overlay = h("div", {});
  let answer = await get("runs");
  replace(main, h("div", { class: "title" }, h("h1", { class: "grow" }, "Runs"), h("span", { class: "muted small" }, answer.root)), list, overlay);
  // A viewer of a single run begins there.
  if (!location.hash && answer.runs.length === 1) {
    location.replace(toRun(answer.runs[0].id));
    return;
  }
  const sort = { key: "changed", down: true };

  const remember = () => history.replaceState(null, "", withQuery("runs", { runs: [...chosen].join("\n"), metric: place.query.get("metric") || "" }));
  const choose = (id, on) => {
    if (on) chosen.add(id);
    else chosen.delete(id);
    remember();
    showOverlay(overlay, answer, chosen, place, page);
  };
  const show = () => replace(list, answer.runs.length ? runsTable(answer.runs, chosen, choose, sort, show) : h("p", { class: "empty" }, "No run here yet. `metaagentx train`, `metaagentx quickstart` and `metaagentx solve --save` make some; this page shows them as they appear."));
  show();
  await showOverlay(overlay, answer, chosen, place, page);
  const timer = setInterval(async () => {
    try {
      const fresh = await get("runs");
      const changed = JSON.stringify(fresh) !== JSON.stringify(answer);
      answer = fresh;
      const focus = document.activeElement?.dataset?.run;
      if (changed) show();
      if (focus) list.querySelector(`a[data-run="${CSS.escape(focus)}"]`)?.focus();
      page.live(answer.runs.some((run) => run.state === "running"));
    } catch (error) {
      page.problem(error);
    }
  }, REFRESH);
  page.live(answer.runs.some((run) => run.state === "running"));
  page.onLeave(() => clearInterval(timer));
}

function runsTable(runs, chosen, choose, sort, show) {
  const columns = [
    ["", null],
    ["run", (run) => run.name],
    ["state", (run) => run.state],
    ["steps", (run) => run.steps],
    ["solved", (run) => run.solved],
    ["held-out", (run) => run.held_out],
    ["Executor's reward", (run) => run.executor],
    ["Designer's reward", (run) => run.designer],
    ["time", (run) => run.seconds],
    ["changed", (run) => run.changed],
  ];
  const [, value] = columns.find(([name]) => name === sort.key) || columns[1];
  const ordered = [...runs].sort((a, b) => (sort.down ? -1 : 1) * compare(value(a), value(b)));
  const head = columns.map(([name, key]) =>
    h("th", { class: ["steps", "solved", "held-out", "Executor's reward", "Designer's reward", "time"].includes(name) ? "num" : null, scope: "col", "aria-sort": sort.key === name ? (sort.down ? "descending" : "ascending") : null },
      key ? h("button", { type: "button", onclick: () => { sort.down = sort.key === name ? !sort.down : name !== "run"; sort.key = name; show(); } }, name, sort.key === name ? (sort.down ? " ↓" : " ↑") : "") : name),
  );
  const rows = ordered.map((run) =>
    h("tr", {},
      h("td", {}, h("input", { type: "checkbox", checked: chosen.has(run.id), "aria-label": `compare ${run.name}`, disabled: run.kind === "trees", onchange: (event) => choose(run.id, event.target.checked) })),
      h("td", { class: "wide" }, h("a", { href: toRun(run.id), "data-item": true, "data-run": run.id }, run.name), " ", run.recipe ? tag(run.kind === "trees" ? `saved by ${run.recipe}` : run.recipe) : null, run.problem ? h("span", { class: "tag bad", title: run.problem }, "damaged") : null),
      run.loading ? h("td", { colspan: 8, class: "muted" }, "reading…") : [
        h("td", {}, run.kind === "trees" ? h("span", { class: "muted" }, "trees") : stateTag(run.state)),
        h("td", { class: "num" }, run.steps, run.of ? h("span", { class: "faint" }, ` / ${run.of}`) : ""),
        h("td", { class: "num" }, solvedText(run.solved)),
        h("td", { class: "num" }, solvedText(run.held_out)),
        h("td", { class: "num" }, fixed(run.executor)),
        h("td", { class: "num" }, fixed(run.designer)),
        h("td", { class: "num" }, duration(run.seconds)),
        h("td", { class: "nowrap muted", title: date(run.changed) }, ago(run.changed)),
      ]),
  );
  return h("div", { class: "scroll" }, h("table", { "data-table": "runs" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

async function showOverlay(overlay, answer, chosen, place, page) {
  const runs = answer.runs.filter((run) => chosen.has(run.id) && !run.loading);
  if (!runs.length) {
    replace(overlay, answer.runs.length > 1 ? h("p", { class: "muted" }, "Choose runs to lay their curves over one another and to see which settings differ.") : null);
    return;
  }
  let loaded;
  try {
    loaded = await Promise.all(runs.map(async (run) => {
      const curves = new Curves();
      curves.add(await get("curves", { run: run.id }));
      return { run, curves };
    }));
  } catch (error) {
    replace(overlay, note(error.message, "bad"));
    return;
  }
  const names = metricNames(loaded);
  const metric = names.includes(place.query.get("metric")) ? place.query.get("metric") : null;
  const groups = groupSeeds(loaded);
  const charts = h("div", { class: "charts large" });
  const select = h("select", { "aria-label": "metric", onchange: (event) => { place.query.set("metric", event.target.value); showOverlay(overlay, answer, chosen, place, page); } },
    h("option", { value: "" }, "the main metrics"), names.map((name) => h("option", { value: name, selected: name === metric }, name)));
  replace(overlay, h("div", { class: "row" }, h("h2", { class: "grow" }, `${runs.length} runs, ${groups.length} with different settings`), h("label", { class: "row small muted" }, "metric ", select)), charts, differences(groups));
  for (const name of metric ? [metric] : FIRST_METRICS.filter((each) => names.includes(each))) {
    const chart = new Chart({ title: name, caption: groups.some((group) => group.members.length > 1) ? "Lines are means over seeds, bands reach from the lowest to the highest." : "", scale: name.includes("solved") || name.startsWith("pattern/") ? "share" : "number", sync: "runs", height: 260 });
    charts.append(chart.element);
    chart.update(...overlaid(groups, name));
  }
}

function overlaid(groups, name) {
  const members = groups.flatMap((group) => group.members.map((member) => ({ group, steps: member.curves.steps, values: member.curves.columns[name] || member.curves.steps.map(() => null) })));
  const { steps, columns } = align(members);
  const lines = groups.map((group, index) => {
    const own = columns.filter((_, position) => members[position].group === group);
    const { mean, low, high } = band(own);
    const label = group.label;
    return { name: label, title: group.members.map(({ run }) => run.name).join(", "), values: mean, color: LINE_COLORS[index % LINE_COLORS.length], dash: index >= LINE_COLORS.length ? [6, 4] : undefined, ...(own.length > 1 ? { low, high } : {}) };
  });
  return [steps, lines.filter((line) => line.values.some((value) => value !== null)), { window: windowFor(steps.length) }];
}

function metricNames(loaded) {
  const names = new Set(loaded.flatMap(({ curves }) => Object.keys(curves.columns)));
  names.delete("step");
  return [...FIRST_METRICS.filter((name) => names.has(name)), ...[...names].filter((name) => !FIRST_METRICS.includes(name)).sort()];
}

// Runs that differ in their seed alone are repetitions: one line with a band.
function groupSeeds(loaded) {
  const groups = new Map();
  for (const member of loaded) {
    const settings = Object.entries(member.run.settings || {}).filter(([name]) => compared(name) && !SEEDS.includes(name));
    const key = settings.length ? JSON.stringify(settings.sort()) : member.run.id;
    if (!groups.has(key)) groups.set(key, { settings: Object.fromEntries(settings), members: [] });
    groups.get(key).members.push(member);
  }
  for (const group of groups.values()) {
    const [first] = group.members;
    group.label = group.members.length > 1 ? `${first.run.name} and ${group.members.length - 1} more` : first.run.name;
  }
  return [...groups.values()];
}

function compared(name) {
  return !NOT_COMPARED.some((prefix) => name.startsWith(prefix));
}

function differences(groups) {
  if (groups.length < 2) return null;
  const keys = [...new Set(groups.flatMap((group) => Object.keys(group.settings)))].sort();
  const rows = keys.map((key) => [key, ...groups.map((group) => group.settings[key] ?? "–")]).filter(([, ...values]) => new Set(values).size > 1);
  return h("section", { "data-differences": true }, h("h2", {}, "Settings that differ"), rows.length ? table(["setting", ...groups.map((group) => group.label)], rows.map(([key, ...values]) => [h("code", {}, key), ...values.map((value) => h("code", {}, value))]), 99) : h("p", { class: "muted" }, "None."));
}
