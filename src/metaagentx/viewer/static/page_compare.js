// One task at two places, of one run or of two, design beside design: what did training change?

import { workflowDrawing } from "./drawing.js";
import { h, replace } from "./dom.js";
import { fixed, number, percent, signed } from "./format.js";
import { cell, link, note, progress, scaleRewards, table, tag } from "./parts.js";
import { figures } from "./page_tree.js";
import { toNode, withQuery } from "./route.js";
import { scriptView } from "./script.js";
import { get } from "./store.js";

// While the index is being built, how long until the page looks again, in milliseconds.
const AGAIN = 1000;

export async function comparePage(main, place, page) {
  const query = place.query;
  const left = side(query, "");
  page.crumbs([["Compare", "#/compare"]]);
  if (left.run === null || left.step === null || left.task === null) {
    replace(main, h("h1", {}, "Compare"), h("p", { class: "empty" }, "Open a task and choose Compare there: this page then shows it beside the same task at another step or of another run."));
    return;
  }
  page.scope(left.run);
  const [first, runs] = await Promise.all([get("tree", left, true), get("runs")]);
  const otherRun = query.get("run2") ?? left.run;
  const found = await get("task", { run: otherRun, id: first.task.id });
  const places = found.occurrences.filter(([step, task]) => otherRun !== left.run || step !== left.step || task !== left.task);
  const wanted = query.get("step2") === null ? null : [Number(query.get("step2")), Number(query.get("task2") ?? 0)];
  const [step, task] = wanted ?? places.find(([each]) => each > left.step) ?? places[places.length - 1] ?? [];
  const second = step === undefined ? null : await get("tree", { run: otherRun, step, task }, true);
  scaleRewards([first, second].filter(Boolean).flatMap((tree) => tree.designs.flatMap((design) => design.executions.map((execution) => figures(execution).reward))));
  const right = { run: otherRun, step, task };
  // Of one run the earlier step comes first: the change is what training did.
  const [[a, from], [b, till]] = otherRun === left.run && step < left.step ? [[second, right], [first, left]] : [[first, left], [second, right]];
  const go = (changes) => { location.hash = withQuery("compare", { run: left.run, step: left.step, task: left.task, run2: otherRun, ...changes }).slice(1); };
  const runSelect = h("select", { "aria-label": "other run", onchange: (event) => go({ run2: event.target.value }) }, runs.runs.filter((run) => !run.loading).map((run) => h("option", { value: run.id, selected: run.id === otherRun }, run.name)));
  const stepSelect = h("select", { "aria-label": "other step", onchange: (event) => { const [step2, task2] = event.target.value.split(":"); go({ step2, task2 }); } }, places.map(([at, index, solved]) => h("option", { value: `${at}:${index}`, selected: at === step && index === task }, `step ${at}, task ${index}${solved === null ? "" : `, solved ${percent(solved)}`}`)));
  replace(
    main,
    h("div", { class: "title" }, h("h1", { class: "grow" }, "One task, two places"), tag(first.source_name || first.task.source)),
    h("section", { class: "panel question" }, first.task.question),
    h("div", { class: "row" }, h("span", {}, nodeLink(left)), h("label", { class: "row small muted" }, "beside run ", runSelect), h("label", { class: "row small muted" }, "at ", places.length ? stepSelect : "no other place")),
    progress(found.indexed, found.files, "where this task was drawn"),
    second ? [summary(a, b, from, till), h("div", { class: "pair" }, column(a, from), column(b, till))] : note("This run has no other tree of this task. Choose another run, or compare a task that was drawn more than once.", "plain"),
  );
  if (found.indexed < found.files) {
    const timer = setTimeout(() => comparePage(main, place, page).catch(page.problem), AGAIN);
    page.onLeave(() => clearTimeout(timer));
  }
}

function side(query, suffix) {
  const numberOf = (name) => (/^\d{1,9}$/.test(query.get(name + suffix) || "") ? Number(query.get(name + suffix)) : null);
  return { run: query.get(`run${suffix}`), step: numberOf("step"), task: numberOf("task") };
}

function nodeLink({ run, step, task }) {
  return link(toNode(run, { step, task }), `${run === "." ? "" : `${run}, `}step ${step}, task ${task}`);
}

function stats(tree) {
  const executions = tree.designs.flatMap((design) => design.executions);
  const scored = executions.filter((execution) => execution.reward);
  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  const patterns = {};
  for (const design of tree.designs) {
    const name = design.pattern || (design.fault ? `fault: ${design.fault.kind}` : "none");
    patterns[name] = (patterns[name] || 0) + 1;
  }
  return {
    "executions solved": [mean(scored.map((execution) => (execution.reward.solved ? 1 : 0))), percent],
    "reward of the executions": [mean(scored.map((execution) => execution.reward.total)), fixed],
    "reward of the designs": [mean(tree.designs.map((design) => design.reward).filter((reward) => reward !== null)), fixed],
    "different scripts": [new Set(tree.designs.map((design) => design.script_name).filter(Boolean)).size, number],
    "calls per execution": [mean(executions.map((execution) => execution.calls.length)), number],
    "tokens per execution": [mean(executions.map((execution) => execution.calls.reduce((sum, call) => sum + call.tokens, 0))), number],
    faults: [executions.filter((execution) => execution.fault).length + tree.designs.filter((design) => design.fault).length, number],
    patterns: [Object.entries(patterns).map(([name, times]) => `${times} ${name}`).join(", "), (value) => h("span", { class: "wrap" }, value)],
  };
}

function summary(first, second, left, right) {
  const [a, b] = [stats(first), stats(second)];
  const rows = Object.keys(a).map((name) => {
    const [before, show] = a[name];
    const [after] = b[name];
    const change = typeof before === "number" && typeof after === "number" ? (show === percent ? `${signed(100 * (after - before), 0)} points` : signed(after - before)) : "";
    return [name, show(before), show(after), change];
  });
  return h("div", { "data-summary": true }, table(["", `step ${left.step}${left.run === right.run ? "" : ` of ${left.run}`}`, `step ${right.step}${left.run === right.run ? "" : ` of ${right.run}`}`, "change"], rows));
}

function column(tree, place) {
  const seen = new Set();
  return h("section", { "data-side": `${place.run} ${place.step} ${place.task}` }, h("h2", {}, nodeLink(place)), tree.designs.map((design, index) => {
    const again = design.script_name && seen.has(design.script_name);
    seen.add(design.script_name);
    const structure = design.executions.map((each) => each.structure).find(Boolean);
    const drawing = again ? null : workflowDrawing(structure, null, null);
    return h("div", { class: "panel" },
      h("div", { class: "row" }, h("a", { href: toNode(place.run, { ...place, design: index }) }, h("b", {}, `Design ${index}`)), tag(design.pattern || "no pattern"), h("span", { class: "muted small" }, `reward ${fixed(design.reward)} · advantage ${signed(design.call.advantage)}`), h("span", { class: "cells" }, design.executions.map((execution, at) => cell(figures(execution), { href: toNode(place.run, { ...place, design: index, execution: at }), title: `execution ${at}` })))),
      design.fault ? note(`${design.fault.kind}: ${design.fault.message}`, "bad") : null,
      again ? h("p", { class: "same" }, "the same script as above") : [drawing ? h("div", { class: "drawing" }, drawing) : null, design.script === null ? null : h("details", { open: index === 0 }, h("summary", { class: "small" }, "script"), scriptView(design.script, null))]);
  }));
}
