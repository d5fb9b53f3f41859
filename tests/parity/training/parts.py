"""The modules that random training programs are made of, and what is done with one where it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 4
ROWS = 6
"""Of a table."""

KINDS = ("linear", "norm", "dropout", "table", "sparse table", "tied", "counter", "small")

CHANGING = frozenset(("counter", "norm"))
"""Kinds that change with each call."""

QUIRKS = (
    "forward hooks",
    "backward hook",
    "parameter hook",
    "recomputes",
    "casts",
    "cuts sometimes",
    "frozen bias",
    "compiled",
)

CHANGES = ("data", "in place", "converted", "loaded", "assigned")
"""How the weights of a part are changed between two steps, see `change`."""


class Layer(nn.Module):
    """One part of a model, with numbers drawn by `seed`: `x` with rows of `WIDTH` goes in and comes
    out, `ids` names a row of a table for each. As a stage of a pipeline it hands `ids` on."""

    def __init__(
        self,
        seed: int,
        kind: str = "linear",
        quirks: frozenset[str] = frozenset(),
        dtype: torch.dtype = torch.float64,
        is_stage: bool = False,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.kind, self.quirks, self.is_stage = kind, quirks, is_stage

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))

        if kind == "small":
            self.factor = draw()
        else:
            self.weight = draw(WIDTH, WIDTH)
            self.bias = draw(WIDTH)
        self.bias_is_frozen = "frozen bias" in quirks and kind != "small"
        if kind == "norm":
            self.norm = nn.BatchNorm1d(WIDTH, dtype=dtype)
        if kind in ("table", "sparse table"):
            self.table = nn.Embedding(ROWS, WIDTH, _weight=draw(ROWS, WIDTH).detach())
            self.table.sparse = kind == "sparse table"
        if kind == "tied":
            with torch.random.fork_rng(devices=[]):  # where dropout goes on
                self.other = nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype)
            self.other.weight = self.weight
        self.register_buffer("calls", torch.zeros((), dtype=dtype))
        self.events: list[str] = []
        self._add_hooks()
        self.want_gradients(True)

    def want_gradients(self, wanted: bool) -> None:
        self.requires_grad_(wanted)
        if self.bias_is_frozen:
            self.bias.requires_grad_(False)

    def _add_hooks(self) -> None:
        if "forward hooks" in self.quirks:
            self.register_forward_pre_hook(self._before)
            self.register_forward_hook(self._after)
        if "backward hook" in self.quirks:
            self.register_full_backward_hook(self._at_backward)
        if "parameter hook" in self.quirks:
            next(self.parameters()).register_hook(self._changed)

    def _before(self, _module: nn.Module, args: Any) -> Any:
        self.events.append("before")
        return (args[0] * 0.75, *args[1:])

    def _after(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        self.events.append("after")
        return (output[0] + 0.1, *output[1:]) if self.is_stage else output + 0.1

    def _at_backward(self, _module: nn.Module, before: Any, _after: Any) -> Any:
        self.events.append("backward")
        return (None if before[0] is None else before[0] * 1.5, *before[1:])

    def _changed(self, gradient: torch.Tensor) -> torch.Tensor:
        self.events.append("gradient")
        return gradient * 0.5

    def forward(self, x: torch.Tensor, ids: Any = None) -> Any:
        if self.training and (self.kind == "counter" or "cuts sometimes" in self.quirks):
            self.calls += 1
        if "recomputes" in self.quirks:
            y = checkpoint(self.run, x, ids, use_reentrant=False)
        elif "casts" in self.quirks:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.run(x, ids).to(x.dtype)
        elif "compiled" in self.quirks:
            y = torch.compile(self.run, backend="aot_eager")(x, ids)
        else:
            y = self.run(x, ids)
        if "cuts sometimes" in self.quirks and int(self.calls) % 3 == 2:
            y = y.detach() + x
        return (y, ids) if self.is_stage else y

    def run(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.kind == "small":
            return x * self.factor
        y = torch.tanh(x @ self.weight + self.bias)
        if self.kind == "norm":
            y = self.norm(y)
        if self.kind == "dropout":
            y = nn.functional.dropout(y, 0.3, self.training)
        if self.kind in ("table", "sparse table"):
            y = y + self.table(ids)
        if self.kind == "tied":
            y = torch.tanh(self.other(y))
        if self.kind == "counter":
            y = y * (1 + 0.1 * self.calls)
        return y


def recompute(module: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Runs a part, here or by a call, between operations that want it to be run again."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(module(torch.sin(x), ids))

    return checkpoint(run, x, use_reentrant=False)


# ---------------------------------------------------------------- where the module is


def values(module: nn.Module) -> list[torch.Tensor]:
    """Copies of parameters and buffers."""
    return [each.detach().clone() for each in (*module.parameters(), *module.buffers())]


def events(module: Any) -> list[str]:
    return list(module.events)


def want_gradients(module: Any, wanted: bool) -> None:
    module.want_gradients(wanted)


def set_training(module: nn.Module, mode: bool) -> None:
    module.train(mode)


def take_weight(module: Any, other: Any) -> None:
    """Shares the weight of another module of this worker."""
    module.weight = other.weight
    if module.kind == "tied":
        module.other.weight = other.weight


def change(module: nn.Module, how: str) -> None:
    """Makes the weights other ones."""
    if how in ("loaded", "assigned"):
        state = {k: v / 2 if v.is_floating_point() else v for k, v in module.state_dict().items()}
        module.load_state_dict(state, assign=how == "assigned")
    elif how == "converted":
        dtype = next(module.parameters()).dtype
        module.to(torch.bfloat16).to(dtype)
    for parameter in module.parameters():
        if how == "data":
            parameter.data = parameter.data / 2
        elif how == "in place":
            with torch.no_grad():
                parameter.div_(2)


def run(module: nn.Module, x: torch.Tensor, ids: torch.Tensor) -> Any:
    return module(x, ids)


def measure(gradient: torch.Tensor) -> torch.Tensor:
    """What a penalty makes of a gradient."""
    return gradient.square().sum()
