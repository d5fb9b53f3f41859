from __future__ import annotations

from lockstitch.launcher_link.messages import StoreReply, StoreRequest
from lockstitch.launcher_link.values import Values


def ask(values, operation, key="k", value="", expected=""):
    reply = values.answer(StoreRequest(7, operation, key, value, expected))
    assert reply == StoreReply(7, reply.value)
    return reply.value


def test_a_value_is_what_was_set_last():
    values = Values()
    assert ask(values, "get") is None
    assert ask(values, "set", value="one") == "one"
    assert ask(values, "set", value="") == ""
    assert ask(values, "get") == ""
    assert ask(values, "get", key="other") is None


def test_a_value_is_replaced_only_where_it_is_the_expected_one():
    values = Values()
    assert ask(values, "compare_set", value="first", expected="other") is None
    assert ask(values, "compare_set", value="first") == "first"
    assert ask(values, "compare_set", value="second") == "first"
    assert ask(values, "compare_set", value="second", expected="first") == "second"


def test_counters_begin_at_nothing_and_take_no_words():
    values = Values()
    assert ask(values, "add", value="0") == "0"
    assert ask(values, "add", value="3") == "3"
    assert ask(values, "add", value="-1") == "2"
    assert ask(values, "add", value="many") == "2"
    ask(values, "set", value="words")
    assert ask(values, "add", value="1") == "words"


def test_what_is_deleted_is_told_once():
    values = Values()
    ask(values, "set", value="v")
    assert ask(values, "delete") == "v"
    assert ask(values, "delete") is None
