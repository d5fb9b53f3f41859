"""What `DataParallel` takes, and what it does before there are any slots."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel, data_parallel


@pytest.mark.parametrize("function", [DataParallel, lambda m, ids: data_parallel(m, None, ids)])
@pytest.mark.parametrize("ids", [2, torch.device("cpu")], ids=str)
def test_slots_that_are_no_list_are_a_type_error_as_in_torch(function, ids):
    with pytest.raises(TypeError, match=r'\["fork", "fork"\].* is not iterable'):
        function(nn.Tanh(), ids)
