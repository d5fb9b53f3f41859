"""The guided run, without its guide: each target reads true bytes and false ones, and what the
guide says is read as figures."""

from __future__ import annotations

import random

import pytest

from benchmarks.fuzz_targets import other_words, targets
from benchmarks.guided_fuzz import Outcome, read

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of sparse tensors

SAID = """INFO: seed corpus: files: 3
#4\tINITED cov: 101 ft: 120 corp: 3/300b exec/s: 0 rss: 250Mb
#900\tNEW    cov: 110 ft: 125 corp: 5/310b lim: 80 exec/s: 0 rss: 251Mb L: 10/20 MS: 1 Custom-
#20000\tDONE   cov: 116 ft: 140 corp: 7/350b lim: 90 exec/s: 900 rss: 255Mb
"""


@pytest.mark.parametrize("name", targets())
def test_target_takes_true_bytes_and_false_ones(name: str) -> None:
    target = targets()[name]
    for seed in target.seeds:
        target.read(seed)
    for number in range(40):
        chance = random.Random(number)
        data = bytearray(chance.choice(target.seeds))
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        target.read(bytes(data))
        if target.change is not None:
            target.read(target.change(chance.choice(target.seeds), chance))


def test_other_words_are_other_and_keep_to_their_length() -> None:
    text = b'{"world": "w", "members": [["a", 1]]}'
    changed = {other_words(text, random.Random(seed)) for seed in range(50)}
    assert len(changed) > 25
    framed = len(text).to_bytes(4, "little") + text
    for seed in range(20):
        changed_frame = other_words(framed, random.Random(seed))
        assert int.from_bytes(changed_frame[:4], "little") == len(changed_frame) - 4


def test_what_the_guide_says_is_read_as_figures() -> None:
    assert read(SAID, 0) == Outcome(20000, (101, 116), (250, 255))
    assert read(SAID + "ERROR: libFuzzer", 77).finding.endswith("libFuzzer")
    assert read("no atheris", 1).finding == "no atheris"
