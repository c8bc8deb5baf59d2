// Long texts, messages with the source of each part, and replies token by token.

import { h, replace } from "./dom.js";
import { byCharacters, count, fixed, percent } from "./format.js";

const MOST_TOKENS = 6000;
const SOURCES = {
  question: "the question",
  reply: "the reply of call {}",
  tool: "the output of the program or tool of call {}",
  instruction: "a text of the workflow language",
  script: "written by the script",
};
// From which log-probability downwards a token is shaded, by level.
const LEVELS = [-0.1, -0.7, -1.6, -3, -5];

// Returns a text, and if it was cut, a button that loads the rest.
export function longText(content, whole, load) {
  const box = h("div", { class: "text", tabindex: content.length > 1500 ? "0" : null }, content);
  if (!whole) return box;
  return h("div", {}, box, moreButton(box, content, whole, load));
}

// Returns a message of a prompt. spans: [source, length, call] of each part, or null.
export function messageText(content, spans, whole, load) {
  if (!spans || !spans.length) return longText(content, whole, load);
  const letters = byCharacters(content);
  const parts = [];
  let at = 0;
  for (const [source, length, call] of spans) {
    if (at >= letters.length) break;
    const title = (SOURCES[source] || source).replace("{}", call);
    parts.push(h("span", { class: `src-${source}`, title }, letters.slice(at, at + length)));
    at += length;
  }
  if (at < letters.length) parts.push(letters.slice(at, letters.length));
  const box = h("div", { class: "text", tabindex: content.length > 1500 ? "0" : null }, parts);
  return whole ? h("div", {}, box, moreButton(box, content, whole, load)) : box;
}

// Returns a reply with each token shaded by its log-probability. onToken(index) is called for a token that is chosen.
export function replyText(call, shaded, chosen, onToken, whole, load) {
  const known = call.lengths && call.lengths.length > 0 && call.logprobs.length === call.lengths.length;
  if (!shaded || !known || whole) return longText(call.text, whole, load);
  const letters = byCharacters(call.text);
  const parts = [];
  let at = 0;
  const shown = Math.min(call.lengths.length, MOST_TOKENS);
  for (let index = 0; index < shown; index += 1) {
    const text = letters.slice(at, at + call.lengths[index]);
    at += call.lengths[index];
    const level = LEVELS.filter((limit) => call.logprobs[index] < limit).length;
    const names = `token lp${level}${text ? "" : " end"}${index === chosen ? " chosen" : ""}`;
    parts.push(h("span", { class: names, "data-token": index, title: tokenTitle(call, index) }, text || "∎"));
  }
  if (at < letters.length) parts.push(letters.slice(at, letters.length));
  const box = h("div", { class: "text tokens", tabindex: "0", role: "group", "aria-label": "tokens; arrow keys choose one" }, parts);
  box.addEventListener("click", (event) => {
    const token = event.target.closest("[data-token]");
    if (token) onToken(Number(token.dataset.token));
  });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const current = box.querySelector(".token.chosen");
    const next = current ? Number(current.dataset.token) + step : 0;
    if (next >= 0 && next < shown) onToken(next);
  });
  return box;
}

export function tokenTitle(call, index) {
  const value = call.logprobs[index];
  return `token ${index} of ${call.lengths.length}: log-probability ${fixed(value)}, probability ${percent(Math.exp(value), 1)}`;
}

export function shadingScale() {
  return h("span", { class: "scale" }, h("span", {}, "sure"), [0, 1, 2, 3, 4, 5].map((level) => h("i", { class: `lp${level}`, title: level ? `log-probability below ${LEVELS[level - 1]}` : "log-probability near 0" })), h("span", {}, "unlikely"));
}

function moreButton(box, content, whole, load) {
  const button = h("button", { type: "button", class: "small" }, `show all ${count(whole, "character")}`);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      replace(box, await load());
      button.remove();
    } catch (error) {
      button.textContent = error.message;
    }
  });
  return h("p", { class: "muted small" }, `${count(whole - content.length, "more character")} not shown. `, load ? button : null);
}
