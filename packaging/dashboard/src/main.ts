// The page of a job: its views, and what the server tells at each look.

import "./page.css";
import { Calls } from "./calls";
import { Time } from "./charts";
import { make, setAttribute, setText } from "./dom";
import { clock, plural, span } from "./format";
import { Graph } from "./graph";
import { follow, takeToken, type Link } from "./link";
import type { Point, State, Told, View } from "./state";
import { Trace } from "./trace";
import { Waits } from "./waits";
import { Workers } from "./workers";

const MOST_POINTS = 600;
const LINK_IN_WORDS: Record<Link, string> = {
  waiting: "connecting",
  live: "live",
  lost: "connection lost",
  refused: "refused",
  ended: "ended",
};

class Page {
  private readonly views: Record<string, { label: string; view: View }> = {
    workers: { label: "Workers", view: new Workers() },
    calls: { label: "Who calls whom", view: new Calls() },
    time: { label: "Time", view: new Time() },
    waits: { label: "Waits", view: new Waits() },
    graph: { label: "Graph", view: new Graph() },
    trace: { label: "Trace", view: new Trace() },
  };
  private readonly tabs = new Map<string, HTMLAnchorElement>();
  private readonly main = at("main");
  private state: State | null = null;
  private points: Point[] = [];
  private lostAt = 0;

  constructor() {
    for (const [id, { label, view }] of Object.entries(this.views)) {
      const tab = make("a", { href: `#${id}` }, label, make("span", { class: "badge", hidden: true }));
      this.tabs.set(id, tab);
      at("views").append(tab);
      this.main.append(view.element);
    }
    addEventListener("hashchange", () => this.open());
    this.open();
  }

  hear(told: Told, isFirst: boolean): void {
    this.state = told.state;
    this.points = [...(isFirst ? [] : this.points), ...told.points].slice(-MOST_POINTS);
    this.show();
  }

  note(link: Link): void {
    if (link !== "lost") this.lostAt = 0;
    else this.lostAt ||= Date.now() / 1000;
    setAttribute(at("link"), "data-link", link);
    setText(at("link"), LINK_IN_WORDS[link]);
    const words = this.noticeOf(link);
    at("notice").hidden = words === "";
    setText(at("notice"), words);
  }

  private noticeOf(link: Link): string {
    if (link === "refused") {
      return "This page has no valid token. Open the address that the command printed last: lockstitch dashboard.";
    }
    if (link === "lost") {
      return `No connection to the command since ${clock(this.lostAt)}: has it ended? Trying again …`;
    }
    return "";
  }

  private get current(): string {
    const id = location.hash.slice(1);
    return id in this.views ? id : "workers";
  }

  private open(): void {
    for (const [id, tab] of this.tabs) {
      setAttribute(tab, "aria-current", id === this.current ? "page" : null);
      this.views[id]!.view.element.hidden = id !== this.current;
    }
    this.show();
  }

  private show(): void {
    const state = this.state;
    this.main.classList.toggle("waiting", state === null);
    if (state === null) return;
    const living = state.rows.filter((row) => row.state === "ok" || row.state === "silent").length;
    const lost = state.rows.filter((row) => row.state === "gone" || row.state === "silent").length;
    const until = state.ended_at ?? state.at;
    const ended = state.ended_at === null ? state.job_state : `has ended at ${clock(state.ended_at)}`;
    document.title = `${state.name} · Lockstitch`;
    setText(at("name"), state.name);
    const count = state.ended_at === null ? living : state.rows.length;
    setText(at("about"), `${plural(count, "worker")} · ${ended} · ${span(until - state.started_at)}`);
    at("unreached").hidden = state.unreached.length === 0;
    setText(at("unreached"), state.unreached.join("\n"));
    this.mark("workers", lost);
    this.mark("waits", state.waits.filter((each) => each.kind === "cycle" || each.kind === "culprit").length);
    this.views[this.current]!.view.update(state, this.points);
  }

  /** Shows on a tab how many things there want to be looked at. */
  private mark(id: string, count: number): void {
    const badge = this.tabs.get(id)!.lastElementChild as HTMLElement;
    badge.hidden = count === 0;
    setText(badge, String(count));
  }
}

function at(id: string): HTMLElement {
  return document.getElementById(id)!;
}

takeToken();
const page = new Page();
void follow(
  (told, isFirst) => page.hear(told, isFirst),
  (link) => page.note(link),
);
