"""What the demo shows in the terminal: the model's parts, progress, some digits, the proof."""

import math

from model import PARTS
from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

LARGEST_DIFFERENCE = 1e-9
LEAST_ACCURACY = 0.95
ACCENT = "cyan"
BARS = "▁▂▃▄▅▆▇█"


class Report:
    def __init__(self):
        self.console = Console()

    def waiting(self, what):
        return self.console.status(f"[dim]{what} …", spinner="dots")

    def show_model(self, processes):
        """The three parts, each with its process, and what flows between them."""
        homes = ["worker1", "worker2", "trainer"]
        flow = Text("\n──▶\n◀──", style=ACCENT)
        boxes = []
        for name, home, process in zip(PARTS, homes, processes, strict=True):
            layers = ", ".join(type(layer).__name__ for layer in PARTS[name]())
            body = Text.assemble((layers, ""), "\n", (f"process {process}", "dim"))
            title = f"[bold]{name}[/] · {home}"
            boxes += [Panel(body, title=title, title_align="left", border_style=ACCENT), flow]
        picture = Table.grid(padding=(0, 1))
        picture.add_row(*boxes[:-1])
        self.console.print("\n[bold]One model in three processes learns handwritten digits")
        self.console.print("[dim]──▶ activations   ◀── gradients, in one backward pass\n")
        self.console.print(picture)
        self.console.print()

    def progress(self):
        return TrainingProgress(
            SpinnerColumn(style=ACCENT, finished_text="[green]✓[/]"),
            TextColumn("{task.description:<15}"),
            BarColumn(bar_width=None, complete_style=ACCENT, finished_style=ACCENT),
            TextColumn("{task.fields[curve]}", style=ACCENT),
            TextColumn("loss [bold]{task.fields[loss]}"),
            TextColumn("read [bold]{task.fields[accuracy]:>6}"),
            TimeElapsedColumn(),
            console=self.console,
            expand=True,
        )

    def show_digits(self, test, guesses):
        """The first test images as the model saw them, with what it read."""
        if not self.console.is_terminal:
            return
        count = min(10, self.console.width // 9)
        shown = [Group(*draw_digit(image[0])) for image in test.images[:count]]
        marks = []
        for guess, label in zip(guesses[:count], test.labels, strict=False):
            style = "bold green" if guess == label else "bold red"
            marks.append(Text(f"   {int(guess)}", style=style))
        grid = Table.grid(padding=(0, 1))
        grid.add_row(*shown)
        grid.add_row(*marks)
        self.console.print("\n[dim]unseen digits, and what the model reads in them\n")
        self.console.print(grid)

    def show_comparison(self, split, whole, difference, picture):
        """The closing table; returns whether the promises were kept."""
        size = sum(parameter.numel() for parameter in split.parameters)
        table = Table(box=box.ROUNDED, border_style="dim", header_style=f"bold {ACCENT}")
        table.add_column("same seed, float64", style="bold")
        for heading in ("three processes", "one process", "greatest difference"):
            table.add_column(heading, justify="right")
        table.add_row(
            f"loss of {len(split.losses):,} steps",
            f"{split.losses[-1]:.6f}",
            f"{whole.losses[-1]:.6f}",
            verdict(difference.losses),
        )
        table.add_row(f"{size:,} parameters", "", "", verdict(difference.parameters))
        table.add_row(
            "unseen digits read", percent(split.accuracies[-1]), percent(whole.accuracies[-1]), ""
        )
        table.add_row("training time", f"{split.seconds:.1f} s", f"{whole.seconds:.1f} s", "")
        self.console.print()
        self.console.print(table)

        equal = max(difference.losses, difference.parameters) <= LARGEST_DIFFERENCE
        learned = split.accuracies[-1] >= LEAST_ACCURACY
        if not equal:
            self.console.print(f"[bold red]✗ they differ by more than {LARGEST_DIFFERENCE:.0e}")
        if not learned:
            self.console.print(
                f"[bold red]✗ fewer than {percent(LEAST_ACCURACY)} are read correctly"
            )
        self.console.print(Text.assemble("learning curve: ", (str(picture), "bold")))
        return equal and learned


class TrainingProgress(Progress):
    """A bar for each training, with its loss as number and curve, and its test accuracy."""

    def follow(self, description, steps):
        """Adds a bar; returns what the training loop should call after each step."""
        fields = {"loss": "—", "accuracy": "—", "curve": " " * 16}
        task = self.add_task(description, total=steps, **fields)

        def update(training):
            self.update(
                task,
                completed=len(training.losses),
                loss=f"{training.losses[-1]:.4f}",
                accuracy=percent(training.accuracies[-1]) if training.accuracies else "—",
                curve=sparkline(training.losses),
            )

        return update


def percent(share):
    return f"{100 * share:.1f} %"


def verdict(difference):
    if difference == 0:
        return "[green]0, bit for bit ✓[/]"
    if difference <= LARGEST_DIFFERENCE:
        return f"[green]{difference:.1e} ✓[/]"
    return f"[bold red]{difference:.1e} ✗[/]"


def sparkline(losses, width=16):
    """The losses so far, on a logarithmic scale, as a row of bars."""
    chunk = -(-len(losses) // width)
    means = [
        math.log(sum(losses[start : start + chunk]) / len(losses[start : start + chunk]) + 1e-9)
        for start in range(0, len(losses), chunk)
    ]
    low, high = min(means), max(means)
    steps = [int((mean - low) / (high - low + 1e-9) * (len(BARS) - 1)) for mean in means]
    return "".join(BARS[step] for step in steps).ljust(width)


def draw_digit(image):
    """An 8×8 image as four lines of text: each character shows two pixels, one above the other."""
    for upper, lower in zip(image[0::2], image[1::2], strict=True):
        line = Text()
        for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
            line.append("▀", style=f"{grey(above)} on {grey(below)}")
        yield line


def grey(value):
    level = int(30 + 225 * value)
    return f"rgb({level},{level},{level})"
