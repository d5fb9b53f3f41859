// Who calls whom: a matrix, callers down and callees across; of many workers the busiest pairs only.

import { make, setChildren } from "./dom";
import { bytes, number, plural } from "./format";
import type { Edge, State, View } from "./state";

const WIDEST = 16;
const MOST_PAIRS = 60;

export class Calls implements View {
  readonly element = make("section", { "aria-labelledby": "calls-title" });
  private readonly place = make("div");
  private drawn = "";

  constructor() {
    this.element.append(make("h2", { id: "calls-title" }, "Who calls whom"), this.place);
  }

  update(state: State): void {
    const drawn = JSON.stringify(state.edges);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const edges = state.edges.filter((each) => weight(each) > 0 || each.pending > 0);
    const names = order(state, edges);
    const picture = edges.length === 0 ? nothing(state) : names.length <= WIDEST ? matrix(names, edges) : pairs(edges);
    setChildren(this.place, [picture]);
  }
}

function weight(edge: Edge): number {
  return edge.calls ?? 0;
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
  const most = Math.max(1e-9, ...edges.map(weight));
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
  element.style.setProperty("--share", String(Math.sqrt(weight(edge) / most)));
  for (const [kind, text] of parts(edge)) element.append(make("span", { class: kind }, text));
  return element;
}

function parts(edge: Edge): [string, string][] {
  const told: [string, string][] = [];
  if (edge.calls !== null) told.push(["rate", `${number(edge.calls)}/s`]);
  if (edge.bytes !== null) told.push(["minor", `${bytes(edge.bytes)}/s`]);
  if (edge.pending > 0) told.push(["open", plural(edge.pending, "call") + " open"]);
  return told;
}

function pairs(edges: Edge[]): HTMLElement {
  const busiest = edges.toSorted((a, b) => weight(b) - weight(a) || b.pending - a.pending);
  const lines = busiest.slice(0, MOST_PAIRS).map((edge) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, `${edge.caller} → ${edge.callee}`),
      make("td", { class: "number" }, edge.calls === null ? "" : number(edge.calls)),
      make("td", { class: "number" }, edge.bytes === null ? "" : bytes(edge.bytes)),
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
