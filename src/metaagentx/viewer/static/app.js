// The page: the bar at the top, routes, keys, themes. Everything below is drawn by the module of a page.

import { forgetCharts, redrawCharts } from "./charts.js";
import { h, replace, s } from "./dom.js";
import { comparePage } from "./page_compare.js";
import { runPage } from "./page_run.js";
import { runsPage } from "./page_runs.js";
import { searchPage } from "./page_search.js";
import { stepPage } from "./page_step.js";
import { treePage } from "./page_tree.js";
import { note } from "./parts.js";
import { above, parse, toRun, withQuery } from "./route.js";
import { exportStart, isExport } from "./store.js";

const THEME = "metaagentx-theme";
const KEYS = [
  ["?", "show or hide this list"],
  ["/", "search"],
  ["j  k", "next or previous item of a list; Enter opens it"],
  ["← → ↑ ↓", "move among the cells of a task, or the tokens of a reply"],
  ["[  ]", "previous or next step or task"],
  ["u", "up: from a call to its execution, task, step, run"],
  ["g r", "all runs"],
  ["g c", "curves of this run"],
  ["g s", "steps and trees of this run"],
  ["g e", "evaluations of this run"],
  ["g l", "log of this run"],
  ["t", "dark or light"],
];

const main = h("main", { id: "main", tabindex: "-1" });
const crumbs = h("nav", { class: "crumbs", "aria-label": "where you are" });
const live = h("span", { class: "live hidden", role: "status" }, "live");
const help = helpDialog();
let scope = "";
let before = null;
let after = null;
let leave = [];
let turn = 0;
let pending = "";

setTheme(storedTheme());
document.body.append(topBar(), main, help);
addEventListener("hashchange", show);
addEventListener("keydown", onKey);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(storedTheme()));
if (!location.hash && exportStart) history.replaceState(null, "", exportStart);
show();

async function show() {
  turn += 1;
  const mine = turn;
  const place = parse(location.hash);
  const old = main.dataset.page;
  const scroll = scrollY;
  const focus = document.activeElement?.getAttribute?.("href");
  // A page draws into an element of its own, which takes the place of the old one when it is complete.
  const next = h("div", {});
  const leaving = leave;
  leave = [];
  for (const end of leaving) end();
  before = after = null;
  const charts = document.querySelectorAll("figure.chart").length > 0;
  if (charts) forgetCharts();
  const page = pageFor(mine);
  const key = JSON.stringify([place.page, place.run, place.step, place.task]);
  const waiting = setTimeout(() => main.classList.add("waiting"), 250);
  try {
    if (place.page === "run" || place.page === "runs") replace(main, next);
    await pageOf(place)(next, place, page);
    if (mine !== turn) return;
    if (next.parentNode !== main) replace(main, next);
  } catch (error) {
    if (mine !== turn) return;
    page.crumbs(place.run === undefined ? [] : [[place.run, toRun(place.run)]]);
    replace(main, h("h1", {}, "Not shown"), note(error.message || String(error), "bad"), h("p", { class: "row" }, place.run === undefined ? null : h("a", { href: toRun(place.run, "steps") }, "Steps and trees of this run"), h("a", { href: "#/runs" }, "All runs")));
    if (!error.message) throw error;
  } finally {
    clearTimeout(waiting);
    main.classList.remove("waiting");
  }
  main.dataset.page = key;
  main.dataset.ready = String(mine);
  settle(place, key === old, scroll, focus);
}

// After a change within a page the view stays where it is; a new page begins at its top; a call is scrolled to.
function settle(place, same, scroll, focus) {
  const call = place.call === undefined ? null : document.getElementById(`call-${place.call}`);
  if (call) {
    const token = place.token === undefined ? null : call.querySelector(`[data-token="${place.token}"]`);
    (token || call).scrollIntoView({ block: token ? "center" : "start" });
  } else scrollTo(0, same ? scroll : 0);
  const again = focus ? [...document.querySelectorAll("main a")].find((each) => each.getAttribute("href") === focus) : null;
  if (same && again) again.focus({ preventScroll: true });
  else if (document.activeElement === document.body || !document.contains(document.activeElement)) main.focus({ preventScroll: true });
}

function pageOf(place) {
  if (place.page === "compare") return comparePage;
  if (place.page === "search") return searchPage;
  if (place.page !== "run") return runsPage;
  if (place.step === undefined) return runPage;
  return place.task === undefined ? stepPage : treePage;
}

// What a page may do to the frame around it; a page that was left changes nothing any more.
function pageFor(mine) {
  const current = (change) => (...values) => {
    if (mine === turn) change(...values);
  };
  live.classList.add("hidden");
  showCrumbs([]);
  return {
    crumbs: current(showCrumbs),
    scope: current((run) => { scope = run; }),
    neighbors: current((previous, next) => { [before, after] = [previous, next]; }),
    live: current((on) => live.classList.toggle("hidden", !on || isExport)),
    problem: current((error) => showProblem(error)),
    onLeave: (end) => { if (mine === turn) leave.push(end); else end(); },
  };
}

