"""Whole programs, in steps per second. Targets are ratios of time, as everywhere for times."""

from __future__ import annotations

from benchmarks.cases import many_tables, programs, recommender
from benchmarks.plan import QUARTET, TRIO, Comparison, Section, Target, parameters

_COMMUNICATION_DOMINATES, _NEVER_SLOWER = Target(0.6), Target(1.0)
_MESSAGES_ALONE = Target(1 / 3)
_SMALL, _WIDE = many_tables.Size(width=16, batch=512), many_tables.Size(width=64, batch=1024)

PROGRAMS = Section(
    "whole programs, per step",
    [
        Comparison(
            "parameter server, 1 trainer",
            parameters(programs.parameter_server, 1),
            _COMMUNICATION_DOMINATES,
            setting=TRIO,
        ),
        Comparison(
            "parameter server, 2 trainers",
            parameters(programs.parameter_server, 2),
            _COMMUNICATION_DOMINATES,
            setting=TRIO,
        ),
        Comparison("RNN language model", programs.language_model, _NEVER_SLOWER, setting=TRIO),
        Comparison("pipeline of 3 stages", programs.pipeline, _NEVER_SLOWER, setting=TRIO),
        Comparison(
            "actor and learner", programs.actor_learner, _COMMUNICATION_DOMINATES, setting=TRIO
        ),
        Comparison(
            "recommender, 2 servers, 2 trainers",
            recommender.recommender,
            _MESSAGES_ALONE,
            setting=QUARTET,
        ),
        *(
            Comparison(
                name,
                parameters(many_tables.recommender, size, by_server),
                _NEVER_SLOWER,
                setting=QUARTET,
            )
            for name, size, by_server in (
                ("recommender of 26 tables, a call for each", _SMALL, False),
                ("recommender of 26 tables, a call for each server", _SMALL, True),
                ("recommender of 26 wide tables, a call for each server", _WIDE, True),
            )
        ),
    ],
)
