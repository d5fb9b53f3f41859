"""What a module does, as programs that can run on it plainly and on slots.

A behaviour is a function of `wrap`, which makes of a module what the program calls: the module
itself, or a `DataParallel` of it. It returns what can be compared, or asserts what has to hold.
`tests/parity/test_data_parallel.py` runs all of them on each kind of slots.

pieces.py          what they are made of
inputs.py          what goes in and what comes out
parameters.py      parameters, and their gradients
training.py        steps of training, and what programs do in them
hooks.py           hooks on modules, parameters and tensors
state.py           buffers, attributes and modes
random_numbers.py  random numbers
errors.py          what goes wrong
wrapper.py         the wrapper itself
holding.py         what a module holds besides its parameters
"""

from tests.parity.behaviours import (
    errors,
    holding,
    hooks,
    inputs,
    parameters,
    random_numbers,
    state,
    training,
    wrapper,
)
from tests.parity.behaviours.pieces import OWN, SAME

__all__ = [
    "SAME",
    "OWN",
    "inputs",
    "parameters",
    "training",
    "hooks",
    "state",
    "random_numbers",
    "errors",
    "wrapper",
    "holding",
]
