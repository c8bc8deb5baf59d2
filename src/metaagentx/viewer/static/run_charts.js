// Which charts a run has, and which metrics each shows.

import { LINE_COLORS } from "./charts.js";

const ROLES = [
  ["executor", "Executor", undefined],
  ["designer", "Designer", [8, 4]],
];
const MOST_LINES = 7;

// Returns sections of charts: { title, large, charts: [{ title, caption, scale, stacked, smoothed, lines(curves) }] }.
export function chartSections() {
  return [
    { title: "Learning", large: true, charts: [rewards(), solved()] },
    { title: "Designs", large: true, charts: [patterns(), bySource()] },
    { title: "Groups and faults", charts: groups() },
    { title: "Updates", charts: updates() },
    { title: "Work", charts: work() },
  ];
}

function rewards() {
  return { title: "Reward of both roles", caption: "Mean reward of the executions and of the designs.", lines: (curves) => byRole(curves, "reward/{}") };
}

function solved() {
  return {
    title: "Solved in training and held-out",
    caption: "Share of executions that solve their task; dots: of held-out tasks.",
    scale: "share",
    lines: (curves) => named(curves, { training: "solved" }).concat(dots(curves.get("evaluation/solved"))),
  };
}

function patterns() {
  return {
    title: "Workflow patterns",
    caption: "Share of each pattern among the designs that can run.",
    scale: "share",
    stacked: true,
    lines: (curves) => mergeSmallest(curves.group("pattern", [], true)),
  };
}

function bySource() {
  return { title: "Solved, by source", caption: "Share of executions that solve their task.", scale: "share", lines: (curves) => lines(curves.group("solved").map(([name, values]) => [shortSource(name), values, name])) };
}

function groups() {
  return [
    { title: "Parts of the reward", caption: "Means before the recipe's weights; the cost is subtracted.", lines: (curves) => named(curves, { outcome: "reward/outcome", solution: "reward/solution", delivery: "reward/delivery", cost: "reward/cost" }) },
    { title: "Faults", caption: "Share of designs and of executions with a fault of the model.", scale: "rate", lines: (curves) => named(curves, { designs: "faults/designs", executions: "faults/executions" }) },
    { title: "Faults by kind", caption: "Number in a step.", missing: "no fault in any step", lines: (curves) => lines(curves.group("faults", ["designs", "executions"], true).filter(([, values]) => values.some((value) => value))) },
    { title: "Spread of rewards", caption: "Between the designs of a task, which the Designer learns from, and within a design.", lines: (curves) => named(curves, { between: "spread/between", within: "spread/within" }) },
    { title: "Variety of designs", caption: "Share that can run, and share of different scripts for a task.", scale: "share", lines: (curves) => named(curves, { valid: "designs/valid", distinct: "designs/distinct" }) },
    { title: "Entropy of patterns", caption: "In nats; 0 when all designs of a step have the same pattern.", lines: (curves) => named(curves, { entropy: "designs/entropy" }) },
    { title: "Groups that teach nothing", caption: "Share of tasks in which a role's advantages are all 0.", scale: "share", lines: (curves) => byRole(curves, "groups/{}_flat") },
    { title: "Size of advantages", caption: "Mean absolute advantage of the calls of a role.", lines: (curves) => byRole(curves, "advantage/{}_abs") },
  ];
}

function updates() {
  return [
    { title: "Gradient norm", caption: "Before clipping.", optional: true, lines: (curves) => byRole(curves, "{}/grad_norm") },
    { title: "KL divergence", caption: "Between the sampling policy and the trained one.", optional: true, lines: (curves) => byRole(curves, "{}/approx_kl") },
    { title: "Clipped tokens", caption: "Share of tokens whose ratio was clipped.", scale: "rate", optional: true, lines: (curves) => byRole(curves, "{}/clip_share") },
    { title: "Entropy", caption: "Of the trained tokens, in nats.", optional: true, lines: (curves) => byRole(curves, "{}/entropy") },
    { title: "Loss", caption: "Of the updates of a role.", optional: true, lines: (curves) => byRole(curves, "{}/loss") },
    { title: "Learning rate", caption: "Of the role that learns.", optional: true, lines: (curves) => byRole(curves, "learning_rate/{}") },
  ];
}

function work() {
  return [
    { title: "Seconds by phase", caption: "Time of a step by phase.", stacked: true, smoothed: false, lines: (curves) => mergeSmallest(curves.group("seconds", ["step", "execution"], true)) },
    { title: "Tokens", caption: "Mean tokens of an execution and of a design.", lines: (curves) => named(curves, { execution: "tokens/per_execution", design: "tokens/per_design" }) },
    { title: "Calls per execution", caption: "Mean number of replies of the Executor.", lines: (curves) => named(curves, { calls: "calls/per_execution" }) },
    { title: "Replies cut off", caption: "Share of replies of both roles that ended at the token limit.", scale: "rate", lines: (curves) => named(curves, { "cut off": "replies/cut" }) },
  ];
}

export function shortSource(source) {
  const name = source.split("?")[0];
  return name.split(":").pop().split("/").pop() || source;
}

function lines(pairs) {
  return pairs
    .filter(([, values]) => values && values.some((value) => value !== null))
    .slice(0, LINE_COLORS.length)
    .map(([name, values, title], index) => ({ name, values, title, color: LINE_COLORS[index], gaps: false }));
}

function named(curves, metrics) {
  return lines(Object.entries(metrics).map(([name, metric]) => [name, curves.get(metric)]));
}

function byRole(curves, pattern) {
  const found = ROLES.map(([role, name, dash]) => ({ name, values: curves.get(pattern.replace("{}", role)), color: role, dash, gaps: pattern.startsWith("{}") || pattern.startsWith("learning_rate") }));
  return found.filter((line) => line.values);
}

function dots(values) {
  return values ? [{ name: "held-out", values, color: "ink", dots: true }] : [];
}

function mergeSmallest(pairs) {
  if (pairs.length <= MOST_LINES) return lines(pairs);
  const rest = pairs.slice(MOST_LINES - 1);
  const total = rest[0][1].map((_, row) => rest.reduce((sum, [, values]) => (values[row] === null ? sum : (sum || 0) + values[row]), null));
  return lines([...pairs.slice(0, MOST_LINES - 1), ["all others", total]]);
}
