from __future__ import annotations

import pytest
import torch

from lockstitch.hvd import Compression
from lockstitch.hvd.compression import Compressor


@pytest.mark.parametrize(
    ("compressor", "sent"),
    [(Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16)],
)
def test_wide_numbers_are_sent_narrow_and_come_back_wide(compressor, sent):
    for dtype in (torch.float32, torch.float64):
        tensor = torch.tensor([1.0, 0.5], dtype=dtype)
        narrow, note = compressor.compress(tensor)
        assert narrow.dtype is sent
        back = compressor.decompress(narrow, note)
        assert back.dtype is dtype
        assert torch.equal(back, tensor)


@pytest.mark.parametrize("compressor", [Compression.none, Compression.fp16, Compression.bf16])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16])
def test_what_is_narrow_or_whole_stays(compressor, dtype):
    tensor = torch.tensor([1, 2], dtype=dtype)
    sent, note = compressor.compress(tensor)
    assert sent.dtype is dtype
    assert compressor.decompress(sent, note).dtype is dtype


def test_none_is_the_tensor_itself():
    tensor = torch.ones(2)
    assert Compression.none.compress(tensor)[0] is tensor


def test_programs_derive_their_own():
    with pytest.raises(NotImplementedError):
        Compressor.compress(torch.ones(1))
    with pytest.raises(NotImplementedError):
        Compressor.decompress(torch.ones(1), None)
