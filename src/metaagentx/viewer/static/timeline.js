// The calls of an execution over time: one lane for each agent, who was busy when, and who heard from whom.

import { s } from "./dom.js";
import { clip, count, duration } from "./format.js";

const LANE = 22;
const LEFT = 128;
const MOST_CALLS = 400;
const MOST_LANES = 40;

// calls: figures of all calls. heard: for each call those whose replies its prompt has. tools: calls of offered tools.
export function timeline({ calls, heard, tools, seconds, started, chosen, link }, width) {
  const shown = calls.slice(0, MOST_CALLS);
  const known = shown.length > 0 && shown.every((call) => call.started > 0);
  const begin = known ? Math.min(started || Infinity, ...shown.map((call) => call.started)) : 0;
  const spans = [];
  let clock = 0;
  for (const call of shown) {
    const from = known ? call.started - begin : clock;
    spans.push([from, from + call.seconds]);
    clock = from + call.seconds;
  }
  const end = Math.max(1e-6, known ? seconds : 0, ...spans.map(([, till]) => till));
  const names = [...new Set(shown.map((call) => call.agent))];
  const lanes = new Map(names.map((name, index) => [name, Math.min(index, MOST_LANES - 1)]));
  const timed = (tools || []).filter((tool) => known && tool.started > 0);
  const rows = Math.min(names.length, MOST_LANES) + (timed.length ? 1 : 0);
  const height = rows * LANE + 30;
  const x = (time) => LEFT + (time / end) * (width - LEFT - 12);
  const y = (agent) => lanes.get(agent) * LANE + 4;
  const parts = [];
  for (let lane = 0; lane < rows; lane += 1) parts.push(s("rect", { class: "lane", x: LEFT, y: lane * LANE + 3, width: width - LEFT - 12, height: LANE - 4, rx: 4 }));
  names.slice(0, MOST_LANES).forEach((name, lane) => parts.push(s("text", { x: LEFT - 8, y: lane * LANE + 17, "text-anchor": "end" }, clip(lane === MOST_LANES - 1 && names.length > MOST_LANES ? "all others" : name, 18), s("title", {}, name))));
  shown.forEach((call, index) => {
    for (const from of (heard && heard[index]) || []) {
      if (from >= index || !spans[from]) continue;
      const [x1, y1] = [x(spans[from][1]), y(shown[from].agent) + 8];
      const [x2, y2] = [x(spans[index][0]), y(call.agent) + 8];
      if (y1 !== y2) parts.push(s("path", { class: "heard", d: `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` }));
    }
  });
  shown.forEach((call, index) => {
    const [from, till] = spans[index];
    const kind = `call ${call.role === "designer" ? "designer" : ""} ${call.finish === "length" ? "cutoff" : ""} ${index === chosen ? "chosen" : ""}`;
    const bar = s("rect", { class: kind, x: x(from), y: y(call.agent), width: Math.max(3, x(till) - x(from)), height: LANE - 6, rx: 3 });
    const about = `call ${index}, ${call.agent}: ${count(call.tokens, "token")}, ${duration(call.seconds)}${known ? `, from ${duration(from)} on` : ""}`;
    parts.push(link ? s("a", { href: link(index), "aria-label": about }, s("title", {}, about), bar) : bar);
  });
  for (const tool of timed) {
    const from = tool.started - begin;
    parts.push(s("rect", { class: "tool", x: x(from), y: (rows - 1) * LANE + 5, width: Math.max(3, x(from + tool.seconds) - x(from)), height: LANE - 8, rx: 3 }, s("title", {}, `${tool.name}: ${duration(tool.seconds)}`)));
  }
  if (timed.length) parts.push(s("text", { x: LEFT - 8, y: (rows - 1) * LANE + 17, "text-anchor": "end" }, "tools"));
  const base = rows * LANE + 4;
  parts.push(s("line", { class: "axis", x1: LEFT, x2: width - 12, y1: base, y2: base }));
  for (const part of width < 500 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) parts.push(s("text", { x: x(end * part), y: base + 16, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, duration(end * part)));
  const drawing = s("svg", { width, height, role: "img", "aria-label": `timeline of ${count(calls.length, "call")}` }, parts);
  const notes = [];
  if (!known) notes.push("Start times were not recorded: the calls are drawn one after the other.");
  if (calls.length > MOST_CALLS) notes.push(`The first ${MOST_CALLS} of ${calls.length} calls.`);
  return { drawing, notes };
}
