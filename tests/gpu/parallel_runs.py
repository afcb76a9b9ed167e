"""Runs every case of parallel_train.py under a collector, and says what was found, one JSON line per fact.

    python tests/gpu/parallel_runs.py --ranks 8 --work /tmp/parallel            # cases and overhead
    python tests/gpu/parallel_runs.py --ranks 8 --work /tmp/parallel --only cases

The cases run as users run them: `annotq run -- torchrun ...` against a collector of its own, whose store is asked afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CASES = {
    "even": ["--case", "none", "--bandwidth"],
    "attention30": ["--case", "attention", "--percent", "30"],
    "attention10": ["--case", "attention", "--percent", "10"],
    "launch2ms": ["--case", "launch", "--delay-ms", "2"],
    "rotating": ["--case", "rotating", "--percent", "100"],
}


def main() -> None:
    options = parsed()
    options.work.mkdir(parents=True, exist_ok=True)
    if "cases" in options.only:
        with collector(options.work) as (endpoint, metrics):
            for name in options.cases:
                try:
                    say(ranks=options.ranks, case=name, **one_case(options, name, endpoint, metrics))
                except Exception as error:
                    say(ranks=options.ranks, case=name, failed=repr(error)[:1500])
    if "overhead" in options.only:
        say(ranks=options.ranks, **overhead(options))


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


@contextmanager
def collector(work: Path) -> Iterator[tuple[str, str]]:
    """A collector of its own on loopback: (HOST:PORT, address of its metrics)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{probe.getsockname()[1]}"
    port_file = work / "port"
    command = ["annotq", "serve", "--db", str(work / "store.duckdb"), "--listen", "127.0.0.1:0"]
    with (work / "collector.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--metrics", metrics, "--port-file", str(port_file)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        for _ in range(200):
            if port_file.exists():
                break
            time.sleep(0.1)
        yield f"127.0.0.1:{port_file.read_text().strip().rpartition(':')[2]}", metrics
    finally:
        process.terminate()
        process.wait(60)


def one_case(options: argparse.Namespace, name: str, endpoint: str, metrics: str) -> dict[str, Any]:
    """Run it, then ask the collector what it makes of it."""
    before = counted(metrics)
    train(options, name, CASES[name], {"ANNOTQ_ENDPOINT": endpoint}, recorded=True)
    shipped = {key: count - before[key] for key, count in counted(metrics).items()}
    report = json.loads(annotq("stragglers", "--endpoint", endpoint, "--job", name, "--format", "json"))
    (options.work / f"{name}.stragglers.txt").write_text(annotq("stragglers", "--endpoint", endpoint, "--job", name))
    facts = [json.loads(file.read_text()) for file in sorted((options.work / name / "facts").glob("*.json"))]

    def ask(sql: str) -> list[dict[str, Any]]:
        text = annotq("query", sql, "--endpoint", endpoint, "--limit", "100000", "--format", "json")
        rows: list[dict[str, Any]] = json.loads(text)
        return rows

    events = ask(f"SELECT sum(gpu_events)::BIGINT AS n FROM coverage WHERE job = '{name}'")[0]["n"]
    steps = ask(f"SELECT count(*) AS n FROM steps WHERE job = '{name}' AND step IS NOT NULL")[0]["n"]
    return {
        "verdict": report["verdict"],
        "findings": [short(finding) for finding in report["findings"]],
        "steps": report["steps"],
        "coverage": report["coverage"],
        "attention_ns": [round(fact["attention_ns"]) for fact in facts],
        "extra_ns": [fact["extra_ns"] for fact in facts],
        "step_ns": [round(statistics.median(fact["step_ns"])) for fact in facts if fact["step_ns"]],
        "alone": facts[0].get("alone"),
        "collectives": ask(
            f"""SELECT name, group_name, region, count(DISTINCT collective_id) AS calls, median(wait_ns) AS wait_ns,
                       median(transfer_ns) AS transfer_ns, min(duration_ns) AS shortest_ns, count(not_judged) AS not_judged
                FROM collectives WHERE job = '{name}' GROUP BY name, group_name, region ORDER BY name, group_name, region"""
        ),
        "ends_apart_ns": ask(
            f"""SELECT count(*) AS collectives, median(apart) AS median_ns,
                       percentile_cont(0.99) WITHIN GROUP (ORDER BY apart) AS p99_ns
                FROM (SELECT max(end_ns) - min(end_ns) AS apart FROM collectives WHERE job = '{name}'
                      AND not_judged IS NULL GROUP BY collective_id)"""
        )[0],
        "shipped": shipped,
        "gpu_events": events,
        "bytes_per_step_and_rank": round(shipped["annotq_bytes_total"] / steps) if steps else None,
    }


def short(finding: dict[str, Any]) -> dict[str, Any]:
    keys = ("cause", "rank", "effect", "effect_low", "effect_high", "cost_ns_per_step", "since_step", "explanation")
    return {key: finding[key] for key in keys} | {
        "regions": [f"{row['region']} {row['phase']} {row['ratio']:.3f}" for row in finding["regions"]]
    }


def train(
    options: argparse.Namespace, name: str, arguments: list[str], environment: dict[str, str], *, recorded: bool
) -> list[dict[str, Any]]:
    """One run under torchrun, under `annotq run` when it is recorded; what each rank wrote of itself."""
    work = options.work / name
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    command += [str(HERE / "parallel_train.py"), "--tensor", str(options.tensor), "--layers", str(options.layers)]
    command += ["--active", str(options.active), "--facts", str(work / "facts"), *arguments]
    if recorded:
        command = ["annotq", "run", "--job", name, "--", *command]
    else:
        command.append("--no-record")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ANNOTQ_SPOOL": str(work / "spool"), **environment}
    with (work / "log.txt").open("w") as log:
        done = subprocess.run(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=options.timeout, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {(work / 'log.txt').read_text()[-1200:]}")
    return [json.loads(file.read_text()) for file in sorted((work / "facts").glob("*.json"))]


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Duration of a step with annotq over without, of runs that take turns; the interval is over pairs of runs."""
    medians: dict[bool, list[float]] = {True: [], False: []}
    for number in range(options.pairs):
        for recorded in (False, True) if number % 2 else (True, False):
            name = f"overhead{options.ranks}-{number}{'annotq' if recorded else 'plain'}"
            facts = train(options, name, ["--plain-steps", str(options.plain_steps)], {}, recorded=recorded)
            medians[recorded].append(statistics.median(step for fact in facts for step in fact["step_ns"]))
            say(run=name, step_ns=medians[recorded][-1])
    ratios = [with_it / without for with_it, without in zip(medians[True], medians[False], strict=True)]
    generator = random.Random(1)
    drawn = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {
        "overhead": statistics.median(ratios) - 1,
        "low": drawn[50] - 1,
        "high": drawn[1949] - 1,
        "pairs": len(ratios),
        "step_ns_plain": medians[False],
        "step_ns_annotq": medians[True],
    }


def counted(metrics: str) -> dict[str, float]:
    """Bytes and rows that the collector has committed so far."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    wanted = ("annotq_bytes_total", "annotq_rows_total", "annotq_batches_total")
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.split(" ")[0] in wanted}


def annotq(*arguments: str) -> str:
    done = subprocess.run(["annotq", *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"annotq {arguments[0]} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--active", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs for the overhead")
    parser.add_argument("--plain-steps", type=int, default=400, help="steps of each of them that are timed")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=90)
    parser.add_argument("--only", nargs="+", choices=["cases", "overhead"], default=["cases", "overhead"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    return parser.parse_args()


if __name__ == "__main__":
    main()
