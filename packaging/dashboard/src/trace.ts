// A button that records what all workers do for some seconds, and saves it as a file for Perfetto.

import { make, setText } from "./dom";
import { bytes, clock, plural } from "./format";
import { ask } from "./link";
import type { State, View } from "./state";

const CHOICES = [1, 5, 10, 30, 60];
const USUAL = 10;

export class Trace implements View {
  readonly element = make("section", { "aria-labelledby": "trace-title" });
  private readonly choice = make("select", { id: "seconds" });
  private readonly button = make("button", { type: "button", click: () => void this.record() }, "Record a trace");
  private readonly said = make("p", { role: "status", class: "said" });
  private name = "job";
  private isOver = false;
  private isRecording = false;

  constructor() {
    for (const seconds of CHOICES) {
      this.choice.append(make("option", { value: String(seconds), selected: seconds === USUAL }, plural(seconds, "second")));
    }
    this.element.append(
      make("h2", { id: "trace-title" }, "Trace"),
      make("div", { class: "bar" }, make("label", { for: "seconds" }, "Record for"), this.choice, this.button),
      this.said,
      make(
        "p",
        { class: "minor prose" },
        "All workers note their calls, backward passes, collectives and steps for that long, with arrows from " +
          "callers to callees. The file is saved like a download, and opens in Perfetto (ui.perfetto.dev), which " +
          "reads it in the browser and uploads nothing, or at chrome://tracing.",
      ),
    );
  }

  update(state: State): void {
    this.name = state.name;
    this.isOver = state.ended_at !== null;
    this.button.disabled = this.isOver || this.isRecording;
  }

  private async record(): Promise<void> {
    const seconds = Number(this.choice.value);
    this.isRecording = this.button.disabled = true;
    setText(this.said, `Recording for ${plural(seconds, "second")} …`);
    try {
      const answer = await ask(`/api/trace?seconds=${seconds}`);
      if (!answer.ok) throw new Error(((await answer.json()) as { error: string }).error);
      const content = await answer.blob();
      const file = `${this.name}-${clock(Date.now() / 1000).replaceAll(":", "")}.json`;
      const link = make("a", { href: URL.createObjectURL(content), download: file });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      setText(this.said, `Saved as ${file} (${bytes(content.size)}).`);
    } catch (error) {
      setText(this.said, `No trace was recorded: ${error instanceof Error ? error.message : String(error)}`);
    } finally {
      this.isRecording = false;
      this.button.disabled = this.isOver;
    }
  }
}
