// One run: its head, and by tab its curves, the steps with trees, evaluations, the log and the configuration.

import { Chart } from "./charts.js";
import { h, replace } from "./dom.js";
import { ago, date, fixed, percent } from "./format.js";
import { exportButton, facts, note, progress, solvedText, stateTag, table, tabs, tag } from "./parts.js";
import { toNode, toRun } from "./route.js";
import { chartSections } from "./run_charts.js";
import { Curves, windowFor } from "./series.js";
import { get, isExport, watch } from "./store.js";

const MOST_ROWS = 300;

export async function runPage(main, place, page) {
  const run = place.run;
  const tab = place.tab || "curves";
  const head = await get("run", { run });
  page.crumbs([[head.name, toRun(run)]]);
  page.scope(run);
  const current = head.kind === "trees" && tab === "curves" ? "steps" : tab;
  const title = h("div", {});
  const body = h("div", {});
  replace(main, title, tabBar(run, current, head), body);
  const showHead = (fresh) => replace(title, headOf(fresh));
  showHead(head);
  const update = await (VIEWS[current] || showCurves)(body, run, head, page);
  page.live(head.state === "running");
  let asking = false;
  let again = false;
  const refresh = async () => {
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    try {
      do {
        again = false;
        const fresh = await get("run", { run });
        showHead(fresh);
        page.live(fresh.state === "running");
        await update(fresh);
      } while (again);
    } catch (error) {
      page.problem(error);
    } finally {
      asking = false;
    }
  };
  page.onLeave(watch(run, refresh));
}

function tabBar(run, current, head) {
  const items = [["curves", "Curves"], ["steps", head.kind === "trees" ? "Trees" : "Steps and trees"], ["evaluations", "Evaluations"], ["log", "Log"], ["config", "Configuration"]];
  const shown = head.kind === "trees" ? items.slice(1, 2) : items;
  return tabs(shown.map(([name, label]) => [name, label, toRun(run, name)]), current);
}

function headOf(head) {
  const place = head.forked_from ? `forked from ${head.forked_from[0]} at step ${head.forked_from[1]}` : null;
  return [
    h("div", { class: "title" }, h("h1", {}, head.name), head.kind === "trees" ? tag(`saved by ${head.recipe}`) : stateTag(head.state), head.recipe && head.kind !== "trees" ? tag(head.recipe, "", "recipe") : null, h("span", { class: "muted small grow", title: date(head.changed) }, [head.kind === "trees" ? null : `${head.steps}${head.of ? ` of ${head.of}` : ""} steps`, head.created ? `created ${date(head.created)}` : null, isExport ? null : `changed ${ago(head.changed)}`, place].filter(Boolean).join(" · ")), exportButton({ run: head.id }, "Export this run")),
    head.learned ? h("p", { "data-learned": true }, head.learned) : null,
    head.problems.map((problem) => note(problem)),
    progress(head.indexed, head.files, "trees for lists and search"),
  ];
}

async function showCurves(body, run, head) {
  const curves = new Curves();
  curves.add(await get("curves", { run }));
  const tiles = h("div", { class: "tiles" });
  const sections = h("div", {});
  const smoothing = h("input", { type: "range", min: 0, max: 100, value: 50, "aria-label": "smoothing", title: "smoothing" });
  const about = h("p", { class: "muted small row" });
  replace(body, tiles, about, sections);
  const charts = new Map();
  const showTiles = (fresh) => replace(tiles, fresh.tiles.map(([name, figure, remark]) => h("div", { class: "tile" }, h("span", {}, name), h("b", {}, figure), h("span", {}, remark))));
  const window = () => Math.max(1, Math.round(windowFor(curves.steps.length) * (smoothing.value / 50)) | 1) * (Number(smoothing.value) > 0) || 1;
  const show = (fresh) => {
    showTiles(fresh);
    replace(about, h("label", { class: "row" }, "smoothing", smoothing), window() > 1 ? `Bold lines are moving averages over ${window()} steps. ` : "Every step as measured. ", "The strip above a chart shows which role learns. Drag to zoom, double-click to see all, click to open the nearest step that has trees.");
    if (!curves.steps.length) {
      replace(sections, h("p", { class: "empty" }, "No step is finished yet."), facts(fresh.settings));
      charts.clear();
      return;
    }
    if (!charts.size) buildCharts(sections, charts, run, curves, fresh);
    for (const [spec, chart] of charts) {
      const lines = spec.lines(curves);
      chart.element.classList.toggle("hidden", Boolean(spec.optional && !lines.length));
      const missing = chart.element.querySelector(".missing");
      missing.classList.toggle("hidden", lines.length > 0);
      chart.plot.classList.toggle("hidden", !lines.length);
      chart.update(curves.steps, lines, { bands: fresh.bands, window: spec.smoothed === false ? 1 : window() });
    }
  };
  let last = head;
  smoothing.addEventListener("input", () => show(last));
  show(head);
  return async (fresh) => {
    last = fresh;
    const answer = await get("curves", { run, start: curves.steps.length, generation: curves.generation });
    curves.add(answer);
    show(fresh);
  };
}

function buildCharts(sections, charts, run, curves, head) {
  replace(sections);
  for (const section of chartSections()) {
    const grid = h("div", { class: section.large ? "charts large" : "charts" });
    for (const spec of section.charts) {
      const chart = new Chart({ ...spec, height: section.large ? 250 : 190, onPick: (step) => openNearest(run, step) });
      chart.element.append(h("p", { class: "missing muted small hidden" }, `Nothing to show: ${spec.missing || "this run did not measure it"}.`));
      grid.append(chart.element);
      charts.set(spec, chart);
    }
    if (section.charts.every((spec) => spec.optional && !spec.lines(curves).length)) continue;
    sections.append(h("h2", {}, section.title), grid);
  }
  sections.append(h("h2", {}, "Settings"), facts(head.settings));
}

