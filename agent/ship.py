"""The shipper: takes what the trainers of this node left in the spool to the collector, until they are gone and all is there.

python -m annotq.agent.ship --spool DIR --endpoint HOST:PORT
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

from annotq.agent import config, ping
from annotq.agent.channel import access
from annotq.agent.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, AnnotqError
from annotq.agent.file_locks import hold, holder
from annotq.agent.ship_options import FLUSH_SECONDS, GIVE_UP_SECONDS, NICENESS, ShipOptions, Summary
from annotq.agent.shipper import Shipper
from annotq.agent.shipper_lock import foreign_shipper, held_for, note_endpoint
from annotq.agent.spool_reader import SHIPPER_LOCK, ProcessFolder, process_folders

_END_SECONDS = 5.0  # to say goodbye to the collector once the flush is over

_log = logging.getLogger(__name__)


def run_shipper(options: ShipOptions, stop: threading.Event, clock: ping.Clock = time.time_ns) -> Summary:
    """Ship until there is nothing more to do (see ShipOptions) or `stop` is set; then what is there, in flush_seconds.

    clock: for clock samples only. Raises AnnotqError for certificates that cannot be read and for a spool that cannot be used.
    """
    options.spool.mkdir(parents=True, exist_ok=True)
    summary = Summary()
    while True:
        lock = hold(options.spool / SHIPPER_LOCK)
        if lock is None:
            summary.held_by = holder(options.spool / SHIPPER_LOCK) or 0
            summary.held_for = held_for(options.spool)
            if summary.held_for not in (None, options.access.endpoint):
                _log.warning("%s", foreign_shipper(options.spool, summary.held_for, options.access.endpoint))
            return summary
        try:
            note_endpoint(lock, options.access.endpoint)
            Shipper(options, stop, clock, summary).run()
        finally:
            os.close(lock)
        # A trainer that came while this one was ending started a shipper of its own, which found the lock taken.
        if stop.is_set() or options.once or summary.left or not _has_living(options.spool):
            return summary


def _has_living(spool: Path) -> bool:
    return any(
        isinstance(found, ProcessFolder) and found.refused() is None and found.alive()
        for found in process_folders(spool)
    )


def stop_on_signals(flush_seconds: float) -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second of them ends the process at once. Call from the main thread.

    flush_seconds: what the shipper may take to end after the first; a little later the process ends in any case, whatever
    it waits for: a disk that does not answer, a call.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # A thread learns of it through a pipe: a Python handler would run in the main thread, which may hold any lock just then.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)

    def wait() -> None:
        os.read(reading, 1)
        stop.set()
        if not select.select([reading], [], [], flush_seconds + _END_SECONDS)[0]:
            _log.error("it did not end within %g s of being told to: ended", flush_seconds + _END_SECONDS)
        os._exit(EXIT_INTERRUPTED)

    threading.Thread(target=wait, name="annotq-signals", daemon=True).start()
    return stop


def log_to_stderr() -> None:
    """One line per event."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s shipper[%(process)d] %(levelname)s %(message)s"
    )


def main() -> None:
    """The shipper that a recorder starts: ends by itself, always with 0 once it could begin."""
    parser = argparse.ArgumentParser(prog="python -m annotq.agent.ship", description=__doc__)
    parser.add_argument("--spool", type=Path)
    parser.add_argument("--endpoint")
    parser.add_argument("--give-up", type=float, default=GIVE_UP_SECONDS, metavar="SECONDS")
    given = parser.parse_args()
    stop = stop_on_signals(FLUSH_SECONDS)
    log_to_stderr()
    try:
        spool = given.spool or config.spool_root(endpoint=given.endpoint)
        options = ShipOptions(spool, access(given.endpoint), give_up_seconds=given.give_up, niceness=NICENESS)
        _log.info("shipping %s to %s", options.spool, options.access.endpoint)
        summary = run_shipper(options, stop)
    except (AnnotqError, OSError) as error:
        _log.error("%s", error)
        sys.exit(error.exit_code if isinstance(error, AnnotqError) else EXIT_FAILED)
    _log.info("%s", summary.sentence())
    sys.exit(EXIT_OK)


if __name__ == "__main__":
    main()
