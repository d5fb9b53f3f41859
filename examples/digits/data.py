"""Scikit-learn's handwritten digits: 1,797 images of 8×8 pixels, real handwriting, real labels."""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

TEST_IMAGES = 360


@dataclass(frozen=True)
class Digits:
    """Images as float64 [n, 1, 8, 8] with values from 0 to 1, and the digits they show [n]."""

    images: Tensor
    labels: Tensor

    def batches(self, size, generator):
        """All images once, in an order that the generator decides."""
        for chosen in torch.randperm(len(self.labels), generator=generator).split(size):
            yield self.images[chosen], self.labels[chosen]


def load_split(seed):
    """The digits in random order: those to learn from, and TEST_IMAGES for the test."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images = torch.tensor(pixels / 16).view(-1, 1, 8, 8)[order]
    labels = torch.tensor(labels)[order]
    return (
        Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:]),
        Digits(images[:TEST_IMAGES], labels[:TEST_IMAGES]),
    )
