"""The process group that `init_process_group("lockstitch")` makes: one rank's end of one session.

Each group has a session of its own, opened over the store that torch gives it, so groups may
overlap, be made in any order, and end in any order; groups and `hvd` never wait for each other.
Collectives are matched by the order in which each rank submits them, as torch has it. The ranks of
the session are those of the group.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

from lockstitch.c10d import requests
from lockstitch.c10d.completions import Completions
from lockstitch.c10d.messages import GlooMessages, Messages, only
from lockstitch.c10d.open_groups import OPEN_GROUPS
from lockstitch.c10d.outputs import Outputs
from lockstitch.c10d.reduce_ops import reduction_of
from lockstitch.c10d.works import NO_TIMEOUT, SessionWork
from lockstitch.collectives import SessionOptions, open_session
from lockstitch.errors import StalledError
from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.distributed_c10d import Store

    from lockstitch.collectives import Request, Session, Stall

NAME: Final = "lockstitch"
_SUM: Final = distributed.ReduceOp.SUM
_log = logging.getLogger(__name__)

Tensors = list[torch.Tensor]

if TYPE_CHECKING:
    _TorchGroup = object  # torch's stubs have forms of its methods that torch itself never calls
else:
    _TorchGroup = distributed.ProcessGroup


def create(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Meets the other ranks of a group and returns this one's end; torch calls it on each of
    them. `timeout`: for meeting, and for each operation to be submitted by all ranks."""
    seconds = timeout.total_seconds()
    options = SessionOptions(timeout_seconds=seconds, stall_failure_seconds=seconds)
    session = open_session(rank, size, store, options)
    if session.has_pairs:
        return ProcessGroup(session, Messages(session))
    return ProcessGroup(session, GlooMessages(store, rank, size, timeout))


