// The table of workers: sortable, without the columns that nobody tells anything for.

import { Keyed, make, setAttribute, setChildren, setText } from "./dom";
import { bytes, clock, number, percent, significant, span } from "./format";
import { VALUE, type Point, type Row, type State, type View } from "./state";

interface Column {
  id: string;
  label: string;
  title: string;
  show(value: number): string;
}

const COLUMNS: Column[] = [
  { id: "cpu", label: "CPU", title: "Processor time, of one core", show: percent },
  { id: "memory", label: "Memory", title: "Resident memory", show: bytes },
  { id: "threads", label: "Threads", title: "Threads of the process", show: number },
  { id: "files", label: "Files", title: "Open files, sockets included", show: number },
  { id: "calls", label: "Calls/s", title: "Requests sent per second", show: number },
  { id: "served", label: "Served/s", title: "Requests served per second", show: number },
  { id: "pending", label: "Pending", title: "Requests without an answer yet", show: number },
  { id: "serving", label: "Serving", title: "Requests being served", show: number },
  { id: "queued", label: "Queued", title: "Calls that wait for a thread", show: number },
  { id: "rrefs_owned", label: "RRefs owned", title: "Values that others refer to", show: number },
  { id: "rrefs_used", label: "RRefs used", title: "References to values of others", show: number },
  { id: "contexts", label: "Contexts", title: "Open contexts of distributed autograd", show: number },
  { id: "reductions", label: "Reductions/s", title: "Collectives completed per second", show: number },
  { id: "reduced_bytes", label: "Reduced/s", title: "Bytes of tensors reduced per second", show: bytes },
  { id: "step", label: "Step", title: "The last step that the program has told of", show: number },
];

const OF_THE_JOB = new Set(["calls", "reductions", "reduced_bytes", "step"]);
const ALWAYS = new Set(["cpu", "memory", "threads", "step"]);
const MOST_FACTS = 6;
const DOTS = { ok: "ok", silent: "bad", starting: "new", ended: "over", gone: "bad" } as const;

export class Workers implements View {
  readonly element = make("section", { "aria-labelledby": "workers-title" });
  private readonly head = make("tr");
  private readonly body = make("tbody");
  private readonly rows = new Keyed(() => make("tr"));
  private readonly heads = new Keyed((id) => this.makeHead(id));
  private readonly summary = make("dl", { class: "summary" });
  private readonly facts = new Keyed(() => make("div", {}, make("dt"), make("dd")));
  /** Columns that had something to show once: they stay. */
  private readonly shown = new Set<string>();
  private sortedBy = "";
  private isRising = true;
  private state: State | null = null;

  constructor() {
    const table = make("table", { class: "workers" }, make("thead", {}, this.head), this.body);
    this.element.append(
      make("h2", { id: "workers-title" }, "Workers"),
      this.summary,
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of workers" }, table),
    );
  }

  update(state: State, points: readonly Point[]): void {
    this.summarize(state, points);
    this.fill(state);
  }

  private summarize(state: State, points: readonly Point[]): void {
    const facts: [string, string][] = [];
    for (const { id, label, show } of COLUMNS) {
      const values = state.rows.flatMap((row) => row.numbers[id] ?? []);
      // A call is made by one worker; a reduction is one of all ranks together.
      const total = id === "calls" ? values.reduce((sum, value) => sum + value, 0) : Math.max(0, ...values);
      if (OF_THE_JOB.has(id) && total > 0) facts.push([label, show(total)]);
    }
    for (const [id, lines] of Object.entries(points.at(-1)?.values ?? {})) {
      const [first] = Object.values(lines);
      if (id.startsWith(VALUE) && first !== undefined) facts.push([id.slice(VALUE.length), significant(first)]);
    }
    setChildren(
      this.summary,
      facts.slice(0, MOST_FACTS).map(([label, value]) => {
        const fact = this.facts.get(label);
        setText(fact.children[0]!, label);
        setText(fact.children[1]!, value);
        return fact;
      }),
    );
    this.facts.rest();
    this.summary.hidden = facts.length === 0;
  }

