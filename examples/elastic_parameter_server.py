"""A parameter server whose trainers are killed while they train, and replaced; the loss goes on
falling.

The server starts its trainers as processes of their own, which join its group through an
*invitation*: there is no fixed number of workers. Now and then it kills one, as a scheduler or a
broken machine would. It hears of the death from the group (`add_membership_callback`), starts
another one under the same name, and training never stops. The model learns to add eight numbers.

    python examples/elastic_parameter_server.py [steps] [kills]
"""

import multiprocessing
import sys
import tempfile
import threading

import torch
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.optim import DistributedOptimizer

BATCH = 64
TRAINERS = ("trainer1", "trainer2", "trainer3")
PROCESSES = multiprocessing.get_context("forkserver")


class ParameterServer:
    """Owns the model; its methods are called by the trainers through a remote reference."""

    one = None

    def __init__(self, steps):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.losses = []
        self._steps = steps
        self._stepped = threading.Condition()

    def forward(self, inputs):
        return self.model(inputs)

    def parameters(self):
        return [rpc.RRef(parameter) for parameter in self.model.parameters()]

    def report(self, loss):
        """A trainer has made a step; returns whether it shall make another one."""
        with self._stepped:
            self.losses.append(loss)
            self._stepped.notify_all()
            return len(self.losses) < self._steps

    def wait_for_step(self, number):
        with self._stepped:
            self._stepped.wait_for(lambda: len(self.losses) >= number)


def find_server():
    """Runs on the server."""
    return rpc.RRef(ParameterServer.one)


def train(name, seed, invitation):
    """The life of a trainer, in a process of its own."""
    torch.set_num_threads(1)  # several processes share the cores
    torch.manual_seed(seed)

    options = rpc.TensorPipeRpcBackendOptions(init_method=invitation)
    rpc.init_rpc(name, rpc_backend_options=options)
    server = rpc.rpc_sync("server", find_server)
    optimizer = DistributedOptimizer(optim.SGD, server.rpc_sync().parameters(), lr=0.002)
    goes_on = True
    while goes_on:
        inputs = torch.randn(BATCH, 8)
        with dist_autograd.context() as context_id:
            outputs = server.rpc_sync().forward(inputs)
            loss = nn.functional.mse_loss(outputs, inputs.sum(1, keepdim=True))
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        goes_on = server.rpc_sync().report(loss.item())
    rpc.shutdown()


class Trainers:
    """The processes, by name; who dies is replaced."""

    def __init__(self, invitation):
        self._invitation = invitation
        self._processes = {}
        self._started = 0

    def start(self, name):
        self._started += 1
        arguments = (name, self._started, self._invitation)
        self._processes[name] = PROCESSES.Process(target=train, args=arguments, name=name)
        self._processes[name].start()

    def note(self, event):
        """Called for each worker that joins, leaves or dies."""
        if event.kind == "died":
            print(f"{event.worker.name} died: another one starts", flush=True)
            self.start(event.worker.name)

    def kill(self, name):
        self._processes[name].kill()

    def join(self):
        for process in self._processes.values():
            process.join()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    PROCESSES.set_forkserver_preload(["torch", "lockstitch.optim", "lockstitch.autograd"])
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as folder:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/store")
        rpc.init_rpc("server", rank=0, rpc_backend_options=options)
        server = ParameterServer.one = ParameterServer(steps)
        trainers = Trainers(rpc.invitation())
        rpc.add_membership_callback(trainers.note)
        for name in TRAINERS:
            trainers.start(name)

        part = steps // (kills + 1)
        for number in range(kills):
            server.wait_for_step((number + 1) * part)
            print(f"step {(number + 1) * part:5}  loss {mean(server.losses):.4f}", flush=True)
            name = TRAINERS[number % len(TRAINERS)]
            victim = rpc.wait_for_worker(name, 60)
            trainers.kill(name)
            back = rpc.wait_for_worker(name, 60, after=victim)
            print(f"{name} is back, in generation {back.generation}", flush=True)
        server.wait_for_step(steps)
        trainers.join()
        rpc.shutdown()
    print(f"step {steps:5}  loss {mean(server.losses):.4f}")
    print(f"the loss fell from {mean(server.losses[:20]):.4f} to {mean(server.losses):.4f}")


def mean(losses):
    last = losses[-20:]
    return sum(last) / len(last)


if __name__ == "__main__":
    main()
