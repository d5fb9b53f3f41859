"""Random programs over one module, which run plainly and on slots.

A program is a list of steps, each a name and a number that says what exactly. They call the module
in several modes, go back through what it has returned, once or twice, and change the module in
between. `run` tells what came of each step, to be compared. Where a step of the plain program
raises, the program ends; where only that on slots does, the error must be one that is promised.
"""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import nn

from lockstitch.nn import DataParallel
from lockstitch.nn.parallel import Replicate

ROWS = (6, 2, 5, 1)
_DOUBLE = torch.float64


class Subject(nn.Module):
    """With tied, frozen and optional parameters, buffers of both kinds, modes and attributes."""

    def __init__(self, nests=False):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)
        self.outer.weight = self.inner.weight
        self.lstm = nn.LSTM(3, 3, batch_first=True)
        self.norm = nn.BatchNorm1d(3).eval()
        self.head = DataParallel(nn.Linear(3, 3), ["thread"] * 2) if nests else nn.Linear(3, 3)
        self.fixed = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.mask = torch.ones(3, dtype=_DOUBLE)
        self.masks = [torch.ones(3, dtype=_DOUBLE)]
        self.register_buffer("shift", torch.ones(3))
        self.register_buffer("scale", torch.ones(3, dtype=_DOUBLE, requires_grad=True))
        self.factor = 1.5
        self.register_buffer("calls", torch.zeros(()))
        self.double()

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()  # statistics of a part are not those of the whole
        return self

    def forward(self, x, y=None, common=None, *, is_short=False):
        self.calls += 1
        if y is not None:
            x = x * y + common
        x = x * self.mask * self.masks[0]
        hidden = self.outer(self.inner(x).tanh() * self.fixed + self.shift)
        if is_short:
            return hidden
        hidden = self.norm(self.lstm(hidden.unsqueeze(1))[0][:, 0])
        hidden = hidden * (self.factor if self.training else 0.5)
        output = self.head(hidden).sin() * self.scale
        return output if y is None else {"output": output, "mean": hidden.detach(), "same": output}


