"""What stands on torch.distributed gives over our backend what it gives over Gloo, to the bit."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.processes.groups import begin, compare
from tests.processes.ranks import RankProcesses

pytestmark = [
    pytest.mark.slow,
    # torch 2.13 has other names for some functions, which older ones lack.
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
    # ZeroRedundancyOptimizer is imported with functional optimizers for TorchScript.
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning"),
]

# ruff: noqa: PLC0415 - what takes seconds to import is imported where it is needed

# ---------------------------------------------------------------- libraries, under torchrun


def torchrun(program: str, *options: str, **environment: str) -> dict[str, list[float]]:
    """What a program of `c10d_programs` has trained over each backend."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += [*options, "--nproc-per-node", "2", "-m", "tests.processes.c10d_programs", program]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(lines[-1])


@pytest.mark.parametrize("library", ["lightning", "accelerate", "ignite"])
def test_library_trains_to_the_same_parameters(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; the extra c10d-test has it")
    trained = torchrun(f"with_{library}")
    assert len(trained["gloo"]) > 100
    assert trained["lockstitch"] == trained["gloo"]


def test_torchrun_starts_all_ranks_anew_when_one_fails() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torchrun("restarted", "--max-restarts", "1", TEMP_FOLDER=folder)
        assert [path.name for path in Path(folder).iterdir()] == ["1"]


# ---------------------------------------------------------------- pipelines


def stages(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]


def piped(rank: int, schedule_of, layers: list[nn.Module], own: list[int]) -> torch.Tensor:
    """Gradients of this rank's stages, after two steps of a schedule."""
    from torch.distributed.pipelining import PipelineStage

    device = torch.device("cpu")
    mine = [PipelineStage(layers[at], at, len(layers), device) for at in own]
    schedule = schedule_of(mine)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        inputs, targets = (torch.randn(8, 6, generator=generator) for _ in range(2))
        given = (inputs,) if 0 in own else ()
        schedule.step(*given, target=targets if len(layers) - 1 in own else None)
    gradients = [each.grad for at in own for each in layers[at].parameters()]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    return torch.cat([gradient.flatten() for gradient in gradients])


def one_forward_one_backward(rank: int) -> torch.Tensor:
    from torch.distributed.pipelining import Schedule1F1B

    size = distributed.get_world_size()

    def made(mine):
        return Schedule1F1B(mine[0], 4, loss_fn=nn.functional.mse_loss)

    return piped(rank, made, stages(size), [rank])


def interleaved(rank: int) -> torch.Tensor:
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    size = distributed.get_world_size()

    def made(mine):
        return ScheduleInterleaved1F1B(mine, 4, loss_fn=nn.functional.mse_loss)

    return piped(rank, made, stages(2 * size), [rank, rank + size])


@pytest.mark.parametrize("size", [2, 3])
def test_pipelines_compute_the_same_gradients(size: int) -> None:
    compare([one_forward_one_backward, interleaved], size)


# ---------------------------------------------------------------- sharding


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.perceptron = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        output: torch.Tensor = tokens + self.perceptron(self.norm(tokens))
        return output


def transformer() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 16), Block(), Block(), nn.Linear(16, 20))


def sharded() -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    module = transformer()
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    fully_shard(module[1], mesh=mesh)
    fully_shard(module[2], mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh)
    return module


