"""Runs train.py with N ranks and checks the store against torch's own dictionary and the trace files, one JSON line per run.

python tests/gpu/check_coverage.py --ranks 2 4 8 --work /tmp/coverage
python tests/gpu/check_coverage.py --ranks 2 4 8 --work /tmp/coverage --recorded  # again, from what lies there; needs no GPU
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from observed import graph_work

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--names", nargs="+", default=["modules", "regions"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--recorded", action="store_true", help="compare what an earlier run left under --work")
    parser.add_argument("train", nargs="*", help="options of train.py, after --")
    options = parser.parse_args()
    for names in options.names:
        for ranks in options.ranks:
            work = options.work / f"{names}{ranks}"
            try:
                if not options.recorded:
                    recorded(ranks, names, work, options.train, options.timeout)
                found = checked(ranks, names, work)
            except Exception as error:
                found = {"ranks": ranks, "names": names, "failed": repr(error)[:1500]}
            print(json.dumps(found), flush=True)


def checked(ranks: int, names: str, work: Path) -> dict[str, Any]:
    """Ingest what was recorded, and compare."""
    store = work / "store.duckdb"
    store.unlink(missing_ok=True)
    annotq("ingest", str(work / "spool"), "--job", "gpu", "--db", str(store))
    found = ask(
        store,
        """SELECT sum(graph_events)::BIGINT AS graph_events, sum(matched)::BIGINT AS matched,
               sum(unannotated)::BIGINT AS unannotated, sum(orphan)::BIGINT AS orphan, count(*) AS traces,
               min(status) AS status, max(note) AS note
           FROM coverage""",
    )[0]
    with_region = nodes_with_region(store)
    work_events = annotated = annotated_matched = 0
    unnamed: Counter[str] = Counter()
    beyond_torch: Counter[str] = Counter()
    for rank in range(ranks):
        says = {int(node) for node in json.loads((work / f"dump/rank{rank}.torch.json").read_text())}
        for trace in sorted((work / "spool").glob(f"*rank{rank}.*/*.trace.json*")):
            for node, _, name in graph_work(trace):
                matched = (rank, node) in with_region
                work_events += 1
                annotated += node in says
                annotated_matched += node in says and matched
                if not matched:
                    unnamed[short(name)] += 1
                elif node not in says:
                    beyond_torch[short(name)] += 1
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
        "of_those_matched": annotated_matched,
        "matched_share_of_annotated": round(annotated_matched / annotated, 6) if annotated else None,
        "named_share": round(found["matched"] / found["graph_events"], 6) if found["graph_events"] else None,
        "without_name": unnamed.most_common(4),
        "named_beyond_torch": beyond_torch.most_common(4),
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


def nodes_with_region(store: Path) -> set[tuple[int, int]]:
    """(rank, packed node id) of everything in a graph that the store gives a region."""
    found = ask(
        store,
        "SELECT DISTINCT rank, graph_id, node_index FROM kernels WHERE graph_id IS NOT NULL AND region IS NOT NULL",
    )
    return {(row["rank"], row["graph_id"] << 32 | row["node_index"]) for row in found}


def short(name: str) -> str:
    """What tells torch's elementwise kernels apart: the functor in their template arguments."""
    found = re.search(r"\w*[Ff]unctor\w*(<[\w:]+>)?", name)
    return found[0] if found else name[:60]


def annotq(*arguments: str) -> str:
    """Run the command line; what it prints."""
    done = subprocess.run(["annotq", *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"annotq {arguments[0]} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def ask(store: Path, sql: str) -> list[dict[str, Any]]:
    """The rows of a query."""
    rows: list[dict[str, Any]] = json.loads(
        annotq("query", sql, "--db", str(store), "--limit", "1000000", "--format", "json")
    )
    return rows


if __name__ == "__main__":
    main()
