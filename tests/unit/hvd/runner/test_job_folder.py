from __future__ import annotations

import pytest

from lockstitch.errors import CollectiveError
from lockstitch.hvd.runner.job_folder import JobFolder, World


def test_functions_that_no_module_holds_go_to_the_ranks(tmp_path):
    factor = 3
    JobFolder(tmp_path).put_call(lambda a, b: factor * a + b, [2], {"b": 1})
    func, args, kwargs = JobFolder(tmp_path).call()
    assert func(*args, **kwargs) == 7


def test_results_come_back_in_the_order_of_ranks(tmp_path):
    for rank in (2, 0, 1):
        JobFolder(tmp_path).put_result(World(0, rank, 3), f"of rank {rank}")
    folder = JobFolder(tmp_path)
    assert folder.results() == ["of rank 0", "of rank 1", "of rank 2"]
    assert folder.failure() == ("", None)


def test_results_of_worlds_are_not_mixed(tmp_path):
    folder = JobFolder(tmp_path)
    with pytest.raises(CollectiveError, match="no rank has returned anything"):
        folder.results()
    folder.put_result(World(9, 2, 3), "returned while the others met anew")
    folder.put_result(World(10, 1, 2), "second")
    with pytest.raises(CollectiveError, match=r"of the 2 ranks that met last .* nothing: \[0\]"):
        folder.results()
    folder.put_result(World(10, 0, 2), "first")
    assert folder.results() == ["first", "second"]


def test_the_error_of_whom_the_launcher_names_is_raised_again_with_its_traceback(tmp_path):
    folder = JobFolder(tmp_path)
    for worker, error in (("rank1", KeyError("first")), ("rank0", ValueError("second"))):
        try:
            raise error
        except (KeyError, ValueError) as caught:
            folder.put_error(worker, caught)
    folder.verdict.write_text("0 exit code 1")
    words, found = folder.failure()
    assert words == "worker 0 failed first: exit code 1; it raised ValueError('second')"
    assert isinstance(found, ValueError)
    assert "in test_the_error" in str(found.__cause__)


def test_who_is_named_and_raised_nothing_is_not_blamed_on_another(tmp_path):
    folder = JobFolder(tmp_path)
    folder.put_error("rank1", KeyError("because of that"))
    folder.verdict.write_text("0 killed by SIGKILL")
    assert folder.failure() == ("worker 0 failed first: killed by SIGKILL", None)
