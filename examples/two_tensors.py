"""Two workers, two remote tensors, one backward pass, one step of SGD.

The end-to-end example of PyTorch's note on distributed autograd. Each worker asks the other one
for two tensors, adds them up here, runs backward through both processes, and lets a distributed
optimizer update the tensors where they live.

    lockstitch run -n 2 examples/two_tensors.py        # or: torchrun --nproc-per-node 2 …
"""

import os
import sys

import torch
from torch import optim

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.optim import DistributedOptimizer

LEARNING_RATE = 0.05


def random_tensor():
    return torch.rand(3, 3, requires_grad=True)


def gradient_of(context_id, tensor_rref):
    """Runs where the tensor lives: the context there holds its gradient."""
    return dist_autograd.get_gradients(context_id)[tensor_rref.local_value()]


def train_remote_tensors(other):
    with dist_autograd.context() as context_id:
        # Forward pass (create references on remote nodes).
        rref1 = rpc.remote(other, random_tensor)
        rref2 = rpc.remote(other, random_tensor)
        loss = (rref1.to_here() + rref2.to_here()).sum()

        # Backward pass (run distributed autograd).
        dist_autograd.backward(context_id, [loss])
        gradient = rpc.rpc_sync(other, gradient_of, args=(context_id, rref1))

        # Run the distributed optimizer step.
        optimizer = DistributedOptimizer(optim.SGD, [rref1, rref2], lr=LEARNING_RATE)
        optimizer.step(context_id)

    loss_after = (rref1.to_here() + rref2.to_here()).sum()
    return gradient, loss.item(), loss_after.item()


def main():
    if "RANK" not in os.environ:
        sys.exit("start it so: lockstitch run -n 2 examples/two_tensors.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)

    other = f"worker{(rank + 1) % world_size}"
    gradient, before, after = train_remote_tensors(other)

    # Each of the 18 elements has gradient 1, so the step takes 18 × 0.05 off the sum.
    print(f"worker{rank}: gradient on {other} is all ones: {bool((gradient == 1).all())}")
    print(f"worker{rank}: loss {before:.4f} → {after:.4f}, a fall of {before - after:.4f}")

    rpc.shutdown()


if __name__ == "__main__":
    main()
