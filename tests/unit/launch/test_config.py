from __future__ import annotations

import pytest

from lockstitch.launch.config import read_config


def test_entries_are_parameters_of_run():
    given, ignored = read_config(
        """
        params:
          fusion_threshold_mb: 32
          cache_capacity: 1024
        stall_check: {enabled: no, warning_time_seconds: 120}
        library_options: {gloo_timeout_seconds: 5, thread_affinity: null}
        autotune: {enabled: true}
        controller: gloo
        timeline:
        """
    )
    assert given == {
        "fusion_megabytes": 32,
        "stall_check": False,
        "stall_warning": 120,
        "meeting_seconds": 5,
    }
    assert ignored == ["autotune.enabled", "controller", "params.cache_capacity"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params: {fusion_treshold_mb: 1}", "mean nothing: params.fusion_treshold_mb"),
        ("- a list", "no sections"),
        ("", "no sections"),
        ("a: [", "no YAML"),
    ],
)
def test_anything_else_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_config(text)
