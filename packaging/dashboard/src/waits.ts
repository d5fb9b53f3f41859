// What `lockstitch waits` says, refreshed: the causes first, then each worker.

import { make, setAttribute, setChildren, setText } from "./dom";
import type { Paragraph, State, View } from "./state";

const IN_WORDS = {
  cycle: "Cycle",
  culprit: "Waited for",
  nothing: "",
  worker: "",
};

export class Waits implements View {
  readonly element = make("section", { "aria-labelledby": "waits-title" });
  private readonly causes = make("div", { class: "causes" });
  private readonly workers = make("div", { class: "paragraphs" });

  constructor() {
    this.element.append(
      make("h2", { id: "waits-title" }, "Who waits for whom"),
      this.causes,
      make("h3", {}, "Each worker"),
      this.workers,
    );
  }

  update(state: State): void {
    write(this.causes, state.waits.filter((each) => each.kind !== "worker"));
    write(this.workers, state.waits.filter((each) => each.kind === "worker"));
  }
}

/** Writes paragraphs into the boxes that are there, so that what is selected stays. */
function write(parent: Element, paragraphs: Paragraph[]): void {
  const boxes = [...parent.children].slice(0, paragraphs.length);
  while (boxes.length < paragraphs.length) boxes.push(makeBox());
  paragraphs.forEach((paragraph, place) => {
    const box = boxes[place]!;
    setAttribute(box, "data-kind", paragraph.kind);
    const [mark, first, rest] = [...box.children] as [HTMLElement, Element, HTMLElement];
    setText(mark, IN_WORDS[paragraph.kind]);
    mark.hidden = IN_WORDS[paragraph.kind] === "";
    setText(first, paragraph.lines[0] ?? "");
    setText(rest, paragraph.lines.slice(1).map(dedent).join("\n"));
    rest.hidden = paragraph.lines.length < 2;
  });
  setChildren(parent, boxes);
}

function makeBox(): HTMLElement {
  const text = make("pre", { tabindex: "0", "aria-label": "Details" });
  return make("article", {}, make("span", { class: "mark" }), make("p", { class: "first" }), text);
}

function dedent(line: string): string {
  return line.replace(/^ {2}/, "");
}
