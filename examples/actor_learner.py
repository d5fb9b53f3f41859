"""Actors play, one learner thinks for all of them: balancing poles on carts.

Each actor steps its own carts and asks the learner what to do. `async_execution` lets the learner
answer late: it collects the questions of all actors, runs the policy once on the whole batch, and
only then completes everybody's answer, holding no thread meanwhile. After each round it learns
from the rewards (REINFORCE with a baseline). The physics of the cart and the pole are those of
Barto, Sutton and Anderson (1983).

    lockstitch run -n 3 examples/actor_learner.py [rounds]
"""

import math
import os
import sys
import threading

import torch
from torch import nn, optim

from lockstitch import rpc

CARTS = 16  # per actor
STEPS = 100  # per round
DISCOUNT = 0.97


class Carts:
    """Poles hinged on carts; a push to the left or right at each step keeps them up, or not."""

    def __init__(self, count):
        self.state = torch.empty(count, 4).uniform_(-0.05, 0.05)  # x, speed, angle, its speed

    def step(self, push_right):
        """Pushes every cart; returns which ones fell, and puts those back to the start."""
        gravity, pole, cart_mass, pole_mass, seconds = 9.8, 0.5, 1.0, 0.1, 0.02
        _x, speed, angle, spin = self.state.unbind(1)
        force = torch.where(push_right, 10.0, -10.0)
        mass = cart_mass + pole_mass
        pull = (force + pole_mass * pole * spin**2 * angle.sin()) / mass
        spin_change = (gravity * angle.sin() - angle.cos() * pull) / (
            pole * (4 / 3 - pole_mass * angle.cos() ** 2 / mass)
        )
        speed_change = pull - pole_mass * pole * spin_change * angle.cos() / mass
        change = torch.stack([speed, speed_change, spin, spin_change], 1)
        self.state = self.state + seconds * change
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > math.radians(12))
        fresh = torch.empty_like(self.state).uniform_(-0.05, 0.05)
        self.state = torch.where(fell[:, None], fresh, self.state)
        return fell


class Learner:
    """Owns the policy. Its `choose` answers all actors at once, when the last one has asked."""

    def __init__(self, actors):
        self.actors = actors
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.optimizer = optim.Adam(self.policy.parameters(), lr=0.01)
        self.lock = threading.Lock()
        self.log_probabilities = []
        self.begin_step()

    def begin_step(self):
        self.states = [None] * self.actors
        self.answer = torch.futures.Future()

    @rpc.functions.async_execution
    def choose(self, actor, states):
        """Called by each actor at each step; the answer comes when all have called."""
        with self.lock:
            mine = self.answer.then(lambda answer: answer.value()[actor])
            self.states[actor] = states
            if any(states is None for states in self.states):
                return mine
            together, answer = torch.stack(self.states), self.answer
            self.begin_step()
        choice = torch.distributions.Categorical(logits=self.policy(together))
        pushes = choice.sample()
        self.log_probabilities.append(choice.log_prob(pushes))
        answer.set_result(pushes.bool())
        return mine

    def learn(self, falls):
        """One step of policy gradient from which carts fell when, [actor, step, cart]."""
        falls = falls.transpose(0, 1).float()
        gain, gains = torch.zeros_like(falls[0]), []
        for fell in falls.flip(0):
            gain = (1 - fell) * (1 + DISCOUNT * gain)
            gains.insert(0, gain)
        gains = torch.stack(gains)
        advantage = (gains - gains.mean()) / (gains.std() + 1e-6)
        loss = -(torch.stack(self.log_probabilities) * advantage).mean()
        self.log_probabilities = []
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def play(learner, actor):
    """Runs on an actor: one round with fresh carts; returns which carts fell at which step."""
    carts = Carts(CARTS)
    falls = []
    for _ in range(STEPS):
        pushes = learner.rpc_sync().choose(actor, carts.state)
        falls.append(carts.step(pushes))
    return torch.stack(falls)


def reward(falls):
    """How many steps a pole stood before its first fall, on average."""
    first = torch.where(falls.any(1), falls.int().argmax(1), STEPS)
    return first.double().mean().item()


def train(actors, rounds):
    learner = Learner(len(actors))
    learner_rref = rpc.RRef(learner)
    for number in range(rounds):
        games = [
            rpc.rpc_async(actor, play, args=(learner_rref, index))
            for index, actor in enumerate(actors)
        ]
        falls = torch.stack(torch.futures.wait_all(games))
        learner.learn(falls)
        print(f"round {number + 1:3}  reward {reward(falls):6.1f} of {STEPS}", flush=True)


def main():
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        sys.exit("start it so: lockstitch run -n 3 examples/actor_learner.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    actors = [f"actor{number}" for number in range(1, world_size)]
    torch.set_num_threads(1)  # several processes share the cores
    torch.manual_seed(rank)

    rpc.init_rpc(["learner", *actors][rank], rank=rank, world_size=world_size)
    if rank == 0:
        train(actors, rounds)
    rpc.shutdown()


if __name__ == "__main__":
    main()
