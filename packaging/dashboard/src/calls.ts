// Who calls whom: a matrix, callers down and callees across; of many workers the busiest pairs only.

import { Keyed, make, setAttribute, setChildren, setText } from "./dom";
import { brief, bytes, number, plural, shortName } from "./format";
import type { Edge, FunctionCalls, State, View } from "./state";

const WIDEST = 16;
const MOST_PAIRS = 60;
/** For so many looks a pair of workers stays after its last call, so that the matrix does not flicker. */
const STAYS = 30;

export class Calls implements View {
  readonly element = make("section", { "aria-labelledby": "calls-title" });
  private readonly place = make("div");
  private readonly functions = new Functions();
  private readonly known = new Map<string, { edge: Edge; seen: number }>();
  private at = 0;
  private looks = 0;

  constructor() {
    this.element.append(make("h2", { id: "calls-title" }, "Who calls whom"), this.place, this.functions.element);
  }

  update(state: State): void {
    if (state.at === this.at) return;
    this.at = state.at;
    this.looks += 1;
    const edges = this.remember(state.edges);
    const names = order(state, edges);
    const picture = edges.length === 0 ? nothing(state) : names.length <= WIDEST ? matrix(names, edges) : pairs(edges);
    setChildren(this.place, [picture]);
    this.functions.update(state.functions);
  }

  private remember(edges: Edge[]): Edge[] {
    for (const [key, { edge, seen }] of this.known) {
      if (this.looks - seen > STAYS) this.known.delete(key);
      else this.known.set(key, { edge: { ...edge, calls: 0, bytes: 0, pending: 0 }, seen });
    }
    for (const edge of edges) {
      const key = `${edge.caller}\n${edge.callee}`;
      if (edge.calls > 0 || edge.pending > 0) this.known.set(key, { edge, seen: this.looks });
    }
    return [...this.known.values()].map(({ edge }) => edge);
  }
}

/** The functions that are called: how often, and how long that takes. */
class Functions {
  readonly element = make("div", { hidden: true });
  private readonly body = make("tbody");
  private readonly rows = new Keyed(() => make("tr", {}, make("th", { scope: "row" }), ...this.cells()));

  constructor() {
    const titles = ["Calls/s", "Bytes/s", "Median", "99th percentile", "Failed"];
    const heads = titles.map((title) => make("th", { scope: "col", class: "number" }, title));
    const head = make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Function"), ...heads));
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of functions" };
    this.element.append(make("h3", {}, "Functions"), make("div", region, make("table", {}, head, this.body)));
  }

  update(functions: FunctionCalls[]): void {
    const known = functions.filter((each) => each.calls > 0);
    // By name, since those that took most time change places all the time.
    known.sort((a, b) => a.function.localeCompare(b.function, "en"));
    setChildren(this.body, known.map((each) => this.show(each)));
    this.rows.rest();
    this.element.hidden = known.length === 0;
  }

  private show(each: FunctionCalls): HTMLTableRowElement {
    const row = this.rows.get(each.function);
    setText(row.children[0]!, shortName(each.function));
    setAttribute(row.children[0]!, "title", each.function);
    const told = [
      number(each.calls_per_second),
      bytes(each.bytes_per_second),
      brief(each.p50_seconds),
      brief(each.p99_seconds),
      each.failed > 0 ? number(each.failed) : "",
    ];
    told.forEach((text, place) => setText(row.children[place + 1]!, text));
    return row;
  }

  private cells(): HTMLElement[] {
    return Array.from({ length: 5 }, () => make("td", { class: "number" }));
  }
}

/** Those who take part, in the order of the table. */
function order(state: State, edges: Edge[]): string[] {
  const part = new Set(edges.flatMap((each) => [each.caller, each.callee]));
  const known = state.rows.map((row) => row.name).filter((name) => part.has(name));
  return [...new Set([...known, ...part])];
}

function nothing(state: State): HTMLElement {
  const isRpc = state.rows.some((row) => "calls" in row.numbers || "pending" in row.numbers);
  const words = isRpc
    ? "No worker calls another one at the moment."
    : "The workers of this job make no remote calls.";
  return make("p", { class: "empty" }, words);
}

function matrix(names: string[], edges: Edge[]): HTMLElement {
  const by = new Map(edges.map((each) => [`${each.caller}\n${each.callee}`, each]));
  const most = Math.max(1e-9, ...edges.map((each) => each.calls));
  const head = make(
    "tr",
    {},
    make("td", { class: "corner" }, "caller ↓ callee →"),
    ...names.map((name) => make("th", { scope: "col" }, name)),
  );
  const lines = names.map((caller) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, caller),
      ...names.map((callee) => cell(by.get(`${caller}\n${callee}`), most)),
    ),
  );
  const table = make("table", { class: "matrix" }, make("thead", {}, head), make("tbody", {}, ...lines));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Matrix of calls" }, table);
}

function cell(edge: Edge | undefined, most: number): HTMLElement {
  const element = make("td");
  if (edge === undefined) return element;
  element.style.setProperty("--share", String(Math.sqrt(edge.calls / most)));
  for (const [kind, text] of parts(edge)) element.append(make("span", { class: kind }, text));
  return element;
}

function parts(edge: Edge): [string, string][] {
  const told: [string, string][] = [["rate", `${number(edge.calls)}/s`], ["minor", `${bytes(edge.bytes)}/s`]];
  if (edge.pending > 0) told.push(["open", `${number(edge.pending)} open`]);
  return told;
}

function pairs(edges: Edge[]): HTMLElement {
  const busiest = edges.toSorted((a, b) => b.calls - a.calls || b.pending - a.pending);
  const lines = busiest.slice(0, MOST_PAIRS).map((edge) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, `${edge.caller} → ${edge.callee}`),
      make("td", { class: "number" }, number(edge.calls)),
      make("td", { class: "number" }, bytes(edge.bytes)),
      make("td", { class: "number" }, number(edge.pending)),
    ),
  );
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }, "Workers"),
    ...["Calls/s", "Bytes/s", "Open"].map((name) => make("th", { scope: "col", class: "number" }, name)),
  );
  const rest = busiest.length - MOST_PAIRS;
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines));
  const note = rest > 0 ? [make("p", { class: "minor" }, `and ${plural(rest, "more pair")}`)] : [];
  const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of calls" };
  return make("div", {}, make("div", region, table), ...note);
}
