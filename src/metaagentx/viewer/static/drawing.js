// A workflow as a drawing: its nodes as the script reported them, inside one another, and who hands on to whom. With the
// calls of an execution, the path that was really taken is highlighted, with tokens and time of each agent.

import { s } from "./dom.js";
import { clip, duration } from "./format.js";

const LETTER = 6.6;
const GAP_X = 44;
const GAP_Y = 12;
const PAD = 12;
const HEAD = 22;
const DEEPEST = 12;
// Nodes that share nodes below them are drawn with copies, whose number would grow exponentially.
const MOST_BOXES = 300;
let drawings = 0;

// structure: as saved in a tree. calls: [{agent, tokens, seconds}] or null. link(call): the address of a call.
export function workflowDrawing(structure, calls, link) {
  if (!structure || !structure.nodes.length) return null;
  const taken = calls && calls.length ? byAgent(calls) : null;
  drawings += 1;
  const context = { nodes: structure.nodes, edges: structure.edges, taken, link, id: `drawing-${drawings}`, left: MOST_BOXES };
  const root = measure(context, 0, 0, new Set());
  const width = root.width + 2;
  const height = root.height + 2;
  return s(
    "svg",
    { width, height, viewBox: `-1 -1 ${width} ${height}`, role: "img", "aria-label": describe(structure, taken) },
    s("defs", {}, marker(context.id, ""), marker(`${context.id}-taken`, "taken")),
    draw(context, root, 0, 0),
  );
}

function byAgent(calls) {
  const agents = new Map();
  calls.forEach((call, index) => {
    const known = agents.get(call.agent) || { calls: 0, tokens: 0, seconds: 0, first: index };
    known.calls += 1;
    known.tokens += call.tokens;
    known.seconds += call.seconds;
    agents.set(call.agent, known);
  });
  return agents;
}

function describe(structure, taken) {
  const agents = structure.nodes.filter((node) => node.kind === "agent").map((node) => node.name);
  const path = taken ? `; agents that were called: ${[...taken.keys()].slice(0, 20).join(", ")}` : "";
  return clip(`workflow ${structure.pattern} of ${agents.join(", ")}${path}`, 400);
}

// Returns a box: an agent, or a group of boxes in columns. Nodes only ever refer to later ones, so this ends.
function measure(context, index, depth, above) {
  const node = context.nodes[index];
  context.left -= 1;
  const used = context.taken && node.kind === "agent" ? context.taken.get(node.name) : null;
  if (node.kind === "agent" || !node.children.length || depth > DEEPEST || above.has(index)) return measureLeaf(node, index, used);
  const inside = new Set(above).add(index);
  const known = [...new Set(node.children)].filter((child) => context.nodes[child]);
  // A sequence of one node, such as the workflow itself, is drawn as that node.
  if (node.kind === "sequence" && known.length === 1) return measure(context, known[0], depth, inside);
  const boxes = new Map();
  for (const child of known) if (context.left > 0) boxes.set(child, measure(context, child, depth + 1, inside));
  const children = [...boxes.keys()];
  if (!children.length) return measureLeaf(node, index, used);
  const times = new Map();
  for (const child of node.children) times.set(child, (times.get(child) || 0) + 1);
  const edges = context.edges.filter(([from, till]) => boxes.has(from) && boxes.has(till));
  const columns = layers(children, edges);
  let x = PAD;
  let height = 0;
  for (const column of columns) {
    const widest = Math.max(...column.map((child) => boxes.get(child).width));
    let y = HEAD + PAD;
    for (const child of column) {
      const box = boxes.get(child);
      box.x = x + (widest - box.width) / 2;
      box.y = y;
      y += box.height + GAP_Y;
    }
    height = Math.max(height, y - GAP_Y + PAD);
    x += widest + GAP_X;
  }
  for (const column of columns) {
    const last = boxes.get(column[column.length - 1]);
    const shift = (height - PAD - (last.y + last.height)) / 2;
    for (const child of column) boxes.get(child).y += shift;
  }
  const back = edges.some(([from, till]) => boxes.get(from).x >= boxes.get(till).x);
  const label = `${node.name} · ${node.kind}${node.rounds > 1 ? ` · up to ${node.rounds} rounds` : ""}${children.length < known.length ? " · drawn in part" : ""}`;
  const width = Math.max(x - GAP_X + PAD, Math.min(label.length, 40) * LETTER + 2 * PAD);
  return { node, index, boxes, edges, times, label, width, height: height + (back ? 14 : 0), used: [...boxes.values()].some((box) => box.used) };
}

