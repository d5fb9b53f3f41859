from __future__ import annotations

import pytest

from lockstitch import hvd
from lockstitch.hvd.common import util
from lockstitch.hvd.common.util import is_iterable, num_rank_is_power_2, split_list


def test_powers_of_two():
    assert [n for n in range(10) if num_rank_is_power_2(n)] == [1, 2, 4, 8]


def test_parts_differ_by_one_at_most():
    assert split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert split_list([1], 3) == [[1]]


def test_what_one_can_go_through():
    assert is_iterable([])
    assert not is_iterable(1)


def test_only_the_interface_for_pytorch_is_an_extension():
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.tensorflow is not here"):
        util.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")


def test_names_are_found_where_programs_import_them_from():
    assert hvd.mpi_ops.Compression is hvd.Compression
    assert hvd.mpi_ops.num_rank_is_power_2 is num_rank_is_power_2
    assert hvd.common.elastic.HorovodInternalError is hvd.HorovodInternalError


def test_questions_may_be_asked_for_more_words():
    assert util.gloo_built(verbose=True) == hvd.gloo_built()
    assert not util.mpi_built(True)
    assert util.extension_available("torch")
    assert not util.extension_available("tensorflow")
    assert not util.gpu_available("mxnet")