// Not every step has trees: a click opens the one nearest to it, in an exported file the nearest one that is in it.
async function openNearest(run, step) {
  const answer = await get("steps", { run });
  const steps = answer.kept || answer.steps.map(([each]) => each);
  const nearest = steps.reduce((best, each) => (best === null || Math.abs(each - step) < Math.abs(best - step) ? each : best), null);
  location.hash = nearest === null ? toRun(run, "steps") : toNode(run, { step: nearest });
}

async function showSteps(body, run, head) {
  let most = MOST_ROWS;
  const show = async () => {
    const [answer, curves] = await Promise.all([get("steps", { run }), get("curves", { run })]);
    const measured = new Map((curves.columns.step || []).map((step, row) => [step, row]));
    const metric = (step, name) => curves.columns[name]?.[measured.get(step)] ?? null;
    const steps = [...answer.steps].reverse();
    if (!steps.length) {
      replace(body, h("p", { class: "empty" }, "No trees were recorded."));
      return;
    }
    const trees = head.kind === "trees";
    const rows = steps.slice(0, most).map(([step, tasks, solved, reward, damaged, question, faults]) => [
      answer.kept && !answer.kept.includes(step) ? h("span", { class: "faint", title: "not in this file" }, step) : h("a", { href: trees ? toNode(run, { step, task: 0 }) : toNode(run, { step }), "data-item": true }, trees ? `tree ${step}` : `step ${step}`),
      trees ? h("span", { class: "muted" }, question || "") : (tasks ?? h("span", { class: "faint" }, "…")),
      solvedText(metric(step, "solved") ?? solved),
      fixed(metric(step, "reward/executor")),
      fixed(metric(step, "reward/designer") ?? reward),
      faults ? h("span", { class: "warn" }, faults) : (faults ?? "…"),
      damaged ? h("span", { class: "bad" }, `${damaged} damaged`) : "",
    ]);
    const names = trees ? ["tree", "question", "solved", "Executor's reward", "reward", "faults", ""] : ["step", "tasks", "solved", "Executor's reward", "Designer's reward", "faults", ""];
    const more = steps.length > most ? h("button", { type: "button", onclick: () => { most += 1000; show(); } }, `show ${Math.min(1000, steps.length - most)} more`) : null;
    replace(body, answer.kept && answer.kept.length < steps.length ? note(`This file has the trees of ${answer.kept.length} of ${steps.length} steps.`, "plain") : null, table(names, rows, trees ? 2 : 1), more);
  };
  await show();
  return show;
}

async function showEvaluations(body, run) {
  const show = async () => {
    const answer = await get("evaluations", { run });
    const parts = answer.evaluations.map((entry, index) => evaluation(entry, index === 0));
    const during = answer.held_out.map(([step, value]) => [step + 1, percent(value)]);
    replace(body, parts.length ? parts : h("p", { class: "empty" }, "No evaluation was made after training."), during.length ? [h("h2", {}, "During training"), table(["steps done", "held-out tasks solved"], during, 0)] : null);
  };
  await show();
  return show;
}

function evaluation(entry, open) {
  const title = entry.step === null ? "Checkpoint not recorded" : `Checkpoint of step ${entry.step}`;
  const about = [entry.tasks, entry.samples, entry.solved === undefined ? null : `${entry.method} solves ${percent(entry.solved, 1)}`, entry.location].filter(Boolean).join(" · ");
  const content = entry.problem ? note(entry.problem, "bad") : [grid(entry.grid), h("p", { class: "muted small" }, entry.about), entry.tables.map((each) => [each.heading ? h("h3", {}, each.heading) : null, each.caption ? h("p", { class: "muted small" }, `${each.caption}:`) : null, table(each.head, each.rows)])];
  return h("details", { class: "panel", open, "data-evaluation": entry.location }, h("summary", {}, h("b", {}, title), " ", h("span", { class: "small" }, about)), content);
}

// The four combinations of old and new roles, colored by what they solve.
function grid(cells) {
  if (!cells) return null;
  const rows = Object.entries(cells).map(([designs, of]) => [designs, ...Object.values(of).map(([average, low, high]) => h("span", { class: "cell", vars: { "--r": String(average) }, title: `95 % interval ${percent(low)} to ${percent(high)}` }, percent(average, 1)))]);
  return h("div", { "data-grid": true }, h("h3", {}, "What each role has learned"), table(["solved", ...Object.keys(Object.values(cells)[0])], rows));
}

async function showLog(body, run) {
  const box = h("div", { class: "log", tabindex: "0", role: "region", "aria-label": "log" });
  const before = h("p", { class: "muted small" });
  replace(body, before, box);
  const show = async () => {
    const end = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const answer = await get("log", { run });
    replace(before, answer.before ? `The first ${answer.before.toLocaleString("en-US")} bytes are not shown.` : null);
    replace(box, answer.text || "The log is empty.");
    if (end) box.scrollTop = box.scrollHeight;
  };
  await show();
  return show;
}

async function showConfig(body, run, head) {
  const answer = await get("config", { run });
  replace(body, facts(head.settings), h("div", { class: "log", tabindex: "0", role: "region", "aria-label": "config.toml" }, answer.text || "config.toml is empty."));
  return async () => {};
}

const VIEWS = { curves: showCurves, steps: showSteps, evaluations: showEvaluations, log: showLog, config: showConfig };