def train_on_tokens(module: nn.Module, rank: int, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        tokens = torch.randint(0, 20, (2, 8), generator=generator)
        nn.functional.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def whole_parameters(module: nn.Module) -> torch.Tensor:
    parameters = [each.full_tensor().detach().flatten() for each in module.parameters()]
    return torch.cat(parameters)


def sharded_transformer(rank: int) -> torch.Tensor:
    module = sharded()
    train_on_tokens(module, rank)
    return whole_parameters(module)


def on_two_dimensions(rank: int) -> torch.Tensor:
    """Rows of the mesh shard, columns replicate: `fully_shard` over both."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    module = transformer()
    fully_shard(module[1], mesh=mesh)
    fully_shard(module, mesh=mesh)
    train_on_tokens(module, rank, steps=2)
    return whole_parameters(module)


def test_sharded_transformer_is_trained_to_the_same_parameters() -> None:
    compare([sharded_transformer])  # of more ranks Gloo adds in another order


def test_mesh_of_two_dimensions_gives_the_same_parameters() -> None:
    compare([on_two_dimensions], 4)


def save_or_load(rank: int, size: int, file: str, folder: str, *, saves: bool) -> list[float]:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    begin(rank, size, file)
    module = sharded()
    optimizer = train_on_tokens(module, rank, steps=2 if saves else 1)
    model_state, optimizer_state = get_state_dict(module, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    if saves:
        checkpoint.save(state, checkpoint_id=folder)
    else:
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(
            module,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    moments = [value["exp_avg"].full_tensor().sum() for value in optimizer.state.values()]
    found = [*whole_parameters(module).tolist(), *torch.stack(moments).tolist()]
    distributed.barrier()
    distributed.destroy_process_group()
    return found


def save(rank: int, size: int, file: str, folder: str) -> list[float]:
    return save_or_load(rank, size, file, folder, saves=True)


def load(rank: int, size: int, file: str, folder: str) -> list[float]:
    return save_or_load(rank, size, file, folder, saves=False)


def test_checkpoint_is_loaded_onto_another_number_of_ranks(tmp_path: Path) -> None:
    with RankProcesses(2) as two:
        saved = two.run(save, str(tmp_path / "checkpoint"))
    with RankProcesses(3) as three:
        loaded = three.run(load, str(tmp_path / "checkpoint"))
    count = len(saved[0]) - len(list(transformer().parameters()))
    for each in (*saved, *loaded):
        assert each[:count] == saved[0][:count]
        assert each[count:] == pytest.approx(saved[0][count:])  # summed over other shards


# ---------------------------------------------------------------- split layers and optimizers


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 6))


def train_on_noise(
    module: nn.Module, optimizer: torch.optim.Optimizer, seed: int, steps: int = 4
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        module(torch.randn(5, 6, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def split_layers(_rank: int) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    module = parallelize_module(perceptron(), mesh, plan)
    train_on_noise(module, torch.optim.AdamW(module.parameters(), lr=0.01), seed=7)
    return whole_parameters(module)


def split_sequences_and_losses(_rank: int) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20))
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1": SequenceParallel(),
        "2": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(module, mesh, plan)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    tokens = torch.randint(0, 20, (3, 8))
    for _ in range(3):
        with loss_parallel():
            nn.functional.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole_parameters(module)


def split_optimizer(rank: int) -> torch.Tensor:
    """Ranks have inputs of different number, too."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    inner = perceptron()
    module = DistributedDataParallel(inner)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, lr=0.01)
    with Join([module, optimizer]):
        train_on_noise(module, optimizer, seed=rank, steps=3 + rank)
    return nn.utils.parameters_to_vector(inner.parameters()).detach()


def averaged_now_and_then(rank: int) -> torch.Tensor:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    inner = perceptron()
    module = DistributedDataParallel(inner)
    alone, _ = distributed.new_subgroups(group_size=1)
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=2)
    module.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = PostLocalSGDOptimizer(plain, PeriodicModelAverager(period=2, warmup_steps=2))
    train_on_noise(module, optimizer, seed=rank, steps=7)
    return nn.utils.parameters_to_vector(inner.parameters()).detach()


def test_split_layers_and_optimizers_train_to_the_same_parameters() -> None:
    compare([split_layers, split_sequences_and_losses, split_optimizer, averaged_now_and_then])


# ---------------------------------------------------------------- compiled


def functional_collectives(rank: int) -> torch.Tensor:
    import torch.distributed._functional_collectives as collectives

    group = distributed.group.WORLD
    size = distributed.get_world_size()

    def computed(tensor: torch.Tensor) -> torch.Tensor:
        total = collectives.all_reduce(tensor * 2, "sum", group)
        gathered = collectives.all_gather_tensor(total + rank, 0, group)
        scattered = collectives.reduce_scatter_tensor(gathered, "sum", 0, group)
        swapped = collectives.all_to_all_single(gathered, None, None, group)
        return (scattered.sin() + swapped.view(size, -1).sum(0)).relu()

    compiled = torch.compile(computed, backend="aot_eager", fullgraph=True)
    given = torch.arange(4.0) + rank
    result: torch.Tensor = compiled(given)
    torch.testing.assert_close(result, computed(given), rtol=0, atol=0)
    return result


def compiled_replica(rank: int) -> torch.Tensor:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
    module = torch.compile(DistributedDataParallel(inner), backend="aot_eager")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        module(torch.randn(5, 6, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(inner.parameters()).detach()


def test_compiled_collectives_and_replicas_compute_the_same() -> None:
    compare([functional_collectives, compiled_replica])
