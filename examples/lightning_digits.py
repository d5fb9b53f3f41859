"""Lightning trains over Lockstitch's reductions: the same module and trainer, another backend.

A classifier of handwritten digits is trained by `DDPStrategy(process_group_backend="lockstitch")`,
with a learning-rate schedule, clipping and a metric that is averaged over the ranks. Then the same
is done over Gloo, and by rank 0 alone with the whole batches; it prints how far the weights are
apart.

    lockstitch run -n 2 examples/lightning_digits.py [epochs]    # or: torchrun
"""

import logging
import os
import sys
import warnings

import torch
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn, optim
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import lockstitch.c10d  # noqa: F401 - makes the backend known

try:
    import lightning.pytorch as lightning
    from lightning.pytorch.strategies import DDPStrategy
except ImportError:
    sys.exit("this example needs Lightning: pip install 'lightning>=2.5' scikit-learn")

BATCH = 96  # of all ranks together
TEST_IMAGES = 357  # leaves 1,440 to learn from: whole batches


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()
        self.losses = []

    def training_step(self, batch, _index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        self.losses.append(self.trainer.callback_metrics["loss"].item())

    def configure_optimizers(self):
        optimizer = optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
        return [optimizer], [optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class EveryNth:
    """Batches of which each of `parts` ranks gets every `parts`-th image."""

    def __init__(self, images, part, parts):
        self.batches = list(BatchSampler(SequentialSampler(images), BATCH, drop_last=True))
        self.part, self.parts = part, parts

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return (batch[self.part :: self.parts] for batch in self.batches)


def digits():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images)[order] / 16, torch.tensor(labels)[order]


def train(epochs, part, parts, **options):
    """Returns the trained module."""
    images, labels = (values[TEST_IMAGES:] for values in digits())
    module = Digits()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        gradient_clip_val=1.0,
        use_distributed_sampler=False,  # ours cuts batches so that one process can have the same
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    loader = DataLoader(TensorDataset(images, labels), batch_sampler=EveryNth(images, part, parts))
    trainer.fit(module, loader)
    return module


def train_over(backend, rank, size, epochs):
    """On all ranks, in a process group that is begun for it and ended afterwards."""
    strategy = DDPStrategy(process_group_backend=backend)
    trained = train(epochs, rank, size, strategy=strategy, devices=size)
    assert dist.get_backend() == backend
    dist.barrier()
    dist.destroy_process_group()
    return trained


def difference(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((here - there).abs().max().item() for here, there in pairs)


def main():
    if "RANK" not in os.environ:
        sys.exit("start it so: lockstitch run -n 2 examples/lightning_digits.py")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # Lightning removes them
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    torch.set_num_threads(1)  # several processes share the cores
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    ours = train_over("lockstitch", rank, size, epochs)
    gloo = train_over("gloo", rank, size, epochs)
    if rank > 0:
        return
    for epoch, loss in enumerate(ours.losses):
        print(f"epoch {epoch}  loss {loss:.4f}")
    images, labels = (values[:TEST_IMAGES] for values in digits())
    right = (ours.layers(images).argmax(1) == labels).double().mean()
    print(f"right: {100 * right:.1f} % of images it has not seen")
    print(f"greatest difference from Gloo {difference(ours, gloo):.1e}")
    alone = train(epochs, 0, 1, devices=1)
    print(f"greatest difference from one process {difference(ours, alone):.1e}")


if __name__ == "__main__":
    main()
