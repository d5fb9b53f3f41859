from __future__ import annotations

import pytest

from lockstitch.hvd.runner.desk import Desk


def test_functions_that_no_module_holds_go_to_the_ranks(tmp_path):
    factor = 3
    Desk(tmp_path).put_call(lambda a, b: factor * a + b, [2], {"b": 1})
    func, args, kwargs = Desk(tmp_path).call()
    assert func(*args, **kwargs) == 7


def test_results_come_back_in_the_order_of_ranks(tmp_path):
    for rank in (2, 0, 1):
        Desk(tmp_path).put_result(rank, f"of rank {rank}")
    desk = Desk(tmp_path)
    assert desk.world_size() == 3
    assert desk.results(3) == ["of rank 0", "of rank 1", "of rank 2"]
    assert desk.error() is None
    with pytest.raises(FileNotFoundError):
        desk.results(4)


def test_the_first_error_is_raised_again_with_its_traceback(tmp_path):
    desk = Desk(tmp_path)
    for worker, error in (("rank1", KeyError("first")), ("rank0", ValueError("second"))):
        try:
            raise error
        except (KeyError, ValueError) as caught:
            desk.put_error(worker, caught)
    found = desk.error()
    assert isinstance(found, KeyError)
    assert "in test_the_first_error" in str(found.__cause__)
