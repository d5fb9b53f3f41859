"""Trainings that nobody would have thought of: process sets, compression, accumulation, parameters
that are frozen or left out, sparse ones, ranks that join, optimizers made anew for other ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from lockstitch import hvd
from lockstitch.hvd.job import active
from tests.cluster.collectives.ranks import Ranks
from tests.cluster.hvd.trainings import Training, expected, train, trainings


@pytest.mark.parametrize("backend", ["memory", "shared_memory"])
def test_any_training_ends_as_in_one_process(backend: str) -> None:
    @settings(
        max_examples=settings().max_examples // 3,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(trainings())
    def check(training: Training) -> None:
        values = [parameter.detach() for parameter in training.parameters()]
        is_narrow = training.options["compression"] is hvd.Compression.fp16
        tolerance = {"rtol": 0.02, "atol": 0.02} if is_narrow else {"rtol": 1e-9, "atol": 1e-9}
        for stage in training.stages:
            with Ranks(stage.size, backend) as ranks:

                def program(session, stage=stage, values=values):
                    try:
                        with active(session):
                            return train(training, stage, values)
                    except BaseException:
                        session.shutdown()  # nobody needs to wait for it
                        raise

                results = ranks.run(program)
            for result, wanted in zip(results, expected(training, stage, values), strict=True):
                for ours, theirs in zip(result, wanted, strict=True):
                    torch.testing.assert_close(ours, theirs, **tolerance)
            values = results[0]

    check()
