// One task: its designs as columns with their executions, the script and the drawing of the chosen design, and the chosen
// execution with all its calls.

import { workflowDrawing } from "./drawing.js";
import { executionView } from "./execution.js";
import { h, replace } from "./dom.js";
import { clip, count, duration, fixed, number, signed } from "./format.js";
import { cell, exportButton, facts, note, scaleRewards, solvedText, tag } from "./parts.js";
import { toNode, toRun, withQuery } from "./route.js";
import { faultLine, scriptView } from "./script.js";
import { get } from "./store.js";
import { longText } from "./texts.js";

export async function treePage(main, place, page) {
  const { run, step, task } = place;
  const tree = await get("tree", { run, step, task }, true);
  const number_ = chosenDesign(tree, place);
  const design = tree.designs[number_];
  const chosen = place.execution !== undefined && design?.executions[place.execution] ? place.execution : undefined;
  const start = place.call === undefined ? 0 : Math.floor(place.call / 100) * 100;
  const detail = chosen === undefined ? null : await get("execution", { run, step, task, design: number_, execution: chosen, start: start || undefined }, true);
  scaleRewards(tree.designs.flatMap((each) => each.executions.map((execution) => figures(execution).reward)));
  const link = (rest) => toNode(run, { step, task, ...rest });
  page.crumbs(crumbs(place, number_, chosen));
  page.scope(run);
  page.neighbors(tree.previous === null ? null : toNode(run, { step, task: tree.previous }), tree.next === null ? null : toNode(run, { step, task: tree.next }));
  const loadText = (path) => async () => (await get("text", { run, step, task, path })).text;
  replace(
    main,
    titleRow(place, tree),
    questionPanel(tree, loadText),
    h("div", { class: "designs", "data-grid": "designs" }, tree.designs.map((each, index) => designColumn(tree, each, index, number_, chosen, link))),
    design ? designPanels(tree, number_, chosen, detail, link, loadText) : h("p", { class: "empty" }, "This task has no design."),
    detail ? executionView({ tree, detail, place, design: number_, execution: chosen, link, loadText }) : chosenHint(design),
  );
}

function chosenDesign(tree, place) {
  if (place.design !== undefined && tree.designs[place.design]) return place.design;
  let best = 0;
  tree.designs.forEach((design, index) => {
    if ((design.reward ?? -1) > (tree.designs[best].reward ?? -1)) best = index;
  });
  return best;
}

function crumbs({ run, step, task, call, token }, design, execution) {
  const path = [[run === "." ? "run" : run, toRun(run)], [`step ${step}`, toNode(run, { step })], [`task ${task}`, toNode(run, { step, task })]];
  if (execution !== undefined) path.push([`design ${design}, execution ${execution}`, toNode(run, { step, task, design, execution })]);
  if (call !== undefined) path.push([`call ${call}`, toNode(run, { step, task, design, execution, call })]);
  if (token !== undefined) path.push([`token ${token}`, toNode(run, { step, task, design, execution, call, token })]);
  return path;
}

function titleRow({ run, step, task }, tree) {
  const steps = tree.occurrences.filter(([other, index]) => other !== step || index !== task);
  return h(
    "div",
    { class: "title" },
    h("h1", { class: "grow" }, `Task ${task} of step ${step}`),
    tag(tree.source_name || tree.task.source, "", tree.task.source),
    h("span", { class: "row small" }, tree.previous === null ? null : h("a", { href: toNode(run, { step, task: tree.previous }) }, `← task ${tree.previous}`), tree.next === null ? null : h("a", { href: toNode(run, { step, task: tree.next }) }, `task ${tree.next} →`)),
    h("a", { class: "small", href: withQuery("compare", { run, step, task }) }, steps.length ? `Compare (${count(steps.length, "more step")} with this task)` : "Compare"),
    exportButton({ run, step, task }, "Export this tree"),
  );
}

function questionPanel(tree, loadText) {
  const { expected, id, split, difficulty, license } = tree.task;
  const whole = tree.cut["task.question"];
  return h(
    "section",
    { class: "panel" },
    h("div", { class: "question" }, longText(tree.task.question, whole, loadText("task.question"))),
    h("details", {}, h("summary", { class: "small" }, `Expected: ${clip(rightAnswer(expected), 140)}`), facts([["task", h("code", {}, id)], ["source", h("code", {}, tree.task.source)], ["split", split], ["difficulty", difficulty === null ? null : number(difficulty)], ["license", license], ["grading", h("pre", {}, JSON.stringify(withoutCut(expected), null, 1))]])),
  );
}

function withoutCut({ cut: _, ...rest }) {
  return rest;
}

