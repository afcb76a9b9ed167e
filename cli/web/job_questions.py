"""Asks about jobs on behalf of all pages together: however often they are reloaded, the collector answers once a second."""

from __future__ import annotations

import asyncio
import time

from annotq.agent.errors import AnnotqError
from annotq.cli.statement import Statement
from annotq.cli.web.job_list import JobRow, job_rows, jobs_statement
from annotq.collector.answer import Answer

FRESH_SECONDS = 1.0
_MOST_KEPT = 64


class UnknownJobError(AnnotqError):
    """There is no such job, or attempt of it."""


class JobQuestions:
    """The jobs as they were FRESH_SECONDS ago at most."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._asked: dict[Statement, tuple[float, asyncio.Task[list[JobRow]]]] = {}

    async def newest(self) -> list[JobRow]:
        """The newest job attempts, up to MOST_JOBS + 1. Raises AnnotqError as Answer.table."""
        return await self._rows(jobs_statement())

    async def attempt(self, job: str, attempt: int | None) -> JobRow:
        """One attempt of a job, the latest for None. Raises UnknownJobError, and AnnotqError as Answer.table."""
        rows = await self._rows(jobs_statement(job, attempt))
        if rows:
            return max(rows, key=lambda row: row.attempt)
        which = f"job {job}" if attempt is None else f"attempt {attempt} of job {job}"
        raise UnknownJobError(f"There is no {which} here.", "The list of all jobs says what there is.")

    async def _rows(self, statement: Statement) -> list[JobRow]:
        now = time.monotonic()
        begun, task = self._asked.get(statement, (0.0, None))
        if task is None or (task.done() and (now - begun > FRESH_SECONDS or task.cancelled() or task.exception())):
            while len(self._asked) >= _MOST_KEPT:
                del self._asked[next(iter(self._asked))]
            self._asked.pop(statement, None)
            task = asyncio.create_task(self._ask(statement))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # looked at
            self._asked[statement] = now, task
        return await asyncio.shield(task)

    async def _ask(self, statement: Statement) -> list[JobRow]:
        table = await self._answer.table(statement.sql, statement.parameters)
        return job_rows(table.to_pylist())
