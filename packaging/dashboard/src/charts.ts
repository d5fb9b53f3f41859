// The last minutes as charts, drawn by uPlot. Of more than eight workers the server tells the
// greatest, the middle and the least value.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Keyed, make, setChildren, setText } from "./dom";
import { brief, bytes, clock, number, percent, shortName, significant } from "./format";
import { VALUE, type Point, type State, type View } from "./state";

interface Chart {
  title: string;
  show(value: number): string;
}

const CHARTS: Record<string, Chart> = {
  calls: { title: "Calls made per second", show: number },
  served: { title: "Calls served per second", show: number },
  p50: { title: "Latency of calls, median", show: brief },
  p99: { title: "Latency of calls, 99th percentile", show: brief },
  step_seconds: { title: "Time of a step", show: brief },
  reduced_bytes: { title: "Reduced bytes per second", show: bytes },
  cpu: { title: "Processor time, of one core", show: percent },
  memory: { title: "Resident memory", show: bytes },
  rrefs_owned: { title: "Values that others refer to", show: number },
};
const HEIGHT = 170;
const LEAST_SECONDS = 60;
const DARK = matchMedia("(prefers-color-scheme: dark)");

export class Time implements View {
  readonly element = make("section", { "aria-labelledby": "time-title" });
  private readonly place = make("div", { class: "charts" });
  private readonly empty = make("p", { class: "empty" }, "Nothing has been counted yet.");
  private readonly figures = new Map<string, Figure>();

  constructor() {
    this.element.append(make("h2", { id: "time-title" }, "The last minutes"), this.place);
    DARK.addEventListener("change", () => {
      for (const each of this.figures.values()) each.forget();
    });
  }

  update(_state: State, points: readonly Point[]): void {
    const told = new Set(points.flatMap((each) => Object.keys(each.values)));
    // What the program itself tells comes first.
    const values = [...told].filter((id) => id.startsWith(VALUE));
    const ids = [...values, ...Object.keys(CHARTS).filter((id) => told.has(id) && !isZero(id, points))];
    const figures = ids.map((id) => {
      const figure = this.figures.get(id) ?? new Figure(id, CHARTS[id] ?? chartOf(id));
      this.figures.set(id, figure);
      return figure;
    });
    setChildren(this.place, figures.length > 0 ? figures.map((each) => each.element) : [this.empty]);
    for (const each of figures) each.draw(points);
  }
}

function chartOf(id: string): Chart {
  return { title: id.slice(VALUE.length), show: significant };
}

/** Whether a chart has nothing to show: there are no calls, no reductions, no references. */
function isZero(id: string, points: readonly Point[]): boolean {
  return points.every((each) => Object.values(each.values[id] ?? {}).every((value) => value === 0));
}

class Figure {
  readonly element: HTMLElement;
  private readonly canvas = make("div", { class: "canvas" });
  private readonly legend = make("ul", { class: "legend" });
  private readonly items = new Keyed(() => make("li", {}, make("i"), make("span"), make("b")));
  private plot: uPlot | null = null;
  private names: string[] = [];

  constructor(
    private readonly id: string,
    private readonly chart: Chart,
  ) {
    this.canvas.setAttribute("role", "img");
    this.element = make("figure", {}, make("figcaption", {}, chart.title), this.canvas, this.legend);
    new ResizeObserver(() => this.plot?.setSize({ width: this.canvas.clientWidth, height: HEIGHT })).observe(
      this.canvas,
    );
  }

  draw(points: readonly Point[]): void {
    const names = [...new Set(points.flatMap((each) => Object.keys(each.values[this.id] ?? {})))];
    const data: uPlot.AlignedData = [
      points.map((each) => each.at),
      ...names.map((name) => points.map((each) => each.values[this.id]?.[name] ?? null)),
    ];
    if (this.plot === null || names.join("\n") !== this.names.join("\n")) {
      this.names = names;
      this.plot?.destroy();
      this.plot = new uPlot(this.options(), data, this.canvas);
    } else {
      this.plot.setData(data);
    }
    this.tell(null);
  }

  /** Draws anew at the next look, in other colours. */
  forget(): void {
    this.names = [];
  }

  /** Writes the values at a point, or the latest. */
  private tell(index: number | null): void {
    const data = this.plot?.data ?? [[]];
    const at = index ?? data[0].length - 1;
    const lines = this.names.map((name, place) => {
      const item = this.items.get(name);
      const [mark, label, value] = [...item.children] as [HTMLElement, Element, Element];
      mark.style.background = colour(place);
      setText(label, shortName(name));
      const told = data[place + 1]?.[at];
      setText(value, told === null || told === undefined ? "–" : this.chart.show(told));
      return item;
    });
    this.items.rest();
    setChildren(this.legend, lines);
    const latest = lines.map((each) => each.textContent).join(", ");
    this.canvas.setAttribute("aria-label", `${this.chart.title} over time; latest: ${latest}`);
  }

  private options(): uPlot.Options {
    const style = getComputedStyle(document.documentElement);
    const [text, grid] = [style.getPropertyValue("--minor"), style.getPropertyValue("--line")];
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: text, font, ticks: { show: false }, grid: { stroke: grid, width: 1 } };
    return {
      width: this.canvas.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 4, 0, 0],
      cursor: { sync: { key: "time" }, y: false, drag: { x: false, y: false } },
      scales: {
        x: { time: true, range: (_plot, least, most) => [Math.min(least, most - LEAST_SECONDS), most] },
        y: { range: (_plot, least, most) => range(this.id, least, most) },
      },
      axes: [
        { ...axis, space: 70, size: 24, gap: 6, values: (_plot, ticks) => ticks.map(clock) },
        { ...axis, size: 58, space: 30, gap: 8, values: (_plot, ticks) => ticks.map(this.chart.show) },
      ],
      series: [
        {},
        ...this.names.map((name, place) => ({
          label: name,
          stroke: colour(place),
          width: 1.6,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx ?? null)] },
    };
  }
}

/** From zero on, but for values of the program, whose changes matter. */
function range(id: string, least: number, most: number): [number, number] {
  if (!id.startsWith(VALUE)) return [0, most > 0 ? most * 1.1 : 1];
  const margin = (most - least || Math.abs(most) || 1) * 0.1;
  return [least - margin, most + margin];
}

const LIGHT_COLOURS = ["#2563a8", "#b3452c", "#4d7c2a", "#85549a", "#96660f", "#1f7f7f", "#6b6459", "#b83d74"];
const DARK_COLOURS = ["#6ea8e8", "#e8846b", "#8fc266", "#c39bd6", "#e0b45c", "#5fc4c4", "#b5afa3", "#ee8fbb"];

function colour(place: number): string {
  const colours = DARK.matches ? DARK_COLOURS : LIGHT_COLOURS;
  return colours[place % colours.length]!;
}
