from __future__ import annotations

import pytest

from lockstitch.errors import OwnerDiedError, RRefError
from lockstitch.ids import GlobalId, WorkerInfo
from lockstitch.rref.user_fork import UserFork

NAME = (
    "UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=3), "
    "fork_id=GloballyUniqueId(created_on=0, local_id=4))"
)


@pytest.fixture
def fork() -> UserFork:
    return UserFork(GlobalId(0, 0, 3), GlobalId(0, 0, 4), WorkerInfo("ps", 1), "trainer")


def test_a_new_fork_can_be_used_although_it_is_pending(fork):
    fork.check_usable("to_here() on it")
    assert fork.condition == "pending"
    assert not fork.is_confirmed()


def test_callbacks_run_when_it_is_confirmed_or_at_once(fork):
    heard = []
    fork.when_confirmed(heard.append)
    assert heard == []
    fork.confirm()
    fork.when_confirmed(heard.append)
    assert heard == [None, None]
    assert fork.condition == "confirmed"


def test_callbacks_hear_that_the_owner_died(fork):
    heard = []
    fork.when_confirmed(heard.append)
    fork.orphan()
    fork.when_confirmed(heard.append)
    assert [type(error) for error in heard] == [OwnerDiedError, OwnerDiedError]
    assert fork.condition == "orphaned"


def test_use_of_an_orphan_names_its_owner(fork):
    fork.orphan()
    with pytest.raises(OwnerDiedError, match="its owner 'ps' died") as error:
        fork.check_usable("to_here() on it")
    begin, _, inside = str(error.value).partition(" lost its value: ")
    assert begin == "the reference of worker 'trainer' to a value of worker 'ps'"
    assert inside.endswith(f"({NAME})")


def test_use_after_deletion_names_the_fork_and_the_use(fork):
    fork.delete()
    with pytest.raises(RRefError) as error:
        fork.check_usable("to_here() on it")
    assert str(error.value) == (
        "the reference of worker 'trainer' to a value of worker 'ps' has been deleted, as shutdown "
        f"does. Cannot call to_here() on it after deletion. ({NAME})"
    )
    assert fork.condition == "deleted"


def test_use_after_a_timeout_says_that_the_value_may_not_exist(fork):
    fork.time_out()
    with pytest.raises(RRefError, match=r"^RRef creation via rpc.remote\(\) timed out, and it is"):
        fork.check_usable("to_here() on it")


def test_what_ended_its_use_first_is_what_is_told(fork):
    fork.delete()
    fork.orphan()
    with pytest.raises(RRefError, match="has been deleted"):
        fork.check_usable("to_here() on it")


def test_deletion_lets_go_of_those_who_wait_for_confirmation(fork):
    heard = []
    fork.when_confirmed(heard.append)
    fork.delete()
    assert heard == [None]


def test_other_failures_are_raised_as_they_are(fork):
    fork.fail(KeyError("as it is"))
    with pytest.raises(KeyError, match="as it is"):
        fork.check_usable("to_here() on it")
