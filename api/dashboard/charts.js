// Charts over steps, drawn by uPlot: a script of its own beside these modules, and missing where its package is.

import { h } from "./dom.js";
import { number } from "./format.js";

export const there = () => typeof globalThis.uPlot === "function";

/** What stands in place of charts that cannot be drawn. */
export function missing() {
  return h(
    "p",
    { class: "empty" },
    "Charts need the package youplot where the API runs. Install it there with ",
    h("code", {}, "pip install youplot"),
    ", then restart the API: ",
    h("code", {}, "ratchet down"),
    " and ",
    h("code", {}, "ratchet up --detach"),
    ". Runs do not notice.",
  );
}

const shown = new Set();
/** Colours are read from the style sheet when a chart is made. */
document.addEventListener("ratchet:theme", () => shown.forEach((chart) => chart.remake()));

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/**
 * One chart. `lines`: {label, color, dots?, faint?}, one for each column of the data after x; `stacked`: they lie
 * on each other, the first one at the bottom; `pick`: called with the step that was clicked.
 */
export class Chart {
  constructor({
    title,
    unit = "",
    note = "",
    lines,
    stacked = false,
    format = number,
    sync,
    pick,
    signal,
    legend = true,
  }) {
    Object.assign(this, { title, unit, lines, stacked, format, sync, pick });
    this.readout = h("p", { class: "readout" });
    this.plot = h("div", { class: "plot", role: "img" });
    this.element = h(
      "figure",
      { class: "chart" },
      h(
        "figcaption",
        {},
        h("h3", {}, title, unit && h("span", { class: "unit" }, unit)),
        note && h("span", { class: "faint" }, note),
      ),
      legend && this.readout,
      this.plot,
    );
    this.data = null;
    this.marks = [];
    this.zoomed = false;
    shown.add(this);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.plot);
    signal.addEventListener("abort", () => this.remove(), { once: true });
  }

  /** `columns`: the steps, then a column of values for each line. `marks`: {step, words}, what was lost where. */
  update(columns, marks = []) {
    this.values = columns;
    this.data = this.stacked ? stack(columns) : columns;
    this.marks = marks;
    const last = columns[0].length - 1;
    this.read(null);
    const told = this.lines.map((line, place) => `${line.label} ${this.format(newest(columns[place + 1]))}`);
    this.plot.setAttribute(
      "aria-label",
      `${this.title} by step, up to step ${columns[0][last]}: ${told.join(", ")}`,
    );
    if (!this.chart) return this.make();
    this.chart.setData(this.data, !this.zoomed);
    if (this.zoomed) this.chart.redraw();
  }

  make() {
    const width = this.plot.clientWidth;
    if (!width || !this.data) return; // not laid out yet: the observer comes back
    const axis = {
      stroke: color("faint"),
      grid: { stroke: color("grid"), width: 1 },
      ticks: { show: false },
      font: `11px ${color("sans")}`,
    };
    this.chart = new globalThis.uPlot(
      {
        width,
        height: this.plot.clientHeight || 150,
        padding: [14, 12, 0, 0],
        legend: { show: false },
        scales: { x: { time: false }, y: { range: (_, low, high) => range(low, high, this.stacked) } },
        axes: [
          {
            ...axis,
            size: 26,
            space: 56,
            incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5],
          },
          {
            ...axis,
            size: 52,
            space: 32,
            gap: 6,
            values: (_, ticks) => ticks.map(this.format === number ? ticked : this.format),
          },
        ],
        cursor: {
          ...(this.sync && { sync: { key: this.sync } }),
          points: { size: 6 },
          drag: { x: true, y: false, dist: 6 },
          y: false,
        },
        series: [{}, ...this.series()],
        hooks: {
          draw: [(chart) => this.mark(chart)],
          setCursor: [(chart) => this.read(chart.cursor.idx)],
          setSelect: [(chart) => (this.zoomed = chart.select.width > 0)],
          ready: [(chart) => this.listen(chart)],
        },
      },
      this.data,
      this.plot,
    );
  }

  series() {
    const lines = this.lines.map((line) => {
      const stroke = color(line.color);
      if (line.dots)
        return {
          stroke,
          paths: () => null,
          points: { show: true, size: 8, fill: stroke, stroke: color("paper"), width: 1.5 },
        };
      if (this.stacked) return { stroke: color("sheet"), width: 1, fill: stroke, points: { show: false } };
      return {
        stroke,
        width: line.faint ? 1 : 1.75,
        alpha: line.faint ? 0.35 : 1,
        points: { size: 4, fill: stroke },
      };
    });
    return this.stacked ? lines.reverse() : lines; // the highest one first: the others lie before it
  }

  listen(chart) {
    chart.over.addEventListener("dblclick", () => (this.zoomed = false));
    if (!this.pick) return;
    chart.over.classList.add("picks");
    let down = 0;
    chart.over.addEventListener("pointerdown", (event) => (down = event.clientX));
    chart.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - down) < 4 && chart.cursor.idx !== null)
        this.pick(this.values[0][chart.cursor.idx]);
    });
  }

  /** Say what is at a place of the data; null: the newest of each line. */
  read(place) {
    const [steps, ...columns] = this.values;
    const away = place === null || place === undefined || place >= steps.length;
    const value = (column) => (away ? newest(column) : column[place]);
    const lost = this.marks.filter((mark) => !away && mark.step === steps[place]).map((mark) => mark.words);
    this.readout.replaceChildren(
      h("span", { class: "at" }, away ? "newest" : `step ${steps[place]}`),
      ...this.lines
        .map((line, which) => ({ line, value: value(columns[which]) ?? null }))
        .filter(({ line, value }) => !line.faint && !(line.dots && value === null))
        .map(({ line, value }) =>
          h(
            "span",
            {},
            h("i", { class: line.dots ? "key dot" : "key", style: { background: `var(--${line.color})` } }),
            `${line.label} `,
            h("b", {}, this.format(value)),
          ),
        ),
      ...lost.map((words) => h("span", { class: "lost" }, words)),
    );
  }

  mark(chart) {
    const { ctx, bbox } = chart;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("warn");
    ctx.lineWidth = ratio;
    for (const { step } of this.marks) {
      const x = Math.round(chart.valToPos(step, "x", true)) + 0.5;
      if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x - 5 * ratio, bbox.top - 9 * ratio);
      ctx.lineTo(x + 5 * ratio, bbox.top - 9 * ratio);
      ctx.lineTo(x, bbox.top);
      ctx.fill();
    }
    ctx.restore();
  }

  fit() {
    if (!this.chart) return this.make();
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (width && (width !== this.chart.width || height !== this.chart.height))
      this.chart.setSize({ width, height });
  }

  remake() {
    this.chart?.destroy();
    this.chart = null;
    this.make();
  }

  remove() {
    shown.delete(this);
    this.observer.disconnect();
    this.chart?.destroy();
    this.chart = null;
  }
}

function stack([x, ...columns]) {
  const sums = new Array(x.length).fill(0);
  const stacked = columns.map((column) => column.map((value, place) => (sums[place] += value ?? 0)));
  return [x, ...stacked.reverse()];
}

/** As short as a tick may be: `0.8`, `1,200`, `5e-6`. */
function ticked(tick) {
  if (tick !== 0 && Math.abs(tick) < 1e-3) return String(Number(tick.toPrecision(3)));
  return tick.toLocaleString("en", { maximumSignificantDigits: 4 });
}

function newest(column) {
  return column.findLast((value) => value !== null && value !== undefined);
}

/** A little room above and below; what is stacked stands on nothing. */
function range(low, high, stacked) {
  if (low === null || high === null) return [0, 1];
  if (stacked) return [0, high * 1.08 || 1];
  const room = (high - low) * 0.12 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