class ProcessGroup(_TorchGroup):
    """One rank's end of a group. All methods are torch's; what waits is what they return."""

    def __init__(self, session: Session, messages: Messages | GlooMessages) -> None:
        """Takes the session over."""
        super().__init__(session.rank, session.size)  # type: ignore[call-arg]
        self._session = session
        self._messages = messages
        self._size = session.size
        self._completions = Completions(f"rank {session.rank} futures")
        self._submitted = 0
        self._group_name = ""
        self._group_desc = ""
        session.observers.stall = _report_stall
        OPEN_GROUPS.add(self)

    def __repr__(self) -> str:
        return f"<ProcessGroup {self._group_name!r} · {self._session!r}>"

    # ------------------------------------------------------------ what torch asks

    def getBackendName(self) -> str:  # noqa: N802 - the names are torch's
        """`lockstitch`."""
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch has given the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Sets it."""
        self._group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the program says of the group."""
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Sets it."""
        self._group_desc = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroup:  # noqa: ARG002 - one for all
        return self

    @property
    def supports_splitting(self) -> bool:
        """False: torch splits groups of GPUs only; `new_group` makes any."""
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self._submitted

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: all ranks count from 0."""

    # ------------------------------------------------------------ collectives

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = _SUM, *_: Any) -> SessionWork:
        """Reduces tensors over all ranks, in place. All operators of torch, for every dtype with
        which torch can do them; averages of integers are cut towards zero."""
        mine = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = getattr(opts, "reduceOp", opts)
        return self._submit(requests.allreduce(mine, reduction_of(op)), opts, mine)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = _SUM) -> SessionWork:
        """Like `allreduce` for several tensors as one operation."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any = 0, *_: Any) -> SessionWork:
        """Copies the tensors of a rank to all, in place."""
        mine = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        root = getattr(opts, "rootRank", opts)
        return self._submit(requests.broadcast(mine, root), opts, mine)

    def reduce(self, tensors: Tensors, opts: Any) -> SessionWork:
        """Reduces to one rank, in place; the tensors of the other ranks stay as they are."""
        outputs = Outputs()
        request = requests.reduce(
            only(tensors),
            reduction_of(opts.reduceOp),
            opts.rootRank,
            self._session.rank,
            self._size,
            outputs,
        )
        return self._submit(request, opts, tensors, outputs)

    def allgather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> SessionWork:
        """The tensors of all ranks, to all ranks: `output_tensors[i][rank]` for each input."""
        outputs = Outputs()
        for pieces in output_tensors:
            self._check_count(pieces, "output")
        request = requests.allgather(output_tensors, input_tensors, outputs)
        results = [piece for pieces in output_tensors for piece in pieces]
        return self._submit(request, opts, results, outputs)

    def allgather_coalesced(
        self, output_tensor_lists: list[Tensors], input_tensor_list: Tensors, opts: Any = None
    ) -> SessionWork:
        """Several tensors of all ranks, to all: `output_tensor_lists[rank][i]`."""
        by_tensor = [list(pieces) for pieces in zip(*output_tensor_lists, strict=True)]
        return self.allgather(by_tensor, input_tensor_list, opts)

    def _allgather_base(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> SessionWork:
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> SessionWork:
        """Of each tensor those of all ranks, one behind the other."""
        outputs = Outputs()
        request = requests.allgather_into(output_tensors, input_tensors, self._size, outputs)
        return self._submit(request, opts, output_tensors, outputs)

    def gather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any
    ) -> SessionWork:
        """The tensors of all ranks, to one."""
        outputs = Outputs()
        wanted = self._for_root(output_tensors, opts.rootRank, "output")
        request = requests.gather(wanted, only(input_tensors), opts.rootRank, self._size, outputs)
        return self._submit(request, opts, wanted, outputs)

    def scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any
    ) -> SessionWork:
        """The ith of one rank's tensors, to the ith rank."""
        outputs = Outputs()
        given = self._for_root(input_tensors, opts.rootRank, "input")
        request = requests.scatter(only(output_tensors), given, opts.rootRank, self._size, outputs)
        return self._submit(request, opts, output_tensors, outputs)

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = _SUM
    ) -> SessionWork:
        """Reduces the ith tensors of all ranks, to the ith rank."""
        outputs = Outputs()
        (given,) = input_tensors
        self._check_count(given, "input")
        op = reduction_of(getattr(opts, "reduceOp", opts))
        request = requests.reduce_scatter(only(output_tensors), given, op, outputs)
        return self._submit(request, opts, output_tensors, outputs)

    def _reduce_scatter_base(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = _SUM
    ) -> SessionWork:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = _SUM
    ) -> SessionWork:
        """Reduces tensors, and leaves each rank an equal part of each."""
        outputs = Outputs()
        op = reduction_of(getattr(opts, "reduceOp", opts))
        request = requests.reduce_scatter_evenly(
            output_tensors, input_tensors, op, self._size, outputs
        )
        return self._submit(request, opts, output_tensors, outputs)

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> SessionWork:
        """The ith tensor to the ith rank; they may differ in size."""
        outputs = Outputs()
        self._check_count(input_tensors, "input")
        self._check_count(output_tensors, "output")
        request = requests.alltoall(output_tensors, input_tensors, outputs)
        return self._submit(request, opts, output_tensors, outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> SessionWork:
        """So many rows to each rank, and from each; without numbers the same for all."""
        outputs = Outputs()
        request = requests.alltoall_rows(
            output, tensor, output_split_sizes, input_split_sizes, self._size, outputs
        )
        return self._submit(request, opts, [output], outputs)

    # Newer releases of torch call some of these by other names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> SessionWork:
        """Done when all ranks have come here."""
        return self._submit(requests.barrier(), opts, [])

    def monitored_barrier(
        self, timeout: timedelta = NO_TIMEOUT, wait_all_ranks: bool = False
    ) -> None:
        """Returns when all ranks have come here. Raises `StalledError` after `timeout`, which names
        the ranks that have not come: all of them, or the first without `wait_all_ranks`."""
        work = self._submit(requests.barrier(), None, [])
        try:
            work.wait(timeout)
        except StalledError as error:
            missing = list(work.missing() or ())
            if missing:
                late = missing if wait_all_ranks else missing[:1]
                raise StalledError(
                    f"ranks {', '.join(map(str, late))} failed to pass monitoredBarrier in "
                    f"{timeout / timedelta(milliseconds=1):.0f} ms"
                ) from error
            raise

    # ------------------------------------------------------------ messages

    @in_plain_modes
    def send(self, tensors: Tensors, dst: int, tag: int) -> Any:
        """Sends a tensor to another rank; done when that receives it."""
        return self._messages.send(only(tensors), dst, tag)

    @in_plain_modes
    def recv(self, tensors: Tensors, src: int, tag: int) -> Any:
        """Receives a tensor of the same number of elements from another rank."""
        return self._messages.receive(only(tensors), src, tag)

    @in_plain_modes
    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        """Receives from whoever sends first with this tag; the work's `source_rank` tells who."""
        return self._messages.receive_any(only(tensors), tag)

    # ------------------------------------------------------------ the end

    def shutdown(self) -> None:
        """Ends this rank's part; harmless when repeated. Waits for nobody: what is under way here
        fails, as does whatever other ranks still want from this one."""
        OPEN_GROUPS.remove(self)
        self._messages.close()
        self._session.shutdown()
        self._completions.close()

    def abort(self) -> None:
        """The same as `shutdown`."""
        self.shutdown()

    def describe_waits(self) -> list[str]:
        """A line for each operation under way."""
        return [f"group {self._group_name!r}, {line}" for line in self._session.describe_waits()]

    # ------------------------------------------------------------ inside

    def _submit(
        self,
        request: Request,
        opts: Any,
        results: Sequence[torch.Tensor],
        outputs: Outputs | None = None,
    ) -> SessionWork:
        # What is not asynchronous is waited for by the caller.
        request.is_awaited = not getattr(opts, "asyncOp", True)
        handle = self._session.submit(request)
        self._submitted += 1
        limit = getattr(opts, "timeout", NO_TIMEOUT)
        return SessionWork(
            self._session, handle, results, outputs or Outputs(), self._completions, limit
        )

    def _check_count(self, tensors: Sequence[torch.Tensor], what: str) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{len(tensors)} {what} tensors for the {self._size} ranks of a group")

    def _for_root(self, lists: list[Tensors], root: int, what: str) -> Tensors:
        """Returns the list that only the root gives."""
        if self._session.rank != root:
            return []
        (tensors,) = lists
        self._check_count(tensors, what)
        return tensors


def _report_stall(stall: Stall) -> None:
    whom = f"ranks {list(stall.missing_ranks)}" if stall.missing_ranks else "other ranks"
    _log.warning(
        "%s has waited %.0f s for %s, which have not submitted it",
        stall.kind.value,
        stall.waited_seconds,
        whom,
    )