function showProblem(error) {
  main.querySelector("[data-problem]")?.remove();
  const box = note(error.message || String(error), "bad");
  box.dataset.problem = "yes";
  main.prepend(box);
}

function showCrumbs(path) {
  const all = isExport ? path : [["Runs", "#/runs"], ...path];
  replace(crumbs, all.map(([name, href], index) => [index ? h("span", { class: "sep", "aria-hidden": "true" }, "/") : null, h("a", { href, "aria-current": index === all.length - 1 ? "page" : null }, name)]));
  document.title = path.length ? `${path.map(([name]) => name).join(" / ")} · MetaAgent-X` : "MetaAgent-X";
}

function topBar() {
  const search = h("input", { type: "search", placeholder: "Search (press /)", "aria-label": "search", autocomplete: "off" });
  const form = h("form", { role: "search" }, search);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = withQuery("search", { q: search.value.trim(), run: scope }).slice(1);
    search.blur();
  });
  return h(
    "header",
    { class: "bar" },
    h("a", { class: "brand", href: isExport ? exportStart : "#/runs", "aria-label": "MetaAgent-X" }, logo(), h("span", {}, "MetaAgent-X")),
    crumbs,
    live,
    isExport ? null : form,
    h("button", { type: "button", class: "plain", title: "dark or light (t)", "aria-label": "dark or light", onclick: switchTheme }, "◐"),
    h("button", { type: "button", class: "plain", title: "keys (?)", "aria-label": "keyboard help", onclick: () => help.showModal() }, "?"),
  );
}

function logo() {
  return s("svg", { viewBox: "0 0 32 32", "aria-hidden": "true" }, s("rect", { width: 32, height: 32, rx: 7, fill: "#0b6e99" }), s("path", { d: "M9 16h5M19 11l-5 5 5 5", stroke: "#fff", "stroke-width": 2, fill: "none" }), s("circle", { cx: 8, cy: 16, r: 3.2, fill: "#fff" }), s("circle", { cx: 22, cy: 9.5, r: 3.2, fill: "#ffb454" }), s("circle", { cx: 22, cy: 22.5, r: 3.2, fill: "#fff" }));
}

function helpDialog() {
  const dialog = h("dialog", { "aria-label": "keys" }, h("h2", {}, "Keys"), h("div", { class: "keys" }, KEYS.map(([keys, meaning]) => [h("span", {}, keys.split(" ").filter(Boolean).map((key) => [h("kbd", {}, key), " "])), h("span", {}, meaning)])), h("p", { class: "muted small" }, "In a chart: drag to zoom, double-click to see all, click to open a step."), h("form", { method: "dialog" }, h("button", {}, "Close")));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return dialog;
}

function storedTheme() {
  let stored = null;
  try {
    stored = localStorage.getItem(THEME);
  } catch (error) {
    // A page from a file may have no storage: then the system decides.
  }
  return stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function setTheme(theme) {
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  redrawCharts();
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(THEME, theme);
  } catch (error) {
    // As above.
  }
  setTheme(theme);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox") {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (pending === "g") {
    pending = "";
    const tab = { c: "curves", s: "steps", e: "evaluations", l: "log" }[event.key];
    if (event.key === "r") go("#/runs");
    else if (tab && scope) go(toRun(scope, tab));
    return;
  }
  if (help.open && event.key !== "?") return;
  const action = ACTIONS[event.key];
  if (action && action(event) !== false) event.preventDefault();
}

const ACTIONS = {
  "?": () => (help.open ? help.close() : help.showModal()),
  "/": () => (document.querySelector("[data-focus]") || document.querySelector("header input"))?.focus(),
  t: () => switchTheme(),
  g: () => { pending = "g"; },
  u: () => go(above(parse(location.hash))),
  j: () => moveItem(1),
  k: () => moveItem(-1),
  "[": () => before && go(before),
  "]": () => after && go(after),
  ArrowRight: (event) => moveCell(event, 1, 0),
  ArrowLeft: (event) => moveCell(event, -1, 0),
  ArrowDown: (event) => moveCell(event, 0, 1),
  ArrowUp: (event) => moveCell(event, 0, -1),
};

function go(href) {
  location.hash = href.slice(1);
}

function moveItem(step) {
  const items = [...main.querySelectorAll("[data-item]")];
  const at = items.indexOf(document.activeElement);
  const next = items[at < 0 ? (step > 0 ? 0 : items.length - 1) : at + step];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

// Among the cells of a task the arrows move the focus; elsewhere they scroll, as usual.
function moveCell(event, columns, rows) {
  const cell = event.target.closest?.("[data-cell]");
  if (!cell) return false;
  const column = Number(cell.dataset.column) + columns;
  const row = Number(cell.dataset.cell) + rows;
  const next = main.querySelector(`[data-column="${column}"][data-cell="${row}"]`);
  next?.focus();
  return true;
}
