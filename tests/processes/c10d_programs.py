"""Programs of libraries that begin their process group themselves; torchrun starts them.

    torchrun --nproc-per-node 2 -m tests.processes.c10d_programs with_lightning

Each trains the same over our backend and over Gloo, in the same processes. Rank 0 writes the
parameters of both as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import lockstitch.c10d  # noqa: F401 - makes the backend known

if TYPE_CHECKING:
    from collections.abc import Callable


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(48, 6, generator=generator), torch.randn(48, 1, generator=generator)
    )


def with_lightning(backend: str) -> nn.Module:
    import lightning.pytorch as lightning  # noqa: PLC0415 - takes seconds, and may be missing
    from lightning.pytorch.strategies import DDPStrategy  # noqa: PLC0415

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module()

        def training_step(self, batch, _index):
            inputs, targets = batch
            loss = nn.functional.mse_loss(self.inner(inputs), targets)
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        strategy=DDPStrategy(process_group_backend=backend),
        accelerator="cpu",
        devices=2,
        max_epochs=2,
        sync_batchnorm=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    regression = Regression()
    trainer.fit(regression, DataLoader(data(), batch_size=4))
    assert distributed.get_backend() == backend
    return regression


def with_accelerate(backend: str) -> nn.Module:
    from accelerate import Accelerator  # noqa: PLC0415
    from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: PLC0415

    distributed.init_process_group(backend)  # it takes a group that is there, and no other names
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert distributed.get_backend() == backend
    inner = module()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    loader = DataLoader(data(), batch_size=4)
    inner, optimizer, loader = accelerator.prepare(inner, optimizer, loader)
    for inputs, targets in loader:
        with accelerator.accumulate(inner):
            accelerator.backward(nn.functional.mse_loss(inner(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    total = accelerator.gather(torch.ones(1))
    assert total.tolist() == [1.0, 1.0]
    trained = accelerator.unwrap_model(inner)
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()  # so that it may begin again, over the other backend
    return trained


def with_ignite(backend: str) -> nn.Module:
    import ignite.distributed as idist  # noqa: PLC0415
    from ignite.engine import Engine  # noqa: PLC0415
    from ignite.metrics import Average  # noqa: PLC0415

    distributed.init_process_group(backend)
    assert idist.backend() == backend
    # `idist.auto_model` does so for the backends that it knows.
    inner = nn.parallel.DistributedDataParallel(module())
    optimizer = idist.auto_optim(torch.optim.SGD(inner.parameters(), lr=0.1))

    def step(_engine, batch):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(inner(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(step)
    Average(output_transform=lambda loss: loss).attach(trainer, "loss")
    trainer.run(idist.auto_dataloader(data(), batch_size=8, shuffle=False), max_epochs=2)
    assert 0 < trainer.state.metrics["loss"] < 10
    idist.barrier()
    return inner


def restarted(_backend: str) -> nn.Module:
    """Rank 1 fails once: torchrun starts all of them anew."""
    distributed.init_process_group("lockstitch")
    inner = nn.parallel.DistributedDataParallel(module())
    inputs, targets = data()[:8]
    nn.functional.mse_loss(inner(inputs), targets).backward()
    if distributed.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(3)
    mark = Path(os.environ["TEMP_FOLDER"], f"{os.environ['TORCHELASTIC_RESTART_COUNT']}")
    distributed.barrier()
    mark.touch()
    return inner


PROGRAMS: dict[str, Callable[[str], nn.Module]] = {
    each.__name__: each for each in (with_lightning, with_accelerate, with_ignite, restarted)
}


def main(name: str) -> None:
    found = {}
    for backend in ("lockstitch",) if name == "restarted" else ("lockstitch", "gloo"):
        trained = PROGRAMS[name](backend)
        state = trained.state_dict().values()
        found[backend] = torch.cat([each.flatten().double() for each in state]).tolist()
        rank = distributed.get_rank()
        distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
