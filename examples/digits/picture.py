"""The learning-curve picture: loss and accuracy of both trainings, and some digits as read."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import MaxNLocator, PercentFormatter

BLUE, ORANGE, GREEN, RED, GREY = "#2563eb", "#f97316", "#15803d", "#dc2626", "#6b7280"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
}
THICK = {"color": BLUE, "alpha": 0.35, "linewidth": 6, "solid_capstyle": "round"}
THIN = {"color": ORANGE, "linewidth": 1.4}
DIGITS = 20


def draw_picture(path, split, whole, test):
    """Writes the picture to `path`, as PNG, SVG or PDF by its ending."""
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(10, 5.6), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
        title = "One model in three processes learns handwritten digits"
        figure.suptitle(title, x=0.015, ha="left", fontsize=14, fontweight="bold")
        axes = figure.subplot_mosaic([["loss", "accuracy"], ["digits"] * 2], height_ratios=[5, 1])
        draw_losses(axes["loss"], split, whole)
        draw_accuracies(axes["accuracy"], split, whole)
        draw_digits(axes["digits"], test, split.guesses)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def draw_losses(axes, split, whole):
    """Every step as a thread, the mean over an epoch as a line: one process on top of three."""
    span = len(split.losses) // len(split.accuracies)
    steps = range(1, len(split.losses) + 1)
    axes.semilogy(steps, split.losses, color=BLUE, alpha=0.25, linewidth=0.7)
    axes.semilogy(steps[span - 1 :], means(split.losses, span), **THICK, label="three processes")
    axes.semilogy(steps[span - 1 :], means(whole.losses, span), **THIN, label="one process")
    axes.set(title="Loss of each step, and its mean over an epoch", xlabel="step")
    axes.legend()


def draw_accuracies(axes, split, whole):
    for training, line in ((split, THICK), (whole, THIN)):
        axes.plot(range(1, len(training.accuracies) + 1), training.accuracies, **line)
    axes.axhline(0.95, color=GREY, linewidth=1, linestyle=":")
    title = f"Unseen digits read correctly: {split.accuracies[-1]:.1%}"
    axes.set(title=title, xlabel="epoch", ylim=(None, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def draw_digits(axes, test, guesses):
    """A row of test images; below each what the model read, in red beside the truth if wrong."""
    pitch = 11  # pixels from one image to the next
    row = torch.zeros(8, DIGITS * pitch)
    for number in range(DIGITS):
        left = number * pitch
        row[:, left : left + 8] = test.images[number, 0]
        guess, label = int(guesses[number]), int(test.labels[number])
        text, colour = (f"{guess}", GREEN) if guess == label else (f"{guess} ≠ {label}", RED)
        axes.text(left + 3.5, 11, text, ha="center", color=colour, fontweight="bold")
    axes.imshow(row, cmap="gray_r")
    axes.axis("off")


def means(losses, span):
    """The mean of each `span` losses in a row."""
    return [sum(losses[end - span : end]) / span for end in range(span, len(losses) + 1)]
