"""A model with all that makes data parallelism hard, on two processes: inputs and outputs that are
dicts, batch statistics, dropout, and one matrix that is both embedding and output layer.

It learns which word comes next in a language where that is the sum of the last two words.

    python examples/data_parallel_model.py [steps]
"""

import sys

import torch
from torch import nn, optim

from lockstitch.nn import DataParallel, Replicate

WORDS, WIDTH, BATCH = 12, 48, 128


class NextWord(nn.Module):
    """Takes a dict of batches, and a bias for each word [WORDS] that belongs to no batch."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Sequential(
            *(nn.Linear(2 * WIDTH, 128), nn.BatchNorm1d(128), nn.ReLU()),
            *(nn.Dropout(0.1), nn.Linear(128, WIDTH)),
        )
        self.output = nn.Linear(WIDTH, WORDS, bias=False)
        self.output.weight = self.embedding.weight  # tied: one parameter, one gradient

    def forward(self, batch, bias):
        last_two = torch.cat([self.embedding(batch["first"]), self.embedding(batch["second"])], 1)
        scores = self.output(self.mix(last_two)) + bias
        losses = nn.functional.cross_entropy(scores, batch["next"], reduction="none")
        return {"losses": losses, "word": scores.argmax(1)}


def batch_of(generator):
    first, second = torch.randint(WORDS, (2, BATCH), generator=generator)
    return {"first": first, "second": second, "next": (first + second) % WORDS}


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    torch.manual_seed(0)
    module = NextWord()
    model = DataParallel(module, ["fork", "fork"])
    optimizer = optim.Adam(model.parameters(), lr=0.005)
    generator = torch.Generator().manual_seed(0)
    bias = Replicate(torch.zeros(WORDS))  # whole for every slot

    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch_of(generator), bias)["losses"].mean()
        loss.backward()
        optimizer.step()
        if step in (0, steps - 1):
            print(f"step {step:3}  loss {loss.item():.3f}")
    print(f"batches in the running mean: {module.mix[1].num_batches_tracked}")
    print(f"still tied: {module.output.weight is module.embedding.weight}")

    model.eval()
    batch = batch_of(generator)
    with torch.no_grad():
        together, alone = model(batch, bias), module(batch, bias.value)
    print(f"right: {(together['word'] == batch['next']).double().mean().item():.0%} of the words")
    difference = (together["losses"] - alone["losses"]).abs().max().item()
    print(f"greatest difference from the plain module {difference:.1e}")
    model.close()


if __name__ == "__main__":
    main()
