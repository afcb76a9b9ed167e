"""What a shipper is asked to do, and what it says it did."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from annotq.agent.channel import Access
from annotq.agent.valid_text import valid_text

FIRST_PROCESS_SECONDS = 60.0
FLUSH_SECONDS = 10.0
GIVE_UP_SECONDS = 600.0
GIVE_UP_ONCE_SECONDS = 10.0
NICENESS = 10  # training comes first


@dataclass(frozen=True)
class ShipOptions:
    """What to ship where. once: what is there now, running trainers or not. forever: wait for new processes without end.

    give_up_seconds: so long without any progress, with no trainer alive, and the rest is left to the next shipper.
    flush_seconds: once told to stop, so long may it take to ship what is there.
    host: whose clock the samples are of, as its trainers name it; a container of its own may have another name.
    niceness: of reading and encoding, where the shipper is a process of its own. seed: of the waits between attempts.
    """

    spool: Path
    access: Access
    once: bool = False
    forever: bool = False
    give_up_seconds: float = GIVE_UP_SECONDS
    flush_seconds: float = FLUSH_SECONDS
    first_process_seconds: float = FIRST_PROCESS_SECONDS
    host: str = field(default_factory=lambda: valid_text(socket.gethostname()))
    niceness: int = 0
    seed: int | None = None


@dataclass
class Summary:
    """What a shipper did.

    refused: processes and files that the collector refused or that could not be read. left: files that were not acknowledged.
    held_by: another shipper has this spool (0: its process id is not known). held_for: where it sends to.
    unreachable: the last word of a collector that could not be used. gave_up: there was no progress for too long.
    """

    processes: int = 0
    files: int = 0
    batches: int = 0
    rows: int = 0
    refused: int = 0
    left: int = 0
    held_by: int | None = None
    held_for: str | None = None
    unreachable: grpc.RpcError | None = None
    gave_up: bool = False
    reasons: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """One line for the user."""
        if self.held_by is not None:
            who = f"process {self.held_by}" if self.held_by else "another process"
            where = f" to {self.held_for}" if self.held_for else ""
            return f"this spool is being shipped{where} by {who}; nothing to do here"
        counts = (
            f"shipped {_count(self.processes, 'process', 'es')}, {_count(self.files, 'file')}, "
            f"{_count(self.batches, 'batch', 'es')}, {_count(self.rows, 'row')}; {self.refused:,} refused"
        )
        return f"{counts}; {_count(self.left, 'file')} left in the spool" if self.left else counts


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"
