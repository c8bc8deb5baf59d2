// Charts over steps: lines with their moving averages, and areas on top of one another, with the stages behind them.
// They are drawn by uPlot (static/vendor/uplot), on a canvas, in the colors of the page.

import { h, replace } from "./dom.js";
import { number, percent } from "./format.js";
import { lastOf, smooth } from "./series.js";

const HEIGHT = 210;
const MOST_BANDS = 120;
const drawn = new Set();

export const LINE_COLORS = ["c0", "c1", "c2", "c3", "c4", "c5", "c7", "c6"];

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
}

// Draws all charts again: the colors have changed.
export function redrawCharts() {
  for (const chart of [...drawn]) chart.draw();
}

export function forgetCharts() {
  for (const chart of [...drawn]) chart.destroy();
}

// options: title, caption, scale ("number", "share" up to 100 %, "rate"), height, window, bands, stacked, onPick(step).
// A line: { name, values, color, dash, dots, low, high }.
export class Chart {
  constructor(options) {
    this.options = options;
    this.hidden = new Set();
    this.legend = h("div", { class: "legend" });
    this.tip = h("div", { class: "tip hidden", role: "status" });
    this.plot = h("div", { class: "plot", role: "img" });
    this.element = h(
      "figure",
      { class: "chart", "data-chart": options.title },
      h("figcaption", {}, h("b", {}, options.title), options.caption || ""),
      this.plot,
      this.legend,
    );
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.plot);
    drawn.add(this);
  }

  // Shows other data; the choice of hidden lines and the zoom stay.
  update(steps, lines, changes = {}) {
    Object.assign(this.options, changes);
    this.steps = steps;
    this.lines = lines;
    this.draw();
  }

  destroy() {
    drawn.delete(this);
    this.observer.disconnect();
    if (this.chart) this.chart.destroy();
    this.chart = null;
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.chart && width > 0 && Math.abs(this.chart.width - width) > 1) this.chart.setSize({ width, height: this.height });
    else if (!this.chart && width > 0 && this.lines) this.draw();
  }

  get height() {
    return this.options.height || HEIGHT;
  }

  show(value) {
    return this.options.scale === "share" || this.options.scale === "rate" ? percent(value) : number(value);
  }

  draw() {
    if (!this.lines) return;
    const zoom = this.chart && this.zoomed ? { min: this.chart.scales.x.min, max: this.chart.scales.x.max } : null;
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.drawLegend();
    const width = this.plot.clientWidth;
    if (width <= 0) return;
    const { data, series, areas } = this.options.stacked ? this.stack() : this.overlay();
    this.chart = new uPlot(this.settings(width, series, areas), data, this.plot);
    this.plot.append(this.tip);
    if (zoom) this.chart.setScale("x", zoom);
    this.listen();
  }

  // Each line raw and light, and its moving average bold.
  overlay() {
    const data = [this.steps];
    const series = [{}];
    const areas = [];
    const window = this.options.window || 1;
    for (const line of this.lines) {
      const show = !this.hidden.has(line.name);
      const stroke = color(line.color);
      if (line.low) {
        const first = data.push(smooth(line.high, window), smooth(line.low, window)) - 2;
        series.push({ show, width: 0, points: { show: false } }, { show, width: 0, points: { show: false } });
        areas.push({ series: [first, first + 1], fill: withAlpha(stroke, 0.18) });
      }
      if (line.dots) {
        data.push(line.values);
        series.push({ show, stroke, width: 0, paths: () => null, points: { show: true, size: 8, fill: stroke, stroke: color("paper") } });
        continue;
      }
      const spanGaps = !line.gaps;
      if (window > 1 && !line.low) {
        data.push(line.values);
        series.push({ show, stroke: withAlpha(stroke, 0.28), width: 1, spanGaps, points: { show: false } });
      }
      data.push(smooth(line.values, window));
      const few = line.values.filter((value) => value !== null).length < 2;
      series.push({ show, stroke, width: 2.1, dash: line.dash, spanGaps, points: { show: few, size: 6, fill: stroke } });
    }
    return { data, series, areas };
  }

  stack() {
    const data = [this.steps];
    const series = [{}];
    const areas = [];
    const window = this.options.window || 1;
    const shown = this.lines.filter((line) => !this.hidden.has(line.name));
    let below = this.steps.map(() => 0);
    for (const line of shown) {
      const stroke = color(line.color);
      const layer = smooth(line.values, window);
      below = below.map((value, row) => (layer[row] === null ? null : (value || 0) + layer[row]));
      data.push(below);
      series.push({ stroke: color("paper"), width: 0.6, fill: withAlpha(stroke, 0.8), points: { show: false } });
    }
    // The largest sum is drawn first, so that every area covers the part of those above it.
    const order = data.slice(1).map((_, index) => index + 1).reverse();
    return { data: [data[0], ...order.map((index) => data[index])], series: [series[0], ...order.map((index) => series[index])], areas };
  }

  settings(width, series, areas) {
    const muted = color("muted");
    const grid = { stroke: color("grid"), width: 1 };
    const font = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";
    return {
      width,
      height: this.height,
      legend: { show: false },
      padding: [16, 8, 0, 0],
      cursor: { points: { size: 6 }, sync: { key: this.options.sync || "steps", setSeries: false }, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: [
        { stroke: muted, grid: { ...grid, show: false }, ticks: { ...grid, size: 4 }, font, size: 26, gap: 2, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000] },
        { stroke: muted, grid, ticks: { show: false }, font, size: 50, gap: 6, space: 34, values: (_, splits) => splits.map((value) => this.show(value)) },
      ],
      series,
      bands: areas,
      hooks: { drawClear: [(chart) => this.drawBands(chart)], setCursor: [(chart) => this.point(chart)] },
    };
  }

  range(low, high) {
    if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
    const from = Math.min(0, low);
    if (this.options.scale === "share") return [0, Math.max(1, high)];
    const till = Math.max(0, high);
    return from === till ? [0, 1] : [from < 0 ? from * 1.06 : 0, till * 1.06];
  }

  // A strip above the plot and a tint behind it for the stages: which role learns when.
  drawBands(chart) {
    const bands = this.options.bands || [];
    if (!bands.length || bands.length > MOST_BANDS) return;
    const { ctx, bbox } = chart;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    for (const [first, last, roles] of bands) {
      const [name, ...words] = look(roles);
      const left = chart.valToPos(first - 0.5, "x", true);
      const right = chart.valToPos(last + 0.5, "x", true);
      ctx.fillStyle = withAlpha(color(name), 0.07);
      if (!this.options.stacked) ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.fillStyle = color(name);
      ctx.fillRect(left, bbox.top - 3 * ratio, right - left - ratio, 2.5 * ratio);
      ctx.font = `${10.5 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "center";
      const [from, till] = [Math.max(left, bbox.left), Math.min(right, bbox.left + bbox.width)];
      const word = words.find((each) => ctx.measureText(each).width + 6 * ratio < till - from);
      if (word) ctx.fillText(word, (from + till) / 2, bbox.top - 6 * ratio);
    }
    ctx.restore();
  }

  point(chart) {
    const index = chart.cursor.idx;
    if (index === null || index === undefined || chart.cursor.left < 0) {
      this.tip.classList.add("hidden");
      return;
    }
    const rows = this.lines
      .filter((line) => !this.hidden.has(line.name) && line.values[index] !== null && line.values[index] !== undefined)
      .map((line) => [line, line.values[index]]);
    if (this.options.stacked) rows.reverse();
    replace(
      this.tip,
      h("div", {}, h("span", { class: "muted" }, "step"), h("b", {}, String(this.steps[index]))),
      rows.slice(0, 14).map(([line, value]) => h("div", {}, h("span", { class: "key" }, swatch(line.color), line.name), h("b", {}, this.show(value)))),
    );
    this.tip.classList.remove("hidden");
    const left = chart.valToPos(this.steps[index], "x") + chart.bbox.left / devicePixelRatio;
    const far = left > this.plot.clientWidth / 2;
    this.tip.style.left = far ? "auto" : `${left + 12}px`;
    this.tip.style.right = far ? `${this.plot.clientWidth - left + 12}px` : "auto";
  }

  listen() {
    const over = this.chart.over;
    let down = null;
    over.addEventListener("mousedown", (event) => {
      down = event.clientX;
    });
    over.addEventListener("mouseup", (event) => {
      const moved = down === null || Math.abs(event.clientX - down) > 4;
      if (moved) this.zoomed = true;
      const index = this.chart.cursor.idx;
      if (!moved && this.options.onPick && index !== null && index !== undefined) this.options.onPick(this.steps[index]);
    });
    over.addEventListener("dblclick", () => {
      this.zoomed = false;
    });
    over.addEventListener("mouseleave", () => this.tip.classList.add("hidden"));
  }

  drawLegend() {
    this.plot.setAttribute("aria-label", `${this.options.title}: ${this.lines.map((line) => `${line.name} ${this.show(lastOf(line.values))}`).join(", ")}`);
    replace(
      this.legend,
      this.lines.map((line) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": this.hidden.has(line.name) ? "false" : "true",
            title: line.title || line.name,
            onclick: () => {
              if (this.hidden.has(line.name)) this.hidden.delete(line.name);
              else this.hidden.add(line.name);
              this.draw();
            },
          },
          swatch(line.color),
          h("span", { class: "name" }, line.name),
          h("b", {}, this.show(lastOf(smooth(line.values, this.options.window || 1)))),
        ),
      ),
    );
  }
}

export function swatch(name) {
  return h("i", { vars: { color: `var(--${name})`, width: "11px", height: "3px", background: `var(--${name})`, display: "inline-block" } });
}

function look(roles) {
  if (roles.length === 1) return roles[0] === "executor" ? ["executor", "Executor learns", "Executor", "E"] : ["designer", "Designer learns", "Designer", "D"];
  return roles.length ? ["muted", "Both learn", "Both", "B"] : ["grid"];
}

function withAlpha(value, alpha) {
  const match = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(value);
  return match ? `rgba(${match.slice(1).map((part) => parseInt(part, 16)).join(",")},${alpha})` : value;
}
