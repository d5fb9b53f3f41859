from __future__ import annotations

from lockstitch.launch.tuning import variables_of

NOTHING = dict.fromkeys(
    "fusion_megabytes timeline mark_cycles stall_check stall_warning stall_shutdown start_timeout "
    "meeting_seconds log_level log_timestamp replace".split()
)


def test_only_what_is_given_becomes_a_variable():
    assert variables_of(NOTHING) == {}
    given = {"fusion_megabytes": 0.5, "stall_check": False, "log_timestamp": True}
    assert variables_of({**NOTHING, **given}) == {
        "HOROVOD_FUSION_THRESHOLD": str(1 << 19),
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_HIDE_TIME": "0",
    }


def test_the_time_to_meet_comes_before_the_time_to_start():
    name = "HOROVOD_GLOO_TIMEOUT_SECONDS"
    assert variables_of({**NOTHING, "start_timeout": 0.2})[name] == "1"
    assert variables_of({**NOTHING, "start_timeout": 9, "meeting_seconds": 5})[name] == "5"


def test_what_is_to_be_replaced_is_passed_on():
    assert variables_of({**NOTHING, "replace": "all"}) == {"LOCKSTITCH_REPLACE": "all"}
