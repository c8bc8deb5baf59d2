// Search and filters over the trees of a run or of all runs. Results come in as files are read.

import { h, replace } from "./dom.js";
import { number } from "./format.js";
import { cell, note, scaleRewards, tag } from "./parts.js";
import { toNode, toRun, withQuery } from "./route.js";
import { get } from "./store.js";

const MOST_RESULTS = 300;
const FIELDS = ["q", "run", "role", "agent", "source", "pattern", "fault", "solved", "reward", "first", "last"];

export async function searchPage(main, place, page) {
  const values = Object.fromEntries(FIELDS.map((name) => [name, place.query.get(name) || ""]));
  page.crumbs([["Search", "#/search"], ...(values.run ? [[values.run, toRun(values.run)]] : [])]);
  page.scope(values.run);
  const [answer, facets] = await Promise.all([get("runs"), get("facets", { run: values.run })]);
  const results = h("div", { "data-results": true });
  const state = h("p", { class: "muted small", role: "status" });
  const form = filterForm(values, answer.runs, facets);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = withQuery("search", read(form)).slice(1);
  });
  form.addEventListener("change", () => form.requestSubmit());
  replace(main, h("h1", {}, "Search"), form, state, results);
  if (FIELDS.every((name) => name === "run" || !values[name])) {
    replace(state, "Words are searched in questions, scripts, replies, outputs, prompts, faults and what the grader said. Filters hold for executions.");
    return;
  }
  let left = false;
  page.onLeave(() => {
    left = true;
  });
  run(values, results, state, () => left);
}

function read(form) {
  return Object.fromEntries(FIELDS.map((name) => [name, form.elements[name] ? form.elements[name].value.trim() : ""]));
}

function filterForm(values, runs, facets) {
  const options = (name, choices) => h("select", { name, "aria-label": name }, choices.map((choice) => {
    const [value, label] = Array.isArray(choice) ? choice : [choice, choice];
    return h("option", { value, selected: value === values[name] }, label);
  }));
  const field = (label, control) => h("label", {}, label, control);
  const input = (name, about) => h("input", { class: "short", name, value: values[name], placeholder: about, autocomplete: "off" });
  return h(
    "form",
    { class: "filters", role: "search" },
    field("text", h("input", { type: "search", name: "q", value: values.q, placeholder: "words", autocomplete: "off", "data-focus": true })),
    field("run", options("run", [["", "all runs"], ...runs.map((run) => [run.id, run.name])])),
    field("text in", options("role", [["", "everything"], ["designer", "the Designer's replies"], ["executor", "the agents' replies"]])),
    field("source", options("source", [["", "any"], ...facets.source])),
    field("structure", options("pattern", [["", "any"], ...facets.pattern])),
    field("fault", options("fault", [["", "any or none"], ["any", "with a fault"], ["none", "without a fault"], ...facets.fault])),
    field("solved", options("solved", [["", "any"], "yes", "no"])),
    field("reward", input("reward", "0 or >1")),
    field("agent", input("agent", "name")),
    field("from step", input("first", "0")),
    field("to step", input("last", "last")),
    h("button", { type: "submit" }, "Search"),
  );
}

async function run(values, results, state, hasLeft) {
  const { first, last, ...rest } = values;
  let cursor = "";
  let found = 0;
  const rewards = [];
  let most = MOST_RESULTS;
  replace(results);
  const step = async () => {
    while (!hasLeft()) {
      const answer = await get("search", { ...rest, first, last, cursor });
      if (hasLeft()) return;
      rewards.push(...answer.results.map((result) => result.reward ?? 0));
      scaleRewards([Math.max(...rewards, 0)]);
      results.append(...answer.results.map(resultRow));
      found += answer.results.length;
      cursor = answer.cursor;
      const done = !cursor;
      replace(state, `${number(found)} found${done ? "" : `, ${number(answer.searched)} of ${number(answer.files)} files searched…`}`);
      if (done) {
        state.dataset.done = "yes";
        return;
      }
      if (found >= most) {
        most += MOST_RESULTS;
        replace(state, `The first ${number(found)}. `, h("button", { type: "button", onclick: () => step() }, "search on"));
        return;
      }
    }
  };
  try {
    await step();
  } catch (error) {
    replace(state, note(error.message, "bad"));
  }
}

function resultRow(result) {
  const { run, step, task, design, execution, call } = result;
  const node = result.where === "question" ? { step, task } : execution === null ? { step, task, design } : { step, task, design, execution, ...(call === null ? {} : { call }) };
  return h(
    "a",
    { class: "result", href: toNode(run, node), "data-item": true },
    h("div", { class: "row" }, cell(result), h("span", { class: "small" }, `${run === "." ? "" : `${run} · `}step ${step} · task ${task}${execution === null ? (result.where === "question" ? "" : ` · design ${design}`) : ` · design ${design} · execution ${execution}`}`), result.pattern ? tag(result.pattern) : null, result.fault ? tag(result.fault, "bad") : null, h("span", { class: "faint small" }, result.where), h("span", { class: "muted small grow" }, result.where === "question" ? "" : result.question)),
    result.excerpt ? h("div", { class: "excerpt" }, marked(result.excerpt)) : null,
  );
}

// What was found stands between two control characters.
function marked(excerpt) {
  const [before, rest = ""] = excerpt.split("\u0002");
  const [found, after = ""] = rest.split("\u0003");
  return [before, h("mark", {}, found), after];
}
