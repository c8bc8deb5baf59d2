// One step: its tasks, with the rewards of all executions, design by design.

import { h, replace } from "./dom.js";
import { fixed, number } from "./format.js";
import { cell, note, scaleRewards, solvedText, tag } from "./parts.js";
import { toNode, toRun } from "./route.js";
import { get } from "./store.js";

const ORDERS = {
  task: ["as in the file", (task) => task.task],
  spread: ["largest spread of rewards first", (task) => -spread(task)],
  solved: ["least solved first", (task) => task.solved ?? 2],
};

export async function stepPage(main, place, page) {
  const { run, step } = place;
  const answer = await get("step", { run, step });
  page.crumbs([[run === "." ? "run" : run, toRun(run)], [`step ${step}`, toNode(run, { step })]]);
  page.scope(run);
  page.neighbors(answer.previous === null ? null : toNode(run, { step: answer.previous }), answer.next === null ? null : toNode(run, { step: answer.next }));
  scaleRewards(answer.tasks.flatMap((each) => each.designs.flatMap((design) => design.executions.map((execution) => execution.reward))));
  const order = h("select", { "aria-label": "order", onchange: () => show() }, Object.entries(ORDERS).map(([name, [label]]) => h("option", { value: name }, label)));
  const list = h("div", {});
  const show = () => replace(list, [...answer.tasks].sort((a, b) => ORDERS[order.value][1](a) - ORDERS[order.value][1](b)).map((task) => taskRow(run, step, task)));
  show();
  replace(
    main,
    h("div", { class: "title" }, h("h1", { class: "grow" }, `Step ${step}`), neighbors(run, answer), h("label", { class: "row small muted" }, "order ", order)),
    answer.tasks.length ? list : h("p", { class: "empty" }, "No task of this step was recorded."),
  );
}

function neighbors(run, answer) {
  return h("span", { class: "row small" }, answer.previous === null ? null : h("a", { href: toNode(run, { step: answer.previous }) }, `← step ${answer.previous}`), answer.next === null ? null : h("a", { href: toNode(run, { step: answer.next }) }, `step ${answer.next} →`));
}

function taskRow(run, step, task) {
  if (task.problem) return h("div", { class: "panel" }, h("b", {}, `Task ${task.task}`), note(`Line ${task.task + 1} of this step cannot be shown: ${task.problem}`, "bad"));
  const patterns = [...new Set(task.designs.map((design) => design.pattern || (design.fault ? design.fault : "none")))];
  return h(
    "div",
    { class: "panel", "data-task": task.task },
    h("div", { class: "row" }, h("a", { class: "grow", href: toNode(run, { step, task: task.task }), "data-item": true }, h("b", {}, `Task ${task.task}`), " ", h("span", {}, task.question)), tag(task.source_name || task.source), h("span", { class: "small muted nowrap" }, `solved ${solvedText(task.solved)} · reward ${fixed(task.reward)}`)),
    h("div", { class: "row small" }, h("div", { class: "groups" }, task.designs.map((design) => designCells(run, step, task.task, design))), h("span", { class: "muted" }, patterns.join(", "))),
  );
}

function designCells(run, step, task, design) {
  if (!design.executions.length) return h("span", { class: "cells" }, cell({ reward: design.reward, fault: design.fault || "none" }, { title: `design ${design.design}`, href: toNode(run, { step, task, design: design.design }) }));
  return h("span", { class: "cells", title: `design ${design.design}: ${design.pattern}, reward ${number(design.reward)}` }, design.executions.map((execution) => cell(execution, { href: toNode(run, { step, task, design: design.design, execution: execution.execution }), title: `design ${design.design}, execution ${execution.execution}` })));
}

function spread(task) {
  const rewards = task.designs.flatMap((design) => (design.executions.length ? design.executions.map((execution) => execution.reward) : [design.reward])).filter((reward) => reward !== null);
  return rewards.length > 1 ? Math.max(...rewards) - Math.min(...rewards) : 0;
}
