"""The process group that `init_process_group("lockstitch")` makes: one rank's end of one session.

Each group has a session of its own, opened over the store that torch gives it, so groups may
overlap, be made in any order, and end in any order; groups and `hvd` never wait for each other.
Collectives are matched by the order in which each rank submits them, as torch has it; what the
callbacks of futures submit has an order of its own (`futures`). The ranks of the session are those
of the group; errors call them by their global ranks.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore

from lockstitch.c10d import requests, sparse
from lockstitch.c10d.buckets import Buckets
from lockstitch.c10d.completions import Completions
from lockstitch.c10d.flight_recorder import GroupLabel
from lockstitch.c10d.futures import queue_of_callback
from lockstitch.c10d.gloo_messages import GlooMessages
from lockstitch.c10d.membership import Membership
from lockstitch.c10d.messages import Messages, only
from lockstitch.c10d.open_groups import OPEN_GROUPS
from lockstitch.c10d.outputs import Outputs
from lockstitch.c10d.reduce_ops import reduction_of
from lockstitch.c10d.repetitions import Repetitions
from lockstitch.c10d.reports import Reports
from lockstitch.c10d.works import NO_TIMEOUT, SessionWork
from lockstitch.collectives import SessionOptions, open_session
from lockstitch.errors import CollectiveError, StalledError
from lockstitch.modes import in_plain_modes
from lockstitch.unversioned import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.distributed_c10d import Store

    from lockstitch.attach.values import GroupReport, Question
    from lockstitch.collectives import Reduction, Request, Session

NAME: Final = "lockstitch"
_UNSET: Final = timedelta(milliseconds=-1)
_SUM: Final = distributed.ReduceOp.SUM

Tensors = list[torch.Tensor]

if TYPE_CHECKING:
    _TorchGroup = object  # torch's stubs have forms of its methods that torch itself never calls
else:
    _TorchGroup = distributed.ProcessGroup


def create(given: Any, pg_options: object = None) -> ProcessGroup:
    """Meets the other ranks of a group and returns this one's end; torch calls it on each of them.
    `given`: torch's `DistributedBackendOptions`, with the store, the rank and the size, the
    timeout (for meeting, and for each operation to be submitted by all ranks), the name of the
    group and the global ranks of its members. `pg_options`: what else a session may be told.

    Raises `TypeError` for other options than `SessionOptions`, `RuntimeError` where the ranks do
    not come together.
    """
    ranks = list(given.global_ranks_in_group) or list(range(given.group_size))
    return joined(given.store, given.group_rank, ranks, given.timeout, given.group_id, pg_options)


def joined(
    store: Store,
    rank: int,
    ranks: Sequence[int],
    timeout: timedelta,
    name: str,
    pg_options: object = None,
) -> ProcessGroup:
    """Meets the other ranks of a group, whose global ranks are `ranks`."""
    chosen = SessionOptions() if pg_options is None else pg_options
    if not isinstance(chosen, SessionOptions):
        raise TypeError(
            f"the {NAME} backend takes lockstitch.collectives.SessionOptions as pg_options, not "
            f"{type(chosen).__name__}"
        )
    seconds = timeout.total_seconds()
    options = replace(
        chosen,
        timeout_seconds=seconds,
        stall_failure_seconds=seconds,
        rank_numbers=tuple(ranks),
    )
    session = open_session(rank, len(ranks), store, options)
    try:
        return ProcessGroup(session, GroupLabel(session, name, ranks), store, timeout)
    except BaseException:
        session.shutdown()
        raise


class ProcessGroup(_TorchGroup):
    """One rank's end of a group. All methods are torch's; what waits is what they return, or they
    wait themselves and return None where the options say that nobody goes on meanwhile."""

    def __init__(
        self, session: Session, label: GroupLabel, store: Store, timeout: timedelta
    ) -> None:
        """Takes the session over."""
        super().__init__(session.rank, session.size)  # type: ignore[call-arg]
        self._session = session
        self._size = session.size
        self._store = store
        self._timeout = timeout
        self._label = label
        self._buckets = Buckets(session)
        self._completions = Completions(f"rank {session.rank} futures")
        reports = Reports(store, session.rank) if session.size > 1 else None
        self._group = Membership(session, label, self._completions, reports)
        self._repetitions = Repetitions(self._group)
        session.observers.stall = self._group.warn_of_stall
        session.observers.failed = label.note_failure
        self._messages: Messages | GlooMessages
        if session.has_pairs:
            self._messages = Messages(self._group)
        else:
            self._messages = GlooMessages(self._group, timeout)
        self._splits = 0
        OPEN_GROUPS.add(self)

    def __repr__(self) -> str:
        return f"<ProcessGroup · {self._label} · {self._session!r}>"

    # ------------------------------------------------------------ what torch asks

    def getBackendName(self) -> str:  # noqa: N802 - the names are torch's
        """`lockstitch`."""
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch has given the group."""
        return self._label.name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Sets it."""
        self._label.name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the program says of the group."""
        return self._label.description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Sets it."""
        self._label.description = description

    @property
    def _device_types(self) -> list[torch.device]:
        """The CPU; and nothing, as for any group that is written in Python, until torch has entered
        the group: before that, torch 2.15 attaches a recorder to every group that has devices, and
        this recorder asks for a backend in C++."""
        try:
            distributed.get_process_group_ranks(self)  # type: ignore[arg-type]
        except KeyError:
            return []
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroup:  # noqa: ARG002 - one for all
        return self

    @property
    def supports_splitting(self) -> bool:
        """False: `torch.distributed.split_group` needs GPUs, and hands the group that it splits to
        NCCL. The group's own `split_group` needs neither."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Says how long its operations wait for ranks that do not come, from now on; of this rank
        only."""
        self._timeout = timeout
        self._session.give_up_after(timeout.total_seconds())

    def get_group_store(self) -> Store:
        """The store over which its ranks have met."""
        return self._store

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,  # noqa: ARG002 - one for all devices
    ) -> ProcessGroup | None:
        """Makes a group of some of its ranks (by their ranks here), which all ranks of the group
        call with the ranks of their own part; None on who is in none. Raises `ValueError` for ranks
        that are not there, or twice."""
        chosen = sorted(ranks)
        if (
            not chosen
            or len(set(chosen)) != len(chosen)
            or not 0 <= chosen[0] <= chosen[-1] < self._size
        ):
            raise ValueError(
                f"split_group: {list(ranks)} must be different ranks of {self._label}, which has "
                f"{self._size}"
            )
        self._splits += 1
        if self._session.rank not in chosen:
            return None
        name = group_name or f"{self._label.name}:split:{self._splits}:{'_'.join(map(str, chosen))}"
        part = joined(
            PrefixStore(f"{name}/", self._store),
            chosen.index(self._session.rank),
            [self._label.ranks[rank] for rank in chosen],
            timeout or self._timeout,
            name,
            opts,
        )
        part.setGroupDesc(group_desc or f"{self._label.description}:split")
        return part

    def _get_sequence_number_for_group(self) -> int:
        return self._group.submitted

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: all ranks count from 0."""

    # ------------------------------------------------------------ collectives

    def allreduce(
        self, tensors: Tensors | torch.Tensor, opts: Any = _SUM, *_: Any
    ) -> SessionWork | None:
        """Reduces tensors over all ranks, in place. All operators of torch, for every dtype with
        which torch can do them; averages of integers are cut towards zero. A sparse tensor (COO)
        is summed or averaged."""
        mine = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = reduction_of(getattr(opts, "reduceOp", opts))
        if self._is_done_again(mine, op, opts):
            return None
        name = "all_reduce" if len(mine) == 1 else "all_reduce_coalesced"
        if sparse.is_sparse(mine):
            outputs = sparse.SparseOutputs(mine[0], op, self._session.names)
            return self._submit(name, sparse.allreduce(mine, op), opts, mine, outputs)
        request = requests.allreduce(mine, op, is_bucket=self._buckets.look_at(mine))
        return self._submit(name, request, opts, mine)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = _SUM) -> SessionWork | None:
        """Like `allreduce` for several tensors as one operation."""
        return self.allreduce(tensors, opts)

    def broadcast(
        self, tensors: Tensors | torch.Tensor, opts: Any = 0, *_: Any
    ) -> SessionWork | None:
        """Copies the tensors of a rank to all, in place."""
        mine = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        root = getattr(opts, "rootRank", opts)
        if self._is_done_again(mine, root, opts):
            return None
        return self._submit("broadcast", requests.broadcast(mine, root), opts, mine)

    def reduce(self, tensors: Tensors, opts: Any) -> SessionWork | None:
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
        return self._submit("reduce", request, opts, tensors, outputs)

    def allgather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> SessionWork | None:
        """The tensors of all ranks, to all ranks: `output_tensors[i][rank]` for each input."""
        outputs = Outputs()
        for pieces in output_tensors:
            self._check_count(pieces, "output")
        request = requests.allgather(output_tensors, input_tensors, outputs)
        results = [piece for pieces in output_tensors for piece in pieces]
        return self._submit("all_gather", request, opts, results, outputs)

    def allgather_coalesced(
        self, output_tensor_lists: list[Tensors], input_tensor_list: Tensors, opts: Any = None
    ) -> SessionWork | None:
        """Several tensors of all ranks, to all: `output_tensor_lists[rank][i]`."""
        by_tensor = [list(pieces) for pieces in zip(*output_tensor_lists, strict=True)]
        return self.allgather(by_tensor, input_tensor_list, opts)

    def _allgather_base(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> SessionWork | None:
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> SessionWork | None:
        """Of each tensor those of all ranks, one behind the other."""
        outputs = Outputs()
        request = requests.allgather_into(output_tensors, input_tensors, self._size, outputs)
        return self._submit("all_gather_into_tensor", request, opts, output_tensors, outputs)

    def gather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any
    ) -> SessionWork | None:
        """The tensors of all ranks, to one."""
        outputs = Outputs()
        wanted = self._for_root(output_tensors, opts.rootRank, "output")
        request = requests.gather(wanted, only(input_tensors), opts.rootRank, self._size, outputs)
        return self._submit("gather", request, opts, wanted, outputs)

    def scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any
    ) -> SessionWork | None:
        """The ith of one rank's tensors, to the ith rank."""
        outputs = Outputs()
        given = self._for_root(input_tensors, opts.rootRank, "input")
        request = requests.scatter(only(output_tensors), given, opts.rootRank, self._size, outputs)
        return self._submit("scatter", request, opts, output_tensors, outputs)

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = _SUM
    ) -> SessionWork | None:
        """Reduces the ith tensors of all ranks, to the ith rank."""
        outputs = Outputs()
        (given,) = input_tensors
        self._check_count(given, "input")
        op = reduction_of(getattr(opts, "reduceOp", opts))
        request = requests.reduce_scatter(only(output_tensors), given, op, outputs)
        return self._submit("reduce_scatter", request, opts, output_tensors, outputs)

    def _reduce_scatter_base(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = _SUM
    ) -> SessionWork | None:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = _SUM
    ) -> SessionWork | None:
        """Reduces tensors, and leaves each rank an equal part of each."""
        outputs = Outputs()
        op = reduction_of(getattr(opts, "reduceOp", opts))
        request = requests.reduce_scatter_evenly(
            output_tensors, input_tensors, op, self._size, outputs
        )
        return self._submit("reduce_scatter_tensor", request, opts, output_tensors, outputs)

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> SessionWork | None:
        """The ith tensor to the ith rank; they may differ in size."""
        outputs = Outputs()
        self._check_count(input_tensors, "input")
        self._check_count(output_tensors, "output")
        request = requests.alltoall(output_tensors, input_tensors, outputs)
        return self._submit("all_to_all", request, opts, output_tensors, outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> SessionWork | None:
        """So many rows to each rank, and from each; without numbers the same for all."""
        outputs = Outputs()
        request = requests.alltoall_rows(
            output, tensor, output_split_sizes, input_split_sizes, self._size, outputs
        )
        return self._submit("all_to_all_single", request, opts, [output], outputs)

    # Newer releases of torch call some of these by other names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> SessionWork | None:
        """Done when all ranks have come here."""
        return self._submit("barrier", requests.barrier(), opts, [])

    def monitored_barrier(self, timeout: timedelta = _UNSET, wait_all_ranks: bool = False) -> None:
        """Returns when all ranks have come here. Raises `StalledError` after `timeout` (negative:
        that of the group), which names the ranks that have not come: all of them, or the first
        without `wait_all_ranks`. Who comes later finds the others waiting still."""
        work = self._submit("monitored_barrier", requests.barrier(), None, [])
        assert work is not None
        limit = self._timeout if timeout < NO_TIMEOUT else timeout
        try:
            work.wait_for(limit.total_seconds())
        except StalledError as error:
            missing = work.missing() or ()
            raise self._group.not_passed(error, limit, missing, wait_all=wait_all_ranks) from error
        work.finish()

    # ------------------------------------------------------------ messages

    @in_plain_modes
    def send(self, tensors: Tensors, dst: int, tag: int) -> Any:
        """Sends a tensor to another rank; done when that receives it."""
        self._check_rank(dst)
        return self._messages.send(only(tensors), dst, tag)

    @in_plain_modes
    def recv(self, tensors: Tensors, src: int, tag: int) -> Any:
        """Receives a tensor of the same number of elements from another rank."""
        self._check_rank(src)
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
        # Without a cycle the memory that ranks share is unmapped as soon as it may be.
        observers = self._session.observers
        observers.stall = observers.ended = observers.failed = None

    def abort(self) -> None:
        """The same as `shutdown`."""
        self.shutdown()

    # ------------------------------------------------------------ being asked

    def describe_waits(self) -> list[str]:
        """A line for each operation under way."""
        return [f"{self._label}, {line}" for line in self._session.describe_waits()]

    def report(self) -> None:
        """Says to the others what this rank does, if they wait for it."""
        self._group.report(OPEN_GROUPS.what_this_process_does)

    def told(self, question: Question) -> GroupReport:
        """What this rank of it tells somebody who looks on."""
        told = self._session.told("c10d", self._label.name, question)
        return replace(told, waits=self._group.in_its_words(told.waits))

    # ------------------------------------------------------------ inside

    def _submit(
        self,
        name: str,
        request: Request,
        opts: Any,
        results: Sequence[torch.Tensor],
        outputs: Outputs | None = None,
    ) -> SessionWork | None:
        """Begins an operation. What is not asynchronous is waited for, as the caller would: torch
        takes None for a work that is done."""
        request.is_awaited = not getattr(opts, "asyncOp", True)
        callback = queue_of_callback()
        if callback:
            request.queue = callback
        try:
            return self._begun(name, request, opts, results, outputs, callback)
        except BaseException as error:  # an interrupt: nobody has the work
            self._session.withdraw(request, error)
            raise

    def _begun(
        self,
        name: str,
        request: Request,
        opts: Any,
        results: Sequence[torch.Tensor],
        outputs: Outputs | None,
        callback: str,
    ) -> SessionWork | None:
        try:
            handle = self._session.submit(request)
        except CollectiveError as error:
            raise self._group.explained(error, f"{name}, in {self._label}") from error
        limit = getattr(opts, "timeout", NO_TIMEOUT).total_seconds()
        others = results if outputs is not None else ()  # else it is in place
        entry = self._group.recorded(handle, name, others, limit, callback=callback)
        if request.is_awaited and outputs is None and limit <= 0:
            try:
                self._session.wait(handle)
            except CollectiveError:
                pass  # explained by the work
            else:
                UNVERSIONED.note(results)
                if not callback:
                    self._repetitions.learn(handle, entry)
                return None
        return SessionWork(self._group, handle, entry, results, outputs or Outputs())

    def _is_done_again(self, tensors: Tensors, what: Reduction | int, opts: Any) -> bool:
        """Whether this was one of the `Repetitions`, and is done."""
        is_awaited = not getattr(opts, "asyncOp", True)
        if len(tensors) != 1 or not is_awaited:
            return False
        is_done = self._repetitions.perform(tensors[0], what, opts)
        if is_done:
            UNVERSIONED.note(tensors)
        return is_done

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise ValueError(
                f"there is no rank {rank} in {self._label}, which has {self._size} ranks"
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
