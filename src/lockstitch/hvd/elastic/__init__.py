"""Training that goes on while workers die, come and go.

objects   State, ObjectState: what is kept, committed, restored and made equal on all ranks
state     TorchState: the same for models, optimizers and samplers
handlers  how each of these is kept
sampler   ElasticSampler: an epoch's data, divided anew among whoever is there
running   run: trains, and starts over from the last commit when the ranks have changed
"""

from lockstitch.hvd.elastic import handlers, objects, running, sampler, state
from lockstitch.hvd.elastic.handlers import get_handler_registry, set_handler_registry
from lockstitch.hvd.elastic.objects import ObjectState, State
from lockstitch.hvd.elastic.running import run, run_fn
from lockstitch.hvd.elastic.sampler import ElasticSampler
from lockstitch.hvd.elastic.state import TorchState
from lockstitch.hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "run",
    "run_fn",
    "State",
    "ObjectState",
    "TorchState",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "get_handler_registry",
    "set_handler_registry",
    "handlers",
    "objects",
    "running",
    "sampler",
    "state",
]
