from __future__ import annotations

import pytest

from lockstitch.hvd.runner.job_folder import JobFolder


def test_functions_that_no_module_holds_go_to_the_ranks(tmp_path):
    factor = 3
    JobFolder(tmp_path).put_call(lambda a, b: factor * a + b, [2], {"b": 1})
    func, args, kwargs = JobFolder(tmp_path).call()
    assert func(*args, **kwargs) == 7


def test_results_come_back_in_the_order_of_ranks(tmp_path):
    for rank in (2, 0, 1):
        JobFolder(tmp_path).put_result(rank, f"of rank {rank}")
    folder = JobFolder(tmp_path)
    assert folder.world_size() == 3
    assert folder.results(3) == ["of rank 0", "of rank 1", "of rank 2"]
    assert folder.failure() == ("", None)
    with pytest.raises(FileNotFoundError):
        folder.results(4)


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
