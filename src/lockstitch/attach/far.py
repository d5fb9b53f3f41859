"""Asks the workers of other hosts: whoever has the job's secret, over an authenticated line.

On each host of a job one process listens for that, its *gateway* (`rendezvous.gateway`): it asks
the job's processes of its host, as commands there would, and hands on what they say.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from lockstitch.attach.asking import GRACE_SECONDS, Answers, ask
from lockstitch.attach.values import FarAnswer, FarQuestion
from lockstitch.errors import HandshakeError, LockstitchError, RemoteProtocolError
from lockstitch.ids import WorkerInfo
from lockstitch.link.addresses import host_and_port, with_port
from lockstitch.link.codec import Codec
from lockstitch.link.line import call
from lockstitch.link.sockets import connect
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.attach.folder import Entry
    from lockstitch.attach.values import Question

PURPOSE: Final = "attach"
"""That of the secret which gateways and those who ask them have: see `Secret.of`."""
GATEWAY: Final = WorkerInfo("gateway", 0)
MOST_BYTES: Final = 1 << 28
_CONNECT_SECONDS: Final = 3.0
_LAST_NUMBER: Final = 1 << 30
_AT_ONCE: Final = 64


class UnreachedError(LockstitchError, ConnectionError):
    """Nobody answers at the address of a gateway, or does not let us in."""


FAR: Final[Codec[FarQuestion | FarAnswer]] = Codec(
    FarQuestion, FarAnswer, complaint="this is no question, nor an answer to one", by_name=True
)


def ask_far(address: str, secret: Secret, asked: FarQuestion) -> FarAnswer:
    """Asks the gateway at `host:port`. `secret`: that for this purpose. Raises `UnreachedError`,
    and `ValueError` for what is no address."""
    where = with_port(*host_and_port(address))
    # A gateway asks its host first, and then, if it is to, those of others.
    seconds = (1 + asked.is_whole) * (asked.question.seconds + GRACE_SECONDS) + _CONNECT_SECONDS
    ends_at = time.monotonic() + seconds
    try:
        stream = connect(f"tcp:{where}", _CONNECT_SECONDS)
        me = WorkerInfo("observer", random.randrange(1, _LAST_NUMBER))
        line = call(
            stream, me, GATEWAY.worker, secret, MOST_BYTES, timeout_seconds=_CONNECT_SECONDS
        )
        try:
            line.send(FAR.encode(asked))
            while (left := ends_at - time.monotonic()) > 0:
                for record in line.read(left):
                    answer = FAR.decode(record)
                    if isinstance(answer, FarAnswer):
                        return answer
            raise TimeoutError(f"no answer came within {seconds:.1f} s")
        finally:
            line.close()
    except BlockingIOError as error:
        raise UnreachedError(f"{where} did not answer within {seconds:.1f} s") from error
    except (OSError, HandshakeError, RemoteProtocolError) as error:
        raise UnreachedError(f"{where} cannot be asked: {error}") from error


def ask_everywhere(entries: Sequence[Entry], question: Question) -> Answers:
    """Asks processes of this host, which are of one job, and by way of their gateways those of its
    other hosts, all at once."""
    known = [each for each in (entry.read_elsewhere() for entry in entries) if each is not None]
    places = {address: each.secret for each in known for address in each.addresses}
    if not places:
        return ask(entries, question)
    with ThreadPoolExecutor(min(_AT_ONCE, len(places))) as pool:
        others = [
            pool.submit(ask_far, address, Secret.from_text(text), FarQuestion(question))
            for address, text in places.items()
        ]
        answers = ask(entries, question)
        for other in others:
            try:
                add(answers, other.result())
            except (UnreachedError, ValueError) as error:
                answers.unreached.append(str(error))
    return answers


def add(answers: Answers, other: FarAnswer) -> None:
    """Adds what a gateway has told; each process once."""
    known = {(each.card.pid, each.card.born, each.host) for each in answers.reports}
    answers.reports += [
        each for each in other.reports if (each.card.pid, each.card.born, each.host) not in known
    ]
    answers.silent += other.silent
    answers.unreached += other.unreached
