"""From the end of a profiler window of 100,000 kernels to the answer in SQL, and how long the training loop is held.

    python tests/gpu/window.py --kernels 100000 --work /tmp/window

A collector and a shipper run beside it, as in a live job. A second process asks the collector until the window is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ASK = """SELECT coalesce(sum(graph_events), 0)::BIGINT AS events, coalesce(sum(matched), 0)::BIGINT AS matched FROM coverage
         WHERE status = 'complete'"""
REGIONS = """SELECT region, count(*) AS kernels FROM kernels WHERE region IS NOT NULL
             GROUP BY region ORDER BY kernels DESC, region LIMIT 3"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--train", action="store_true", help="be the trainer (internal)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.train:
        train(options.kernels, options.windows, options.work)
    else:
        watch(options)


def watch(options: argparse.Namespace) -> None:
    """Start collector and trainer, then ask over and over."""
    from annotq.cli.door import open_door
    from annotq.collector.query import Limits

    port_file = options.work / "port"
    log = (options.work / "collector.log").open("w")
    collector = subprocess.Popen(
        [
            "annotq",
            "serve",
            "--db",
            str(options.work / "store.duckdb"),
            "--listen",
            "127.0.0.1:0",
            "--port-file",
            str(port_file),
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        until = time.monotonic() + 30
        while not port_file.exists() and time.monotonic() < until:
            time.sleep(0.05)
        endpoint = f"127.0.0.1:{port_file.read_text().strip()}"
        spool = str(options.work / "spool")
        environment = os.environ | {"ANNOTQ_ENDPOINT": endpoint, "ANNOTQ_SPOOL": spool, "ANNOTQ_JOB": "window"}
        trainer = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--train",
                "--kernels",
                str(options.kernels),
                "--windows",
                str(options.windows),
                "--work",
                str(options.work),
            ],
            env=environment,
        )
        answered: list[float] = []
        last: dict[str, Any] = {}
        deadline = time.monotonic() + 150
        with open_door(endpoint, Limits()) as door:
            while len(answered) < options.windows and time.monotonic() < deadline:
                try:
                    last = door.ask(ASK).table.to_pylist()[0]
                except Exception as error:
                    last = {"error": repr(error)[:300]}
                    time.sleep(0.2)
                    continue
                whole = int(last["events"]) // (options.kernels * 98 // 100)
                while len(answered) < min(whole, options.windows):
                    door.ask(REGIONS)
                    answered.append(time.time())
                time.sleep(0.02)
        trainer.wait(60)
        ends = json.loads((options.work / "ends.json").read_text())
        after = [round(answer - end, 2) for answer, end in zip(answered, ends.pop("ends"), strict=False)]
        print(
            json.dumps({"what": "window", "kernels": options.kernels, "answered_after_s": after, **ends, "last": last})
        )
    finally:
        collector.terminate()
        collector.wait(20)
        log.close()


def train(kernels: int, windows: int, work: Path) -> None:
    """Windows of the same kernels, exported in turn by torch alone and by annotq's trace_handler."""
    import torch
    from workload import captured, warm_up

    import annotq.agent

    annotq.agent.start(rank=0, world_size=1, local_rank=0)
    x = torch.zeros(1024, device="cuda")
    nodes, regions = 2000, 200

    def step() -> None:
        for region in range(regions):
            with annotq.agent.region(f"layers.{region}"):
                for _ in range(nodes // regions):
                    x.add_(1)

    warm_up(step, 1)
    graph = captured(step, enable_annotations=True)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    handler = annotq.agent.trace_handler()
    ends: list[float] = []
    held: list[float] = []
    alone: list[float] = []
    mib: list[float] = []

    def export(profiler: Any) -> None:
        path = work / "alone.json"
        begun = time.perf_counter()
        profiler.export_chrome_trace(str(path))
        alone.append(round(time.perf_counter() - begun, 3))
        mib.append(round(path.stat().st_size / 2**20, 1))
        path.unlink()

    def hand_over(profiler: Any) -> None:
        begun = time.perf_counter()
        ends.append(time.time())
        handler(profiler)
        held.append(round(time.perf_counter() - begun, 3))

    for number in range(windows):
        for ready in (export, hand_over) if number % 2 else (hand_over, export):
            with torch.profiler.profile(activities=activities, on_trace_ready=ready):
                for _ in range(kernels // nodes):
                    graph.replay()
                torch.cuda.synchronize()
            time.sleep(3 if ready is hand_over else 0)
    found = {"ends": ends, "held_s": held, "kineto_alone_s": alone, "trace_mib": mib}
    (work / "ends.json").write_text(json.dumps(found))
    annotq.agent.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
