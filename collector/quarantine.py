"""Refused batches, kept as they came, in a folder beside the store: `STORE.quarantine/`."""

from __future__ import annotations

from pathlib import Path

import structlog

from annotq.v1.collector_pb2 import Batch

LIMIT_BYTES = 256 << 20

log = structlog.get_logger()


class Quarantine:
    """Keeps the newest refused batches, LIMIT_BYTES of them. A file is one serialized annotq.v1.Batch."""

    def __init__(self, store: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = store.with_name(f"{store.name}.quarantine")
        self._limit_bytes = limit_bytes

    def keep(self, batch: Batch, reason: str, now_ns: int) -> None:
        """Write the batch; a disk that does not take it is only logged: the batch is refused anyway."""
        name = f"{now_ns}-{batch.process_id}-{batch.sequence}-{reason}.batch"
        try:
            self.folder.mkdir(exist_ok=True)
            (self.folder / name).write_bytes(batch.SerializeToString())
            self._make_room()
        except OSError as error:
            log.warning("refused batch not kept", file=str(self.folder / name), error=error.strerror)

    def _make_room(self) -> None:
        # Names begin with a time of 19 digits: their order is that of arrival.
        files = sorted(self.folder.glob("*.batch"))
        total = sum(file.stat().st_size for file in files)
        for file in files[:-1]:
            if total <= self._limit_bytes:
                return
            total -= file.stat().st_size
            file.unlink()
