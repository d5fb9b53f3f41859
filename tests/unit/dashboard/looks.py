"""A job that is looked at, for tests: what each look finds is given beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.observe.grouping import JobNotFoundError

if TYPE_CHECKING:
    from lockstitch.attach.values import Question
    from lockstitch.observe.grouping import Job


class Looks:
    """Finds `jobs`, one at each look, then that the job has ended."""

    def __init__(self, *jobs: Job) -> None:
        self._jobs = list(jobs)
        self.questions: list[Question] = []

    def look(self, question: Question) -> Job:
        self.questions.append(question)
        if not self._jobs:
            raise JobNotFoundError("it has ended")
        return self._jobs.pop(0)