// A short description of a right answer, as far as the task has one.
export function rightAnswer(grading) {
  if (grading.answers) return `${grading.answers.join(" and ")}${grading.unit ? ` ${grading.unit}` : ""}`;
  if (grading.tests) return `a program that passes ${count(grading.tests.length, "test")}`;
  if (grading.generator) return grading.entry && grading.entry.answer !== undefined && grading.entry.answer !== null ? String(grading.entry.answer) : `what ${grading.generator} accepts`;
  return `what ${grading.function} accepts`;
}

function designColumn(tree, design, index, chosenIndex, chosen, link) {
  const same = tree.designs.map((other, at) => [other, at]).filter(([other, at]) => at !== index && design.script_name && other.script_name === design.script_name);
  const solved = design.executions.filter((execution) => execution.reward && execution.reward.solved).length;
  return h(
    "section",
    { class: `design${index === chosenIndex ? " chosen" : ""}`, "data-design": index },
    h(
      "a",
      { class: "head", href: link({ design: index }), "aria-current": index === chosenIndex ? "true" : null },
      h("div", { class: "row" }, h("b", {}, `Design ${index}`), tag(design.pattern || "no pattern"), design.fault ? tag(design.fault.kind, "bad", design.fault.message) : null),
      h("div", { class: "figures" }, h("span", {}, "reward ", h("b", {}, fixed(design.reward))), h("span", {}, "advantage ", h("b", {}, signed(design.call.advantage))), design.executions.length ? h("span", {}, `${solved} of ${design.executions.length} solved`) : null),
    ),
    same.length ? h("div", { class: "same", "data-same": true }, `same script as ${same.map(([, at]) => `design ${at}`).join(", ")}`) : null,
    h("div", { class: "cells" }, design.executions.map((execution, at) => cell(figures(execution), { href: link({ design: index, execution: at }), title: `execution ${at}`, "aria-current": index === chosenIndex && at === chosen ? "true" : null, "data-column": index, "data-cell": at }))),
  );
}

export function figures(execution) {
  return { reward: execution.reward ? execution.reward.total : null, solved: Boolean(execution.reward && execution.reward.solved), fault: execution.fault ? execution.fault.kind : "" };
}

function designPanels(tree, index, chosen, detail, link, loadText) {
  const design = tree.designs[index];
  const execution = chosen === undefined ? null : design.executions[chosen];
  const structure = (execution && execution.structure) || design.executions.map((each) => each.structure).find(Boolean) || null;
  const toCall = chosen === undefined ? null : (call) => link({ design: index, execution: chosen, call });
  const drawing = workflowDrawing(structure, execution ? execution.calls : null, toCall);
  const failed = (execution && execution.fault) || design.fault;
  const path = `designs.${index}`;
  const caption = execution ? `The path that execution ${chosen} took is highlighted.` : "Choose an execution to see the path that it took.";
  return [
    design.fault ? note(`${design.fault.kind}: ${design.fault.message}`, "bad") : null,
    h(
      "div",
      { class: "pair" },
      h("section", { class: "panel" }, h("h3", {}, `Script of design ${index}`), design.script === null ? h("p", { class: "muted" }, "The reply holds no script.") : [scriptView(design.script, faultLine(failed)), tree.cut[`${path}.script`] ? longText("", tree.cut[`${path}.script`], loadText(`${path}.script`)) : null]),
      h("section", { class: "panel" }, h("h3", {}, `Workflow: ${design.pattern || "unknown"}`), drawing ? [h("p", { class: "muted small" }, caption), h("div", { class: "drawing", tabindex: "0", role: "region", "aria-label": "drawing of the workflow" }, drawing)] : h("p", { class: "muted" }, structure ? "The workflow is too large to be reported; only its pattern is known." : "No execution reported what it ran.")),
    ),
    h("details", { class: "panel", "data-designer": true }, h("summary", {}, `What the Designer read and wrote: ${count(design.call.tokens, "token")}, ${duration(design.call.seconds)}`), designerCall(design.call, path, tree, loadText)),
  ];
}

function designerCall(call, path, tree, loadText) {
  return [
    (call.messages || []).map((message, index) => h("div", { class: "message" }, h("div", { class: "who" }, message.role), longText(message.content || "", tree.cut[`${path}.call.messages.${index}.content`], loadText(`${path}.call.messages.${index}.content`)))),
    h("div", { class: "message reply designer" }, h("div", { class: "who" }, "reply"), longText(call.text || "", tree.cut[`${path}.call.text`], loadText(`${path}.call.text`))),
  ];
}

function chosenHint(design) {
  return design && design.executions.length ? h("p", { class: "muted" }, `Choose one of the executions above: each cell is one run of the script, ${solvedText(design.executions.filter((each) => each.reward && each.reward.solved).length / design.executions.length)} of this design's solve the task.`) : null;
}
