// One execution: how it ended, its timeline, and its calls with messages, deliveries and tokens.

import { h, replace } from "./dom.js";
import { count, duration, fixed, percent, signed } from "./format.js";
import { facts, note, tag } from "./parts.js";
import { isExport } from "./store.js";
import { longText, messageText, replyText, shadingScale, tokenTitle } from "./texts.js";
import { timeline } from "./timeline.js";

const SHADING = "metaagentx-shading";

export function executionView({ tree, detail, place, design, execution, link, loadText }) {
  const run = detail.execution;
  const whole = tree.designs[design].executions[execution];
  const path = `designs.${design}.executions.${execution}`;
  const toCall = (call) => link({ design, execution, call });
  const state = { shaded: remembered(), cards: [] };
  const context = { run, detail, place, path, link: (call, token) => link({ design, execution, call, token }), loadText: (part) => loadText(`${path}.${part}`), cut: (part) => detail.cut[`execution.${part}`], state };
  return h(
    "section",
    { "data-execution": execution },
    h("h2", {}, `Execution ${execution} of design ${design}`),
    ending(run, detail, toCall),
    timelinePanel(run, detail, place, toCall),
    callsHead(detail, state, context),
    h("div", { class: "calls" }, run.calls.map((call, index) => callCard(call, detail.start + index, context))),
    pages(detail, toCall),
    toolsPanel(run),
    run.log ? h("details", { class: "panel" }, h("summary", {}, "What the script printed"), longText(run.log)) : null,
    whole ? null : note("This execution is not in the tree."),
  );
}

function ending(run, detail, toCall) {
  const { reward, fault, answer } = run;
  const parts = reward ? [["outcome", reward.outcome], ["solution", reward.solution], ["delivery", reward.delivery], ["cost", reward.cost]] : [];
  const from = answer ? (answer.call === null ? "no call wrote it" : h("a", { href: toCall(answer.call) }, `call ${answer.call}`)) : null;
  return h(
    "div",
    { class: "panel" },
    h("div", { class: "parts" }, reward ? tag(reward.solved ? "✓ solved" : "✗ not solved", reward.solved ? "good" : "bad") : tag("no reward", "warn"), h("span", {}, "reward ", h("b", {}, fixed(reward ? reward.total : null))), parts.map(([name, value]) => h("span", { class: "muted" }, `${name} `, h("b", {}, fixed(value))))),
    fault ? note([h("b", {}, fault.kind), ` ${fault.message}`], "bad") : null,
    run.fed && !fault ? note(["fed: ", run.fed, "; the recipe rewards that"]) : null,
    facts([
      ["answer", answer ? h("code", {}, answer.value === null ? "" : String(answer.value).slice(0, 2000)) : "none"],
      ["came from", from],
      ["grader", reward ? reward.reason || (reward.solved ? "accepts the answer" : "does not accept the answer") : "was not asked"],
      ["took", `${duration(run.seconds)}, ${count(detail.outline.length, "call")}`],
    ]),
  );
}

function timelinePanel(run, detail, place, toCall) {
  if (!detail.outline.length) return h("p", { class: "muted" }, "No call was made.");
  const box = h("div", { class: "timeline" });
  const draw = () => {
    const width = Math.max(320, box.clientWidth || 800);
    const { drawing, notes } = timeline({ calls: detail.outline, heard: detail.heard, tools: run.tools, seconds: run.seconds, started: run.started, chosen: place.call, link: toCall }, width);
    replace(box, drawing, notes.map((text) => h("p", { class: "muted small" }, text)));
  };
  let drawn = 0;
  new ResizeObserver(() => {
    if (Math.abs(box.clientWidth - drawn) > 4) {
      drawn = box.clientWidth;
      draw();
    }
  }).observe(box);
  return h("div", { class: "panel" }, h("h3", {}, "Timeline"), h("p", { class: "muted small" }, "A bar is a call; a line leads from a reply to the call whose prompt has it."), box);
}

function callsHead(detail, state, context) {
  const known = context.run.calls.some((call) => call.lengths && call.lengths.length);
  const toggle = h("button", { type: "button", "aria-pressed": String(state.shaded), disabled: !known }, "shade tokens");
  toggle.addEventListener("click", () => {
    state.shaded = !state.shaded;
    remember(state.shaded);
    toggle.setAttribute("aria-pressed", String(state.shaded));
    for (const redraw of state.cards) redraw();
  });
  return h("div", { class: "row" }, h("h3", { class: "grow" }, `${count(detail.outline.length, "call")}`), known ? [shadingScale(), toggle] : h("span", { class: "muted small" }, detail.outline.length ? "Log-probabilities were not recorded." : ""));
}

