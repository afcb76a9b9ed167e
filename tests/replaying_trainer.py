"""A trainer as the shipper sees it, with the recorder's own spool writer: run as a process, it writes one profiler window after
the other and says so on stdout. Arguments: spool root, job, rank, folder of the windows, seconds between them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from spools import add_trace, snapshot, writer


def main(root: str, job: str, rank: str, windows: str, pause: str) -> None:
    spool = writer(Path(root), int(rank), job=job, world_size=4)
    spool.put("snapshot", snapshot(regions=("attn", "mlp")))
    for window in sorted(Path(windows).iterdir()):
        add_trace(spool, window)
        print(window.name, flush=True)
        time.sleep(float(pause))
    spool.close(time.time_ns(), "stopped")


if __name__ == "__main__":
    main(*sys.argv[1:])
