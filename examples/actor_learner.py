"""Actors play, one learner thinks for all of them: balancing poles on carts.

Each actor steps its own carts and asks the learner what to do. `choose` is an `async def`, so the
learner can answer late: it collects the questions of all actors, runs the policy once on the whole
batch, and only then answers everybody, holding no thread meanwhile. The actors are a group, whose
rounds are one call. After each of them the learner learns from the rewards (REINFORCE with a
baseline). The physics of the cart and the pole are those of Barto, Sutton and Anderson (1983).

In the end the same rounds are played in one process, with the same random numbers: it prints how
far the policies are apart.

    lockstitch run -n 3 examples/actor_learner.py [rounds]
"""

import asyncio
import math
import os
import sys

import torch
from torch import nn, optim

from lockstitch import rpc

CARTS = 16  # per actor
STEPS = 100  # per round
DISCOUNT = 0.97


class Carts:
    """Poles hinged on carts; a push to the left or right at each step keeps them up, or not."""

    def __init__(self, actor, number):
        self.generator = torch.Generator().manual_seed(1000 * actor + number)
        self.state = self.start()  # x, speed, angle, its speed

    def start(self):
        return torch.rand(CARTS, 4, generator=self.generator) / 10 - 0.05

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
        self.state = torch.where(fell[:, None], self.start(), self.state)
        return fell


class Learner:
    """Owns the policy. Its `choose` answers all actors at once, when the last one has asked."""

    def __init__(self, actors):
        self.actors = actors
        self.generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.optimizer = optim.Adam(self.policy.parameters(), lr=0.01)
        self.log_probabilities = []
        self.asked, self.answer = {}, None

    async def choose(self, actor, states):
        """Called by each actor at each step; the answer comes when all have called."""
        self.answer = answer = self.answer or asyncio.get_running_loop().create_future()
        self.asked[actor] = states
        if len(self.asked) == self.actors:
            together = torch.stack([self.asked[each] for each in range(self.actors)])
            self.asked, self.answer = {}, None
            answer.set_result(self.decide(together))
        return (await answer)[actor]

    def decide(self, states):
        """Which carts to push to the right, [actor, cart]."""
        log_probabilities = self.policy(states).log_softmax(-1)
        chances = log_probabilities[..., 1].exp()
        right = torch.rand(chances.shape, generator=self.generator) < chances
        taken = log_probabilities.gather(-1, right[..., None].long())[..., 0]
        self.log_probabilities.append(taken)
        return right

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


def play(learner, number):
    """Runs on an actor: one round with fresh carts; returns which carts fell at which step."""
    actor = rpc.get_worker_info().id - 1
    carts, choose = Carts(actor, number), learner.rpc_sync().choose
    return torch.stack([carts.step(choose(actor, carts.state)) for _ in range(STEPS)])


def reward(falls):
    """How many steps a pole stood before its first fall, on average."""
    first = torch.where(falls.any(1), falls.int().argmax(1), STEPS)
    return first.double().mean().item()


def train(actors, rounds):
    learner = Learner(len(actors))
    learner_rref = rpc.RRef(learner)
    for number in range(rounds):
        falls = torch.stack(actors.call(play, args=(learner_rref, number)))
        learner.learn(falls)
        print(f"round {number + 1:3}  reward {reward(falls):6.1f} of {STEPS}", flush=True)
    return learner.policy


def train_in_one_process(actors, rounds):
    learner = Learner(actors)
    for number in range(rounds):
        carts = [Carts(actor, number) for actor in range(actors)]
        falls = []
        for _ in range(STEPS):
            pushes = learner.decide(torch.stack([each.state for each in carts]))
            falls.append(
                torch.stack([each.step(push) for each, push in zip(carts, pushes, strict=True)])
            )
        learner.learn(torch.stack(falls, 1))
    return learner.policy


def main():
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        sys.exit("start it so: lockstitch run -n 3 examples/actor_learner.py")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    torch.set_num_threads(1)  # several processes share the cores

    name = f"actor{rank}" if rank else "learner"
    rpc.init_rpc(name, rank=rank, world_size=world_size)
    if rank == 0:
        policy = train(rpc.group("actor*"), rounds)
        alone = train_in_one_process(world_size - 1, rounds)
        pairs = zip(policy.parameters(), alone.parameters(), strict=True)
        difference = max((one - other).abs().max().item() for one, other in pairs)
        print(f"difference to the policy of one process: {difference}")
    rpc.shutdown()


if __name__ == "__main__":
    main()
