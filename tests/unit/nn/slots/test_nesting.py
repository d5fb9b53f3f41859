"""Code knows whether it runs in a slot."""

from __future__ import annotations

import contextvars

from lockstitch.nn.slots.nesting import inside, is_inside, mark_inside


def test_a_block_is_inside():
    assert not is_inside()
    with inside():
        assert is_inside()
    assert not is_inside()


def test_a_mark_holds_for_its_context():
    def marked():
        mark_inside()
        return is_inside()

    assert contextvars.copy_context().run(marked)
    assert not is_inside()
