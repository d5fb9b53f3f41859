"""Over shared memory: elsewhere there are no buckets."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.collectives import Reduction
from lockstitch.hvd.bucket import Bucket, BucketExchange, fits_into_bucket
from lockstitch.hvd.exchange import ReducerOptions
from lockstitch.hvd.job import active
from lockstitch.hvd.process_sets import global_process_set
from tests.cluster.collectives.ranks import Ranks

OPTIONS = ReducerOptions(hvd.Compression.none, global_process_set)


def on_two(program):
    """The values of both ranks."""

    def run(session):
        with active(session):
            return program(session)

    with Ranks(2, "shared_memory") as sessions:
        return sessions.run(run)


def parameters_with_gradients():
    large, image = nn.Parameter(torch.zeros(700, 512)), nn.Parameter(torch.zeros(2, 3, 5, 4))
    image.data = image.data.to(memory_format=torch.channels_last)
    parameters = [large, image, nn.Parameter(torch.zeros(3))]
    for number, each in enumerate(parameters):
        each.grad = torch.full_like(each, float(hvd.rank() + number))
    image.grad[0, 1, 2, 3] = 7.0
    return parameters


def test_gradients_become_views_of_one_reduction_in_the_layout_of_their_parameters():
    def program(session):
        parameters = large, image, small = parameters_with_gradients()
        assert fits_into_bucket(session, OPTIONS, parameters)
        bucket = Bucket(session, parameters)
        exchange = BucketExchange(session, OPTIONS, "bucket", bucket, parameters)
        assert not exchange.is_disturbed()
        exchange.wait()
        assert all(session.is_resident(each.grad) for each in parameters)
        assert [each.grad.stride() for each in parameters] == [each.stride() for each in parameters]
        assert large.grad.eq(0.5).all()
        assert small.grad.tolist() == [2.5] * 3
        return image.grad[0, 1].tolist()

    row = [1.5] * 4
    expected = [row, row, [1.5, 1.5, 1.5, 7.0], row, row]
    assert on_two(program) == [expected] * 2


def test_saving_one_gradient_saves_no_other():
    def program(session):
        parameters = [*parameters_with_gradients(), nn.Parameter(torch.zeros(0, 4))]
        parameters[-1].grad = torch.zeros(0, 4)
        Bucket(session, parameters).take_in()
        gradients = [each.grad for each in parameters]
        assert not any(each._is_view() for each in gradients)
        copied = copy.deepcopy(gradients[2])
        assert copied.tolist() == gradients[2].tolist()
        assert not session.is_resident(copied)
        file = io.BytesIO()
        torch.save(gradients[2], file)
        sizes = [each.untyped_storage().nbytes() for each in gradients]
        return sizes == [each.nbytes for each in gradients], len(file.getvalue()) < 10_000

    assert on_two(program) == [(True, True)] * 2


def test_memory_is_kept_unless_somebody_looks_at_it():
    def program(session):
        parameters = parameters_with_gradients()
        bucket = Bucket(session, parameters)
        found = []
        for looks in ("at nothing", "at a gradient", "at nothing", "at a part of it", "inside"):
            BucketExchange(session, OPTIONS, "bucket", bucket, parameters).wait()
            seen = None
            if looks == "at a gradient":
                seen = parameters[0].grad
            elif looks == "at a part of it":
                seen = parameters[0].grad[1]
            for each in parameters if looks != "inside" else []:
                each.grad = None
                each.grad = torch.ones_like(each)
            found.append(bucket.suits(session, parameters))
            del seen
        return [*found, bucket.suits(session, parameters[:2])]

    assert on_two(program) == [[True, False, True, False, True, False]] * 2


def test_a_reduction_that_nobody_waited_for_keeps_its_memory():
    def program(session):
        parameters = parameters_with_gradients()
        bucket = Bucket(session, parameters)
        if session.rank == 0:
            BucketExchange(session, OPTIONS, "bucket", bucket, parameters)  # forgotten at once
            for each in parameters:
                each.grad = None
                each.grad = torch.ones_like(each)
            found = bucket.suits(session, parameters)
            session.wait(session.allreduce(torch.zeros(1), name="go on"))
            session.wait(bucket.handle)
            return found, bucket.suits(session, parameters)
        session.wait(session.allreduce(torch.zeros(1), name="go on"))
        BucketExchange(session, OPTIONS, "bucket", bucket, parameters).wait()
        return None

    assert on_two(program) == [(False, True), None]


@pytest.mark.parametrize(
    "options",
    [
        ReducerOptions(hvd.Compression.fp16, global_process_set),
        ReducerOptions(hvd.Compression.none, global_process_set, Reduction(prescale=0.5)),
    ],
    ids=["compressed", "scaled first"],
)
def test_what_changes_on_the_way_travels_otherwise(options):
    def program(session):
        parameters = parameters_with_gradients()
        return fits_into_bucket(session, options, parameters), fits_into_bucket(
            session, OPTIONS, parameters[1:]
        )

    assert on_two(program) == [(False, False)] * 2
