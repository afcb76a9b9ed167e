"""Runs train.py with N ranks and checks the store against torch's own dictionary and the trace files, one JSON line per run.

python tests/gpu/check_coverage.py --ranks 2 4 8 --work /tmp/coverage
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from observed import graph_work

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--names", nargs="+", default=["modules", "regions"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("train", nargs="*", help="options of train.py, after --")
    options = parser.parse_args()
    for names in options.names:
        for ranks in options.ranks:
            try:
                found = checked(ranks, names, options.work / f"{names}{ranks}", options.train, options.timeout)
            except Exception as error:
                found = {"ranks": ranks, "names": names, "failed": repr(error)[:1500]}
            print(json.dumps(found), flush=True)


def checked(ranks: int, names: str, work: Path, train: list[str], timeout: float) -> dict[str, Any]:
    """Record, ingest and compare."""
    recorded(ranks, names, work, train, timeout)
    store = work / "store.duckdb"
    annotq("ingest", str(work / "spool"), "--job", "gpu", "--db", str(store))
    found = ask(
        store,
        """SELECT sum(graph_events)::BIGINT AS graph_events, sum(matched)::BIGINT AS matched,
               sum(unannotated)::BIGINT AS unannotated, sum(orphan)::BIGINT AS orphan, count(*) AS traces,
               min(status) AS status, max(note) AS note
           FROM coverage""",
    )[0]
    annotated = work_events = 0
    unnamed: Counter[str] = Counter()
    for rank in range(ranks):
        says = {int(node) for node in json.loads((work / f"dump/rank{rank}.torch.json").read_text())}
        for trace in sorted((work / "spool").glob(f"*rank{rank}.*/*.trace.json*")):
            events = graph_work(trace)
            work_events += len(events)
            annotated += sum(node in says for node, _, _ in events)
            unnamed.update(name[:60] for node, _, name in events if node not in says)
    collectives = ask(
        store,
        "SELECT name, group_name, count(*) AS calls, count(DISTINCT rank) AS ranks FROM collectives GROUP BY name, group_name",
    )
    fields = ask(
        store,
        """SELECT attributes, count(*) AS kernels FROM kernels
           WHERE graph_id IS NOT NULL AND attributes LIKE '%Collective name%' GROUP BY attributes LIMIT 3""",
    )
    phases = ask(
        store,
        "SELECT phase, count(*) AS kernels FROM kernels WHERE graph_id IS NOT NULL AND region IS NOT NULL GROUP BY phase",
    )
    graphs = ask(store, "SELECT count(*) AS graphs FROM graphs")
    return {
        "ranks": ranks,
        "names": names,
        **found,
        "in_trace_files": work_events,
        "annotated_by_torch": annotated,
        "matched_of_annotated": round(found["matched"] / annotated, 6) if annotated else None,
        "named_share": round(found["matched"] / found["graph_events"], 6) if found["graph_events"] else None,
        "without_name": unnamed.most_common(4),
        "phases": phases,
        "graphs": graphs,
        "collectives": collectives,
        "fields": fields,
    }


def recorded(ranks: int, names: str, work: Path, train: list[str], timeout: float) -> None:
    """Run train.py under torchrun, into work/spool and work/dump."""
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(HERE / "train.py"), "--names", names, "--lifetimes", "--dump", str(work / "dump")]
    command += ["--reduce", "ddp" if names == "modules" else "flat", *train]
    environment = os.environ | {"ANNOTQ_SPOOL": str(work / "spool"), "ANNOTQ_JOB": "gpu", "OMP_NUM_THREADS": "1"}
    with (work / "train.log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"train.py ended with {done.returncode}: {(work / 'train.log').read_text()[-1500:]}")


def annotq(*arguments: str) -> str:
    """Run the command line; what it prints."""
    done = subprocess.run(["annotq", *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"annotq {arguments[0]} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def ask(store: Path, sql: str) -> list[dict[str, Any]]:
    """The rows of a query."""
    rows: list[dict[str, Any]] = json.loads(annotq("query", sql, "--db", str(store), "--format", "json"))
    return rows


if __name__ == "__main__":
    main()