function measureLeaf(node, index, used) {
  const name = clip(node.name, 26);
  const tools = node.tools && node.tools.length ? clip(`tools: ${node.tools.join(", ")}`, 34) : "";
  const note = node.kind === "agent" ? "" : node.kind;
  const figures = used ? `${used.calls > 1 ? `${used.calls}× · ` : ""}${used.tokens} tokens · ${duration(used.seconds)}` : "";
  const rows = [tools || note, figures].filter(Boolean);
  const letters = Math.max(name.length * 1.06, ...rows.map((row) => row.length * 0.94), 8);
  return { node, index, name, rows, used, width: letters * LETTER + 24, height: 24 + 15 * rows.length + 4 };
}

// Columns of children: each after those that hand on to it; edges that close a loop do not count.
function layers(children, edges) {
  const depth = new Map();
  const path = new Set();
  const incoming = new Map(children.map((child) => [child, edges.filter(([, till]) => till === child).map(([from]) => from)]));
  const order = new Map(children.map((child, position) => [child, position]));
  const visit = (child) => {
    if (depth.has(child)) return depth.get(child);
    path.add(child);
    let deepest = 0;
    for (const from of incoming.get(child)) {
      if (path.has(from) || order.get(from) >= order.get(child)) continue;
      deepest = Math.max(deepest, visit(from) + 1);
    }
    path.delete(child);
    depth.set(child, deepest);
    return deepest;
  };
  children.forEach(visit);
  const columns = [];
  for (const child of children) (columns[depth.get(child)] ||= []).push(child);
  return columns.filter(Boolean);
}

function draw(context, box, x, y) {
  if (!box.boxes) return drawAgent(context, box, x, y);
  const parts = [s("rect", { class: "group", x, y, width: box.width, height: box.height, rx: 9 }), s("text", { class: "sub", x: x + PAD, y: y + 16 }, clip(box.label, Math.floor((box.width - PAD) / 5.6)))];
  for (const edge of box.edges) parts.push(drawEdge(context, box, edge, x, y));
  for (const [child, inner] of box.boxes) {
    parts.push(draw(context, inner, x + inner.x, y + inner.y));
    const times = box.times.get(child);
    if (times > 1) parts.push(s("text", { class: "sub", x: x + inner.x + inner.width - 20, y: y + inner.y - 2 }, `${times}×`));
  }
  return s("g", {}, parts);
}

function drawAgent(context, box, x, y) {
  const middle = x + box.width / 2;
  const state = !context.taken ? "" : box.used ? "taken" : "untaken";
  const content = [
    s("rect", { class: "agent", x, y, width: box.width, height: box.height, rx: 7 }),
    s("text", { x: middle, y: y + 18, "text-anchor": "middle", "font-weight": 600 }, box.name),
    box.rows.map((row, index) => s("text", { class: "sub", x: middle, y: y + 34 + 15 * index, "text-anchor": "middle" }, row)),
  ];
  const title = s("title", {}, `${box.node.name}: ${box.node.kind}, at most ${box.node.rounds} ${box.node.kind === "agent" ? "turns" : "rounds"}`);
  if (box.used && context.link) return s("g", { class: state }, s("a", { href: context.link(box.used.first) }, title, content));
  return s("g", { class: state }, title, content);
}

function drawEdge(context, box, [from, till], x, y) {
  const a = box.boxes.get(from);
  const b = box.boxes.get(till);
  const taken = context.taken && a.used && b.used;
  const end = `url(#${context.id}${taken ? "-taken" : ""})`;
  const properties = { class: `edge${taken ? " taken" : ""}`, "marker-end": end };
  if (b.x > a.x + a.width / 2) {
    const [x1, y1] = [x + a.x + a.width, y + a.y + a.height / 2];
    const [x2, y2] = [x + b.x - 2, y + b.y + b.height / 2];
    const bend = Math.min(GAP_X * 0.7, (x2 - x1) / 2);
    return s("path", { ...properties, d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
  }
  // Backwards: below the boxes.
  const [x1, y1] = [x + a.x + a.width / 2, y + a.y + a.height];
  const [x2, y2] = [x + b.x + b.width / 2, y + b.y + b.height + 2];
  const low = y + box.height - 6;
  return s("path", { ...properties, "stroke-dasharray": "5 3", d: `M${x1} ${y1}C${x1} ${low} ${x1} ${low} ${(x1 + x2) / 2} ${low}S${x2} ${low} ${x2} ${y2}` });
}

function marker(id, kind) {
  return s("marker", { id, class: kind, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0 0L8 4L0 8Z" }));
}