function callCard(call, index, context) {
  const { place, detail, cut } = context;
  const chosen = place.call === index;
  const local = index - detail.start;
  const sources = detail.sources ? detail.sources[local] : null;
  const delivery = detail.deliveries ? detail.deliveries[local] : null;
  const prompt = h("details", { open: chosen && place.token === undefined }, h("summary", { class: "small" }, `prompt: ${count(call.messages.length, "message")}, ${count(call.prompt_tokens, "token")}`));
  // Prompts are long and mostly closed: they are drawn when somebody opens them.
  const fillPrompt = () => {
    if (prompt.dataset.filled || !prompt.open) return;
    prompt.dataset.filled = "yes";
    prompt.append(...call.messages.map((message, at) => h("div", { class: "message" }, h("div", { class: "who" }, message.role), messageText(message.content || "", sources && sources[at], cut(`calls.${local}.messages.${at}.content`), context.loadText(`calls.${index}.messages.${at}.content`)))));
  };
  prompt.addEventListener("toggle", fillPrompt);
  fillPrompt();
  return h(
    "article",
    { class: `call-card${chosen ? " chosen" : ""}`, id: `call-${index}`, "data-call": index },
    h("header", {}, h("b", {}, h("a", { href: context.link(index), "data-item": true }, `${index} · ${call.agent}`)), h("span", { class: "muted" }, `${count(call.tokens, "token")} · ${duration(call.seconds)}`), h("span", { class: "muted" }, "advantage ", h("b", { class: call.advantage > 0 ? "good" : call.advantage < 0 ? "bad" : null }, signed(call.advantage))), call.finish === "length" ? tag("cut off at the limit", "warn") : h("span", { class: "faint small" }, `stopped: ${call.finish}`)),
    h("div", { class: "body" }, prompt, h("div", { class: "message reply" }, h("div", { class: "who" }, "reply"), replyBox(call, index, local, context)), delivery ? h("div", { class: "delivery" }, h("div", { class: "who" }, "hands on"), delivery) : null),
  );
}

function replyBox(call, index, local, context) {
  const { place, state } = context;
  const box = h("div", {});
  const info = h("div", { class: "token-info", role: "status" });
  let chosen = place.call === index ? place.token : undefined;
  const describe = () => replace(info, chosen === undefined || !call.logprobs.length ? null : [tokenTitle(call, chosen), call.advantage === null ? null : [" · advantage ", h("b", {}, signed(call.advantage))]]);
  const choose = (token) => {
    chosen = token;
    history.replaceState(null, "", context.link(index, token));
    draw();
    box.querySelector(".tokens")?.focus({ preventScroll: true });
  };
  const draw = () => {
    replace(box, replyText(call, state.shaded, chosen, choose, context.cut(`calls.${local}.text`), context.loadText(`calls.${index}.text`)), info);
    describe();
  };
  state.cards.push(draw);
  draw();
  const mean = call.logprobs.length ? call.logprobs.reduce((sum, value) => sum + value, 0) / call.logprobs.length : null;
  return mean === null ? box : h("div", {}, box, h("p", { class: "faint small" }, `mean log-probability ${fixed(mean)}, per token ${percent(Math.exp(mean))}`));
}

function pages(detail, toCall) {
  const total = detail.outline.length;
  const shown = detail.execution.calls.length;
  if (total <= shown) return null;
  if (isExport) return h("p", { class: "muted small" }, `This file has the first ${shown} of ${total} calls.`);
  const before = detail.start > 0 ? h("a", { href: toCall(detail.start - 1) }, "← earlier calls") : null;
  const after = detail.start + shown < total ? h("a", { href: toCall(detail.start + shown) }, "later calls →") : null;
  return h("p", { class: "row" }, `Calls ${detail.start} to ${detail.start + shown - 1} of ${total}. `, before, after);
}

function toolsPanel(run) {
  if (!run.tools.length && !run.programs.length) return null;
  return h(
    "div",
    { class: "panel", "data-tools": true },
    h("h3", {}, "Tools"),
    run.tools.map((tool) => h("details", {}, h("summary", {}, h("b", {}, tool.name), ` ${duration(tool.seconds)}`, tool.failed ? tag("failed", "bad") : null), h("div", { class: "who" }, "arguments"), longText(tool.arguments), h("div", { class: "who" }, "result"), longText(tool.result))),
    run.programs.map((program, index) => h("details", {}, h("summary", {}, `output ${index} of what call ${program.call} wrote or called`), longText(program.output))),
  );
}

function remembered() {
  try {
    return localStorage.getItem(SHADING) !== "off";
  } catch (error) {
    return true;
  }
}

function remember(shaded) {
  try {
    localStorage.setItem(SHADING, shaded ? "on" : "off");
  } catch (error) {
    // A page from a file may have no storage: then the choice holds for this page.
  }
}
