"""A transformer that learns to write, cut into stages on three workers, trained by 1F1B.

`split` cuts the model where its stages take about the same time. The rest is an ordinary loop: a
learning-rate scheduler, clipping by the norm over all workers, and bfloat16 by autocast. The same
model is trained in one process beside it, with the same micro-batches, and compared at the end. The
text is that of Python's own manual, which is part of its standard library, character by character.

    lockstitch run -n 3 examples/transformer_pipeline.py [steps]
"""

import copy
import os
import sys
from pydoc_data.topics import topics

import torch
from torch import nn, optim

from lockstitch import autograd, rpc
from lockstitch.nn import Pipeline, split
from lockstitch.optim import DistributedOptimizer, clip_grad_norm_

TEXT = "".join(topics.values()).encode("ascii", "ignore")
LENGTH, ROWS, MICRO_BATCHES = 64, 16, 8
WIDTH, LAYERS, HEADS = 96, 5, 4
LEARNING_RATE, LONGEST = 3e-3, 1.0


class Block(nn.Module):
    """Attention to what came before, and a network for each character."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.project, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden):
        parts = self.project(self.norms[0](hidden)).chunk(3, dim=-1)
        query, key, value = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts]
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.merge(seen.transpose(1, 2).flatten(2))
        return hidden + self.network(self.norms[1](hidden))


class LanguageModel(nn.Module):
    """The next character, of 128, after each."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(128, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128))

    def forward(self, characters):
        return self.head(self.blocks(self.embedding(characters) + self.places))


def loss_of(logits, target):
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())


def draw_batch():
    begins = torch.randint(len(TEXT) - LENGTH - 1, (ROWS,)).tolist()
    rows = torch.tensor([list(TEXT[begin : begin + LENGTH + 1]) for begin in begins])
    return rows[:, :-1], rows[:, 1:]


class Twin:
    """The same training in one process."""

    def __init__(self, model, steps):
        self.model = model
        self.optimizer = optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def step(self, batch, target):
        self.optimizer.zero_grad()
        losses = []
        for given, wanted in zip(
            batch.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES), strict=True
        ):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(self.model(given), wanted) / MICRO_BATCHES
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST)
        self.optimizer.step()
        self.scheduler.step()
        return sum(losses)


def train(workers, steps):
    torch.manual_seed(0)
    model = LanguageModel()
    twin = Twin(copy.deepcopy(model), steps)

    stages = split(model, workers, example=draw_batch()[0][:2], by="time")
    pipeline = Pipeline(stages, schedule="1f1b", chunks=MICRO_BATCHES)
    optimizer = DistributedOptimizer(optim.AdamW, pipeline.remote_parameters(), lr=LEARNING_RATE)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    counts = [len(stage.remote_parameters()) for stage in stages]
    print(f"{pipeline}\nparameters of the stages: {counts}", flush=True)

    greatest = 0.0
    for step in range(steps):
        batch, target = draw_batch()
        with autograd.context() as context_id:
            with torch.autocast("cpu", torch.bfloat16):
                loss = pipeline.step(context_id, batch, target, loss_of)
            clip_grad_norm_(optimizer, context_id, LONGEST)
            optimizer.step(context_id)
        scheduler.step()

        expected = twin.step(batch, target)
        greatest = max(greatest, abs(loss.item() - expected))
        if step % 10 == 9 or step + 1 == steps:
            print(
                f"step {step + 1:4}  loss {loss.item():.4f}  in one process {expected:.4f}"
                f"  bubble {pipeline.last_step.bubble:.0%}",
                flush=True,
            )
    print(f"greatest difference of losses: {greatest:.1e}")


def main():
    if os.environ.get("WORLD_SIZE") != "3":
        sys.exit("start it so: lockstitch run -n 3 examples/transformer_pipeline.py")
    rank, steps = int(os.environ["RANK"]), int(sys.argv[1]) if len(sys.argv) > 1 else 100
    workers = ["trainer", "stage1", "stage2"]
    torch.set_num_threads(1)  # several processes share the cores

    rpc.init_rpc(workers[rank], rank=rank, world_size=3)
    if rank == 0:
        train(workers, steps)
    rpc.shutdown()


if __name__ == "__main__":
    main()
