"""Stops the questions when the process takes more memory than its parts are allowed to.

The second line of defence behind value_size.py: DuckDB counts what it keeps, not every value that it makes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from annotq.collector.question import Question

LOOK_SECONDS = 0.05
# Python, its libraries, batches being decoded, and what the allocators keep for the next time.
MARGIN_BYTES = 1 << 30
TOO_LARGE = "too large"

log = structlog.get_logger()


class MemoryGuard:
    """Looks at the process while questions run. limit_bytes: of resident memory.

    A question that takes it above the limit is told to stop for TOO_LARGE, and so are those beside it: nothing tells
    whose memory it is.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._looking: asyncio.Task[None] | None = None

    def watch(self, questions: Iterable[Question]) -> None:
        """Look from now on, until `questions`, which may change meanwhile, is empty."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(questions))

    async def _look(self, questions: Iterable[Question]) -> None:
        while running := list(questions):
            taken = resident_bytes()
            if taken > self.limit_bytes and any(question.stopped_for is None for question in running):
                log.warning(
                    "questions stopped", resident_bytes=taken, limit_bytes=self.limit_bytes, questions=len(running)
                )
                for question in running:
                    question.stop(TOO_LARGE)
            await asyncio.sleep(LOOK_SECONDS)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
