"""The training loop, and the comparison of two trainings. Neither knows where a model lives."""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

BATCH = 64


@dataclass
class Training:
    """What one training leaves behind."""

    losses: list[float] = field(default_factory=list)  # after each step
    accuracies: list[float] = field(default_factory=list)  # on the test images, after each epoch
    parameters: list[Tensor] = field(default_factory=list)  # in the end
    guesses: Tensor | None = None  # for the test images, in the end
    seconds: float = 0.0


@dataclass(frozen=True)
class Difference:
    """How far two trainings are apart: greatest absolute difference of any loss, any parameter."""

    losses: float
    parameters: float

    @classmethod
    def between(cls, one, other):
        pairs = zip(one.losses, other.losses, strict=True)
        tensors = zip(one.parameters, other.parameters, strict=True)
        return cls(
            losses=max(abs(a - b) for a, b in pairs),
            parameters=max((a - b).abs().max().item() for a, b in tensors),
        )


def count_steps(digits, epochs):
    return epochs * -(-len(digits.labels) // BATCH)


def train(model, digits, test, epochs, seed, on_step):
    """Trains for some epochs; the same seed gives the same batches in the same order.

    `on_step(training)` is called after each step and each test, to show how it goes.
    """
    training = Training()
    generator = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    for _ in range(epochs):
        for images, labels in digits.batches(BATCH, generator):
            training.losses.append(model.step(images, labels))
            on_step(training)
        with torch.no_grad():
            training.guesses = model.predict(test.images).argmax(1)
        right = (training.guesses == test.labels).double().mean().item()
        training.accuracies.append(right)
        on_step(training)
    training.seconds = time.perf_counter() - start
    training.parameters = model.parameters()
    return training
