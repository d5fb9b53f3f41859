from __future__ import annotations

import pytest

from lockstitch.hvd.runner.job_folder import JobFolder
from lockstitch.hvd.runner.task import main

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_the_result_lies_at_the_place_of_the_rank(tmp_path):
    folder = JobFolder(tmp_path)
    folder.put_call(max, [3, 5], {})
    for rank in ("1", "0"):
        main(str(tmp_path), {"RANK": rank, "WORLD_SIZE": "2", **MEETING})
    assert folder.results() == [5, 5]


def test_the_result_of_a_worker_that_nobody_numbered_is_that_of_rank_0(tmp_path):
    folder = JobFolder(tmp_path)
    folder.put_call(max, [3, 5], {})
    main(str(tmp_path), {})
    assert folder.results() == [5]


def test_an_error_is_kept_and_ends_the_worker(tmp_path):
    folder = JobFolder(tmp_path)
    folder.put_call(divmod, [1, 0], {})
    with pytest.raises(ZeroDivisionError):
        main(str(tmp_path), {"RANK": "0", "WORLD_SIZE": "1"})
    assert isinstance(folder.error("rank0"), ZeroDivisionError)
