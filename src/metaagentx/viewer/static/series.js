// Metrics as columns over steps: smoothing, groups by prefix, and what grows while a run is in progress.

export class Curves {
  constructor() {
    this.generation = 0;
    this.steps = [];
    this.columns = {};
  }

  // Adds an answer of the server; returns whether anything is new.
  add(answer) {
    if (answer.generation !== this.generation || answer.start === 0) {
      this.generation = answer.generation;
      this.steps = [];
      this.columns = {};
    }
    const rows = answer.rows;
    if (!rows) return false;
    const before = this.steps.length;
    for (const name of Object.keys(answer.columns)) {
      if (!(name in this.columns)) this.columns[name] = new Array(before).fill(null);
    }
    for (const [name, values] of Object.entries(this.columns)) {
      const added = answer.columns[name];
      for (let row = 0; row < rows; row += 1) values.push(added ? added[row] : null);
    }
    this.steps = this.columns.step || [];
    return true;
  }

  get(name) {
    const values = this.columns[name];
    return values && values.some((value) => value !== null) ? values : null;
  }

  // All metrics `prefix/<name>`, those with the largest sums first. `filled`: 0 where a step has none.
  group(prefix, without = [], filled = false) {
    const found = [];
    for (const name of Object.keys(this.columns)) {
      if (!name.startsWith(`${prefix}/`)) continue;
      const short = name.slice(prefix.length + 1);
      if (without.includes(short)) continue;
      found.push([short, this.columns[name]]);
    }
    const measured = this.steps.map((_, row) => found.some(([, values]) => values[row] !== null));
    const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);
    return found
      .sort((a, b) => sum(b[1]) - sum(a[1]))
      .map(([name, values]) => [name, filled ? values.map((value, row) => (measured[row] ? value || 0 : null)) : values]);
  }
}

export function windowFor(steps) {
  return steps < 20 ? 1 : Math.max(3, Math.floor(steps / 12) | 1);
}

// The centered moving average; at the ends and at gaps the window is cut.
export function smooth(values, window) {
  if (window <= 1) return values;
  const reach = Math.floor(window / 2);
  const sums = [0];
  const counts = [0];
  for (const value of values) {
    sums.push(sums[sums.length - 1] + (value || 0));
    counts.push(counts[counts.length - 1] + (value === null ? 0 : 1));
  }
  return values.map((value, index) => {
    if (value === null) return null;
    const from = Math.max(0, index - reach);
    const till = Math.min(values.length, index + reach + 1);
    return (sums[till] - sums[from]) / (counts[till] - counts[from]);
  });
}

// Fills short gaps by null and marks long ones, such as the stages in which a role does not learn, as breaks.
export function lastOf(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) if (values[index] !== null && values[index] !== undefined) return values[index];
  return null;
}

// The same steps for several runs: the union, and each run's values at them.
export function align(list) {
  const steps = [...new Set(list.flatMap(({ steps }) => steps))].sort((a, b) => a - b);
  const row = new Map(steps.map((step, index) => [step, index]));
  const columns = list.map(({ steps: own, values }) => {
    const aligned = new Array(steps.length).fill(null);
    own.forEach((step, index) => {
      aligned[row.get(step)] = values[index];
    });
    return aligned;
  });
  return { steps, columns };
}

// Mean, smallest and largest of several columns, where any has a value.
export function band(columns) {
  const length = columns.length ? columns[0].length : 0;
  const mean = new Array(length).fill(null);
  const low = new Array(length).fill(null);
  const high = new Array(length).fill(null);
  for (let index = 0; index < length; index += 1) {
    const values = columns.map((column) => column[index]).filter((value) => value !== null);
    if (!values.length) continue;
    mean[index] = values.reduce((total, value) => total + value, 0) / values.length;
    low[index] = Math.min(...values);
    high[index] = Math.max(...values);
  }
  return { mean, low, high };
}
