"""What `annotq top` asks of a collector, beside the smallest question there is: 1,024 ranks that run and send beats.

python bench/top_refresh.py PORT RANKS ROUNDS   the asking side: prints the seconds of each question
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import spread
from section import Section

HERE = Path(__file__).parent
ANNOTQ = Path(sys.executable).with_name("annotq")
RANKS = 1024
RANKS_PER_HOST = 8
ROUNDS = 30
PLAIN = "SELECT count(*) FROM agents"


def measure(repeats: int) -> Section:
    """Each round asks the plain question and those of a refresh, one after the other."""
    runs = [_asked(RANKS) for _ in range(repeats)]
    rows = [("what", "milliseconds: median (min to max)", "times the plain question: median of the rounds")]
    for name in runs[0]:
        seconds = [one for run in runs for one in run[name]]
        ratios = [own / plain for run in runs for own, plain in zip(run[name], run[PLAIN], strict=True)]
        rows.append((name, spread([1e3 * one for one in seconds], 1), f"{statistics.median(ratios):.1f}"))
    what = (
        f"{RANKS:,} ranks on {RANKS // RANKS_PER_HOST} hosts that beat every second, no profiler window yet: what each refresh "
        f"costs whatever the store holds. {repeats} times {ROUNDS} rounds, each time a new collector, asked through gRPC."
    )
    return Section("A refresh of annotq top", what, rows)


def _asked(ranks: int) -> dict[str, list[float]]:
    """The seconds of each question against a collector of its own."""
    (HERE / "data").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HERE / "data") as folder:
        port_file = Path(folder, "port")
        command = [ANNOTQ, "serve", "--db", f"{folder}/top.duckdb", "--listen", "127.0.0.1:0", "--port-file", port_file]
        collector = subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not port_file.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            asking = [sys.executable, __file__, port_file.read_text().strip(), str(ranks), str(ROUNDS)]
            done = subprocess.run(asking, stdout=subprocess.PIPE, check=True, text=True, timeout=600)
            return json.loads(done.stdout)  # type: ignore[no-any-return]
        finally:
            collector.send_signal(signal.SIGTERM)
            collector.wait(60)


def _main(port: str, ranks: int, rounds: int) -> None:
    import grpc
    from collector_client import register_request

    from annotq.cli.top.place import Place, rows_of
    from annotq.cli.top.rank_sql import jobs_statement, ranks_statement
    from annotq.cli.top.watch import Watch
    from annotq.collector.query import Limits
    from annotq.v1 import collector_pb2_grpc

    address = f"127.0.0.1:{port.rpartition(':')[2]}"
    seconds: dict[str, list[float]] = {}
    with grpc.insecure_channel(address) as channel, Place(address, Limits()) as place:
        stub = collector_pb2_grpc.CollectorStub(channel)
        requests = [register_request(rank) for rank in range(ranks)]
        for request in requests:
            request.process.world_size = ranks
        ids = [stub.Register(request).process_id for request in requests]
        watch = Watch(place, None)
        for number in range(rounds):
            for first in range(0, ranks, RANKS_PER_HOST):
                stub.Beat(_beat(ids[first : first + RANKS_PER_HOST], first // RANKS_PER_HOST, number))
            with place.door() as door:
                asked = {
                    PLAIN: lambda: door.ask(PLAIN),
                    "which job: the first refresh only": lambda: rows_of(door, jobs_statement()),
                    "its ranks: every refresh": lambda: rows_of(door, ranks_statement("load")),
                    "a whole refresh, up to the numbers on the screen": lambda: watch.look(wait=False),
                }
                for name, ask in asked.items():
                    begin = time.perf_counter()
                    ask()
                    seconds.setdefault(name, []).append(time.perf_counter() - begin)
            time.sleep(1)
        snapshot = watch.look(wait=False)
        assert len(snapshot.ranks) == ranks and snapshot.states == {"running": ranks}, snapshot.states
    print(json.dumps(seconds))


def _beat(ids: list[int], host: int, step: int):  # type: ignore[no-untyped-def]
    from annotq.v1 import collector_pb2 as pb

    beats = [
        pb.ProcessBeat(process_id=one, alive=True, step=step, step_ns=200_000_000 + one, seen_age_ns=0) for one in ids
    ]
    return pb.BeatRequest(host=f"node-{host:03}", processes=beats)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