  private fill(state: State): void {
    this.state = state;
    for (const row of state.rows) {
      for (const [id, value] of Object.entries(row.numbers)) if (value !== 0 || ALWAYS.has(id)) this.shown.add(id);
    }
    const told = COLUMNS.filter(({ id }) => this.shown.has(id));
    const ids = ["name", "state", ...told.map(({ id }) => id)];
    setChildren(this.head, ids.map((id) => this.heads.get(id)));
    this.heads.rest();
    for (const head of this.head.children) {
      const isSorted = head.getAttribute("data-column") === this.sortedBy;
      setAttribute(head, "aria-sort", isSorted ? (this.isRising ? "ascending" : "descending") : null);
    }
    setChildren(this.body, this.sorted(state.rows).map((row) => this.show(row, told, state)));
    this.rows.rest();
  }

  private show(row: Row, told: Column[], state: State): HTMLTableRowElement {
    const line = this.rows.get(row.key);
    setAttribute(line, "data-state", row.state);
    if (line.children.length === 0) line.append(makeName(), makeWhat());
    while (line.children.length > told.length + 2) line.lastElementChild?.remove();
    while (line.children.length < told.length + 2) line.append(make("td", { class: "number" }));
    const [head, what, ...cells] = line.children;
    const [dot, name, about] = head!.firstElementChild!.children;
    setAttribute(dot!, "data-dot", DOTS[row.state]);
    setText(name!, row.name);
    setText(about!, identity(row));
    const [why, main] = what!.children;
    setText(why!, row.why + (row.state === "silent" ? "" : when(row.since, state)));
    setText(main!, shorter(row.main));
    setAttribute(main!, "title", row.main || null);
    told.forEach(({ id, show }, place) => {
      const value = row.numbers[id];
      setText(cells[place]!, value === undefined ? "" : show(value));
    });
    return line;
  }

  private makeHead(id: string): HTMLTableCellElement {
    const column = COLUMNS.find((each) => each.id === id);
    const label = column?.label ?? (id === "name" ? "Worker" : "State");
    const title = column?.title ?? (id === "name" ? "By rank" : "What it does, or how it has ended");
    const button = make("button", { type: "button", title, click: () => this.sortBy(id) }, label);
    const kind = column === undefined ? "text" : "number";
    return make("th", { scope: "col", class: kind, "data-column": id }, button);
  }

  private sortBy(id: string): void {
    // A number is most interesting where it is great.
    const isNumber = COLUMNS.some((each) => each.id === id);
    if (this.sortedBy !== id) [this.sortedBy, this.isRising] = [id, !isNumber];
    else if (this.isRising === !isNumber) this.isRising = isNumber;
    else this.sortedBy = "";
    if (this.state !== null) this.fill(this.state);
  }

  private sorted(rows: Row[]): Row[] {
    const [id, sign] = [this.sortedBy, this.isRising ? 1 : -1];
    if (id === "") return rows;
    const text = (row: Row): string => (id === "name" ? row.name : `${row.state} ${row.why}`);
    if (id === "name" || id === "state") {
      return rows.toSorted((a, b) => sign * text(a).localeCompare(text(b), "en", { numeric: true }));
    }
    // Those that do not tell it come last, whichever way it is sorted.
    const value = (row: Row): number => row.numbers[id] ?? sign * Number.MAX_VALUE;
    return rows.toSorted((a, b) => sign * (value(a) - value(b)));
  }
}

function when(since: number | null, state: State): string {
  if (since === null) return "";
  return state.ended_at === null ? `, ${span(state.at - since)} ago` : ` at ${clock(since)}`;
}

function makeName(): HTMLElement {
  const parts = ["dot", "name", "minor"].map((kind) => make("span", { class: kind }));
  return make("th", { scope: "row" }, make("div", { class: "who" }, ...parts));
}

function makeWhat(): HTMLElement {
  return make("td", { class: "what" }, make("span", { class: "why" }), make("span", { class: "minor" }));
}

function identity(row: Row): string {
  const rank = row.rank !== "" && row.name !== `rank ${row.rank}` ? `rank ${row.rank} · ` : "";
  return `${rank}pid ${row.pid}${row.host ? ` · ${row.host}` : ""}`;
}

/** A place in a program, without the folder of its file. */
function shorter(place: string): string {
  return place.replace(/^.*\/(?=[^/]*:\d+ in )/, "");
}
