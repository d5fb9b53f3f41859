"""Amounts in Kubernetes' words; slips are refused and explained."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lockstitch.launch.kubernetes.quantities import cores, memory_bytes


@pytest.mark.parametrize(
    ("text", "number"), [("2", 2), ("0.5", "0.5"), (".25", "0.25"), ("500m", "0.5"), ("1.5", "1.5")]
)
def test_cores_are_whole_parts_or_thousandths(text: str, number: int | str) -> None:
    assert cores(text) == Decimal(number)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("4Gi", "no number of cores: write 2, 0.5 or 500m"),
        ("two", "no number of cores"),
        ("-1", "no number of cores"),
        ("", "no number of cores"),
        ("0", "cannot be given"),
        ("0.5m", "smallest part of a core is 1m"),
        ("0.0001", "smallest part of a core is 1m"),
    ],
)
def test_cores_that_cannot_be_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        cores(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8Gi", 8 << 30),
        ("8G", 8 * 10**9),
        ("1.5Gi", 3 << 29),
        ("512Mi", 512 << 20),
        ("300000k", 300_000_000),
        ("300000Ki", 300_000 << 10),
        ("1073741824", 1 << 30),
        ("2e9", 2 * 10**9),
        ("1Ti", 1 << 40),
    ],
)
def test_memory_is_counted_in_powers_of_either_base(text: str, number: int) -> None:
    assert memory_bytes(text) == number


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8gb", "no amount of memory: write 8Gi"),
        ("8g", "no amount of memory"),
        ("500m", "no amount of memory"),  # half a byte
        ("-8Gi", "no amount of memory"),
        ("8", r"8 bytes: too little .* Do you mean 8Gi\?"),
        ("64Mi", "67,108,864 bytes: too little even to import torch"),
        ("0", "too little"),
        ("16Ei", "more than Kubernetes can count"),
    ],
)
def test_memory_that_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        memory_bytes(text)
