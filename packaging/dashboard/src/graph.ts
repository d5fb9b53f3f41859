// The graph of an open autograd context, as the server draws it.

import { make, setAttribute, setChildren } from "./dom";
import { ask } from "./link";
import type { State, View } from "./state";

export class Graph implements View {
  readonly element = make("section", { "aria-labelledby": "graph-title" });
  private readonly choice = make("select", { id: "context", change: () => void this.draw() });
  private readonly again = make("button", { type: "button", click: () => void this.draw() }, "Draw again");
  private readonly bar = make("div", { class: "bar" }, make("label", { for: "context" }, "Context"), this.choice, this.again);
  private readonly picture = make("img", { alt: "" });
  private readonly message = make("p", { class: "empty" });
  private readonly place = make("div", { class: "picture", tabindex: "0", role: "region", "aria-label": "Picture" });
  private known = "";

  constructor() {
    this.element.append(make("h2", { id: "graph-title" }, "Autograd contexts"), this.bar, this.place);
  }

  update(state: State): void {
    const known = state.contexts.join(" ");
    if (known !== this.known || this.place.children.length === 0) {
      this.known = known;
      const kept = this.choice.value;
      setChildren(this.choice, state.contexts.map((id) => make("option", { value: String(id) }, String(id))));
      if (state.contexts.map(String).includes(kept)) this.choice.value = kept;
      else if (state.contexts.length > 0 && this.picture.src === "") void this.draw();
    }
    this.bar.hidden = state.contexts.length === 0 && this.picture.src === "";
    if (state.contexts.length === 0 && this.picture.src === "") {
      this.say("No context of distributed autograd is open at the moment.");
    }
  }

  private async draw(): Promise<void> {
    const context = this.choice.value;
    const answer = await ask(`/api/graph?context=${encodeURIComponent(context)}`).catch(() => null);
    if (answer === null) return; // told by the page as a whole
    if (!answer.ok) {
      const told = (await answer.json().catch(() => ({}))) as { error?: string };
      this.say(told.error ?? "The picture could not be drawn.");
      return;
    }
    URL.revokeObjectURL(this.picture.src);
    this.picture.src = URL.createObjectURL(await answer.blob());
    setAttribute(this.picture, "alt", `What was sent between workers in autograd context ${context}`);
    setChildren(this.place, [this.picture]);
  }

  private say(words: string): void {
    this.message.textContent = words;
    setChildren(this.place, [this.message]);
  }
}
