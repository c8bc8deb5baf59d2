// Small parts that several pages share.

import { h } from "./dom.js";
import { clip, fixed, number, percent } from "./format.js";
import { keyOf, isExport } from "./store.js";

let top = 1;

// Sets which reward has the full color: the largest one that a page shows, and at least 1.
export function scaleRewards(rewards) {
  top = Math.max(1, ...rewards.filter((reward) => reward !== null && reward !== undefined));
}

// A reward as a colored cell; `solved` adds a check, a fault its sign.
export function cell(execution, properties = {}, small = false) {
  const { reward, solved, fault } = execution;
  const missing = reward === null || reward === undefined;
  const infra = fault === "infra";
  const title = [properties.title, fault ? `fault: ${fault}` : null, missing ? "no reward" : `reward ${number(reward)}`, solved ? "solved" : "not solved"].filter(Boolean).join(", ");
  const part = missing ? 0 : Math.max(0, Math.min(1, reward / top));
  const tag = properties.href ? "a" : "span";
  const text = small ? "" : [solved ? "✓" : fault ? "!" : "", " ", missing ? "–" : fixed(reward)];
  return h(tag, { ...properties, class: `cell${missing ? " none" : ""}${infra ? " infra" : ""}${small ? " dot-only" : ""} ${properties.class || ""}`, vars: { "--r": String(part) }, title, "aria-label": title }, text);
}

export function tag(text, kind = "", title = null) {
  return h("span", { class: `tag ${kind}`, title: title || (text.length > 40 ? text : null) }, clip(text, 60));
}

export function stateTag(state) {
  return h("span", { class: `state ${state}` }, h("i", { class: "dot", "aria-hidden": "true" }), state);
}

export function solvedText(share) {
  return share === null || share === undefined ? "–" : percent(share);
}

export function note(text, kind = "") {
  return h("div", { class: `note ${kind}`, role: kind === "bad" ? "alert" : null }, text);
}

export function table(head, rows, textColumns = 1, className = () => null) {
  const kind = (index) => (index < textColumns ? null : "num");
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" },
    h("table", { class: "fit" }, h("thead", {}, h("tr", {}, head.map((name, index) => h("th", { class: kind(index), scope: "col" }, name)))), h("tbody", {}, rows.map((row) => h("tr", { class: className(row) }, row.map((value, index) => h("td", { class: kind(index) }, value)))))),
  );
}

export function tabs(items, current) {
  return h("nav", { class: "tabs", "aria-label": "views of this run" }, items.map(([name, label, href]) => h("a", { href, "aria-current": name === current ? "page" : null }, label)));
}

export function exportButton(parameters, label) {
  if (isExport) return null;
  return h("a", { class: "small", href: keyOf("export", parameters), download: true, title: "one HTML file that needs no server" }, label);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function progress(done, total, what) {
  if (done >= total) return null;
  return h("div", { class: "small muted", role: "status", "data-progress": "index" }, `Reading ${what}: ${done.toLocaleString("en-US")} of ${total.toLocaleString("en-US")} files. `, h("div", { class: "bar-line" }, h("i", { vars: { "--part": String(done / Math.max(1, total)) } })));
}

export function link(href, ...children) {
  return h("a", { href }, children);
}