class Run:
    """One run of a program, on `module`, called as `model`."""

    def __init__(self, module, model):
        self.module, self.model = module, model
        self.outputs = []
        self.inputs = []
        self.input_gradients = []
        self.common = torch.ones(3, dtype=_DOUBLE, requires_grad=True)
        self.generator = torch.Generator().manual_seed(0)

    def _input(self, number):
        x = torch.randn(ROWS[number % 4], 3, dtype=_DOUBLE, generator=self.generator)
        return x.requires_grad_(number % 3 > 0)

    def call(self, number):
        x = self._input(number)
        self.inputs.append(x)
        self.outputs.append(self.model(x, is_short=number % 5 == 4))
        return self.outputs[-1].detach()

    def call_again(self, number):
        """With an input of before, or with what came of it."""
        if not self.inputs:
            return None
        x = (self.inputs, self.outputs)[number % 2][number // 2 % len(self.inputs)]
        self.inputs.append(x)
        self.outputs.append(self.model(x))
        return self.outputs[-1].detach()

    def call_with_more(self, number):
        """With one tensor twice, or another one, and with one that all slots share."""
        x = self._input(number)
        y = x if number // 4 % 2 else torch.ones_like(x, requires_grad=True)
        common = self.common * 2 if number % 2 else self.common
        is_parallel = isinstance(self.model, DataParallel)
        found = self.model(x, y, Replicate(common) if is_parallel else common)
        self.inputs.append(y)
        self.outputs.append(found["output"] * found["mean"] + found["same"])
        return self.outputs[-1].detach()

    def call_without_sync(self, number):
        """Several calls, and a pass back through each before its end."""
        is_parallel = isinstance(self.model, DataParallel)
        with self.model.no_sync() if is_parallel else contextlib.nullcontext():
            self.go_back(number)
            for i in range(2):
                x = self._input(number + i)
                self.model(x).sum().backward(retain_graph=True)
                if number % 3 == 0:
                    self.change_parameters(number // 3)
            output = self.model(x)
        output.sum().backward()
        return self._gradients()

    def write_in_place(self, number):
        if self.outputs:
            output = self.outputs[number // 2 % len(self.outputs)]
            (output.mul_(2) if number % 2 else self.inputs[-1].detach().mul_(2)).sum().item()

    def close(self, number):
        """Slots are made anew."""
        if isinstance(self.model, DataParallel) and not self.outputs:
            self.model.close()

    def call_with_autocast(self, number):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self._input(number)
            self.inputs.append(x)
            self.outputs.append(self.model(x).to(_DOUBLE))
        return self.outputs[-1].detach()

    def call_in_mode(self, number):
        mode = (torch.inference_mode, torch.no_grad)[number % 2]
        with mode():
            return self.model(self._input(number // 2)).clone()

    def go_back(self, number):
        if not self.outputs:
            return None
        output = self.outputs[number // 2 % len(self.outputs)]
        output.square().sum().backward(retain_graph=number % 2 == 0)
        return self._gradients()

    def go_back_through_all(self, number):
        wanting = [each for each in self.outputs if each.requires_grad]
        if not wanting:
            return None
        sum(each.square().sum() for each in wanting).backward(retain_graph=number % 2 == 0)
        return self._gradients()

    def ask_for_some(self, number):
        if not self.outputs:
            return None
        i = number // 2 % len(self.outputs)
        wanted = [self.inputs[i], self.module.scale, *self.module.lstm.parameters()]
        wanted = [each for each in wanted if each.requires_grad][number % 3 :]
        return torch.autograd.grad(
            self.outputs[i].sum(), wanted, retain_graph=True, allow_unused=True
        )

    def differentiate(self, number):
        if not self.outputs:
            return None
        i = number // 2 % len(self.outputs)
        wanted = [self.inputs[i], *self.module.inner.parameters()]
        wanted = [each for each in wanted if each.requires_grad]
        output = self.outputs[i]
        value = output.square().sum() if number % 2 else output.sum()
        found = torch.autograd.grad(value, wanted, create_graph=True, allow_unused=True)
        self.input_gradients += [each for each in found if each is not None and each.requires_grad]
        return [each if each is None else each.detach() for each in found]

    def penalize(self, number):
        if not self.input_gradients:
            return None
        chosen = self.input_gradients[number // 2 :] or self.input_gradients
        sum(each.square().sum() for each in chosen).backward(retain_graph=number % 2 == 0)
        return self._gradients()

    def differentiate_again(self, number):
        if not self.input_gradients:
            return None
        value = self.input_gradients[number % len(self.input_gradients)].square().sum()
        wanted = [each for each in (*self.inputs, self.module.scale) if each.requires_grad]
        found = torch.autograd.grad(value, wanted, create_graph=True, allow_unused=True)
        self.input_gradients += [each for each in found if each is not None and each.requires_grad]
        return [each if each is None else each.detach() for each in found]

    def step(self, number):
        wanting = [each for each in self.module.parameters() if each.requires_grad]
        for each in wanting:
            if each.grad is not None and not each.grad.any():
                each.grad = None  # slots have zeros for what nobody used; weight decay would act
        torch.optim.SGD(wanting, lr=0.01, momentum=0.9, weight_decay=0.1).step()
        self.module.zero_grad(set_to_none=number % 2 == 0)

    def forget(self, number):
        self.module.zero_grad()
        for each in (self.outputs, self.inputs, self.input_gradients):
            each.clear()

    def change(self, number):
        module = self.module
        changes = (
            lambda: module.train(not module.training),
            lambda: setattr(module, "factor", module.factor + 1),
            lambda: setattr(module, "shift", module.shift + 1),
            lambda: module.shift.mul_(0.5),
            lambda: setattr(module, "fixed", _frozen(module.fixed + 1)),
            lambda: module.fixed.mul_(0.5),
            lambda: module.norm.running_mean.add_(1),
            lambda: module.mask.mul_(0.5),
            lambda: setattr(module.mask, "data", module.mask.data * 2),
            lambda: module.masks[0].mul_(1.5),
            lambda: setattr(module.shift, "data", module.shift.data * 0.5),
            lambda: setattr(module, "shift", module.outer.bias.data),
        )
        changes[number % len(changes)]()

    def change_parameters(self, number):
        module = self.module
        changes = (
            lambda: setattr(module.inner, "bias", nn.Parameter(module.inner.bias.detach() * 2)),
            lambda: module.inner.bias.requires_grad_(not module.inner.bias.requires_grad),
            lambda: setattr(module.lstm.weight_ih_l0, "data", module.lstm.weight_ih_l0.data * 0.5),
            lambda: module.load_state_dict({k: v * 0.9 for k, v in module.state_dict().items()}),
            lambda: setattr(module, "scale", (module.scale.detach() * 2).requires_grad_()),
            lambda: module.inner.weight.requires_grad_(not module.inner.weight.requires_grad),
            lambda: setattr(module.lstm, "bias_hh_l0", nn.Parameter(module.lstm.bias_hh_l0 * 2)),
            lambda: setattr(module.inner.weight, "data", module.inner.weight.data.t()),
            lambda: setattr(module.outer.bias, "data", module.outer.bias.data * 0.5),
            lambda: module.outer.bias.register_hook(lambda gradient: gradient * 0.5),
            lambda: module.head.register_forward_pre_hook(_halve),
        )
        changes[number % len(changes)]()

    def _gradients(self):
        of = [*self.module.parameters(), self.module.scale, self.common, *self.inputs]
        return [
            each.grad if each.grad is None else each.grad.clone() for each in of if each.is_leaf
        ]


STEPS = [name for name in vars(Run) if not name.startswith("_")]
_PROMISED = (
    "modified by an inplace operation",
    "has been modified inplace",
    "backward through the graph a second time",
)
"""What slots may refuse where the plain module does not, for it has not saved what has changed, or
has not freed what this pass goes through: a slot's part is one node."""


def _halve(_module, arguments):
    return (arguments[0] * 0.5, *arguments[1:])


def _frozen(tensor):
    return nn.Parameter(tensor.detach().clone(), requires_grad=False)


def run(program, module, model):
    """What came of each step, and the error with which it ended."""
    it, results = Run(module, model), []
    for name, number in program:
        try:
            results.append(getattr(it, name)(number))
        except RuntimeError as error:
            return results, error
    return results, None


def check(program, kinds, *, nests=False):
    """Runs a program plainly and on slots of these kinds, and compares."""
    torch.manual_seed(0)
    module = Subject(nests=nests)
    twin = copy.deepcopy(module)
    if nests:
        twin.head.device_ids = []
    expected, error = run(program, twin, twin)
    with contextlib.closing(DataParallel(module, kinds)) as model:
        actual, own_error = run(program, module, model)
        if nests:
            module.head.close()
    is_promised = any(words in str(own_error) for words in _PROMISED)
    if own_error is not None and error is None and not is_promised:
        raise own_error
    count = min(len(actual), len(expected))
    for i in range(count):
        compare(actual[i], expected[i], program[i])
    if own_error is None:
        assert len(actual) >= len(expected)


def compare(actual, expected, step):
    """Where the plain module's parameter has no gradient, slots may have zeros."""
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), step
        for one, other in zip(actual, expected, strict=True):
            compare(one, other, step)
    elif expected is None:
        assert actual is None or not actual.any(), (step, actual)
    else:
        assert actual is not None, step
        torch.testing.assert_close(actual, expected, msg=lambda text: f"{step}: {text}")
