"""What a forked slot answers, with messages that stay in a list."""

from __future__ import annotations

import contextvars
from collections import deque
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from lockstitch.modes import Modes
from lockstitch.nn.slots.answers import BACKWARD, COLLECT, FORWARD
from lockstitch.nn.slots.base import Blueprint, Request
from lockstitch.nn.slots.child import _disarm, _Server
from lockstitch.nn.slots.failures import Failure
from lockstitch.nn.slots.lifting import lift
from lockstitch.nn.slots.nesting import is_inside
from lockstitch.nn.slots.request_packing import Packer

X = torch.ones(2, 3)


class Message(NamedTuple):
    key: tuple[int, int]
    body: Any
    tensors: Any = ()
    leaves: Any = None


class MessageCodec:
    """Its messages are what they mean."""

    encode = Message

    def key(self, message):
        return message.key

    def decode(self, message):
        return message.body, message.tensors, message.leaves


class Mailbox:
    def __init__(self, messages, most_answers=100):
        self.messages = deque(messages)
        self.answers = []
        self.kinds = []
        self.most_answers = most_answers

    def receive(self, kind):
        self.kinds.append(kind)
        return self.messages.popleft() if self.messages else None

    def send(self, message):
        self.answers.append(message)
        return len(self.answers) < self.most_answers


def forward(number, released=()):
    skeleton, tensors = lift(((X,), {}))
    request = Request(
        number, skeleton, tensors, [False], Modes.of_this_thread(), torch.float32, seed=1
    )
    content, tensors = Packer().pack(request)
    return Message((FORWARD, number), (list(released), content), tensors)


def backward(number, *, keeps_graph=False, keeps_gradients=False):
    return Message((BACKWARD, number), ([], (keeps_graph, keeps_gradients)), [torch.ones(2, 1)])


def collect(number):
    return Message((COLLECT, number), ([], None))


def serve(*messages, module=None, **options):
    module = module or nn.Linear(3, 1, bias=False)
    mailbox = Mailbox(messages, **options)
    blueprint = Blueprint(module, list(module.parameters()))
    server = _Server(blueprint, mailbox, MessageCodec(), "slot 7")
    contextvars.copy_context().run(server.serve)
    return mailbox


def test_each_message_has_its_answer_until_the_parent_is_gone():
    module = nn.Linear(3, 1, bias=False)
    mailbox = serve(forward(1), backward(1), forward(2), backward(2), module=module)
    there, back, *_ = mailbox.answers
    assert [answer.key for answer in mailbox.answers] == [
        (FORWARD, 1),
        (BACKWARD, 1),
        (FORWARD, 2),
        (BACKWARD, 2),
    ]
    _skeleton, requires_grad, written, seconds = there.body
    assert (requires_grad, list(written)) == ([True], [])
    assert seconds > 0
    assert back.body > 0
    assert [answer.body[3] for answer in mailbox.answers[2:3]] == [None]  # one in eight is measured
    assert torch.equal(there.tensors[0], module(X))
    assert list(back.tensors) == []
    assert torch.equal(back.leaves[0], torch.full((1, 3), 2.0))
    assert module.weight.grad is None


def test_it_waits_for_what_usually_comes_after_the_last_message():
    assert serve(forward(1), backward(1)).kinds == [FORWARD, FORWARD, BACKWARD]


def test_gradients_that_stay_are_collected_once():
    keeping = [each for i in (1, 2) for each in (forward(i), backward(i, keeps_gradients=True))]
    answers = serve(*keeping, collect(3), collect(4)).answers
    assert [answer.leaves for answer in answers[:4]] == [None] * 4
    assert torch.equal(answers[4].leaves[0], torch.full((1, 3), 4.0))
    assert answers[5].leaves is None


def test_a_graph_that_was_released_is_gone():
    *_, last = serve(forward(1), forward(2, released=[1]), backward(1)).answers
    assert isinstance(last.body, Failure)
    assert "graph of this slot's forward pass is gone" in last.body.text


class Fails(nn.Linear):
    def forward(self, x):
        raise KeyError("within")


def test_what_it_raises_is_an_answer_too():
    mailbox = serve(forward(1), forward(2), module=Fails(3, 1))
    for answer in mailbox.answers:
        assert (answer.body.slot, answer.body.kind) == ("slot 7", "KeyError")
        with pytest.raises(KeyError, match="within"):
            raise answer.body.error()


def test_it_ends_when_nobody_takes_the_answer():
    mailbox = serve(forward(1), forward(2), forward(3), most_answers=2)
    assert len(mailbox.answers) == 2
    assert len(mailbox.messages) == 1


INSIDE = []


class NotesInside(nn.Linear):
    def forward(self, x):
        INSIDE.append(is_inside())
        return super().forward(x)


def test_a_wrapper_within_the_module_is_plain():
    serve(forward(1), module=NotesInside(3, 1))
    assert INSIDE == [True]
    assert not is_inside()


def test_the_parents_hooks_and_gradients_are_none_of_the_childs():
    leaf, calls = nn.Parameter(torch.ones(2)), []
    leaf.grad = torch.ones(2)
    leaf.register_hook(calls.append)
    leaf.register_post_accumulate_grad_hook(calls.append)
    _disarm(leaf)
    assert leaf.grad is None
    leaf.sum().backward()
    assert calls == []
