"""How long to wait before trying again: exponential with full jitter, so that a thousand nodes do not come back at once."""

from __future__ import annotations

from random import Random

FIRST_SECONDS = 0.1
MOST_SECONDS = 10.0


class Backoff:
    """Waits that grow from try to try until reset(). Each is drawn evenly from 0 to its limit ("full jitter")."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait now."""
        limit = min(MOST_SECONDS, FIRST_SECONDS * 2**self._tries)
        self._tries = min(self._tries + 1, 16)
        return self._random.uniform(0, limit)

    def reset(self) -> None:
        """It worked."""
        self._tries = 0
