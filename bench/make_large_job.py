"""A store of one large job: 1,024 ranks, 20 steps of 2,700 kernels, 55 million rows; rank 777 is slow in every MLP.

    python bench/make_large_job.py OUT

The job comes from the generator of the tests: 50 layers of attention and MLP, forward and backward, 12 kernels each, an
all_reduce of 8 ranks after each, an all_reduce of gradients at the end, 128 hosts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from annotq.collector.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_causes import Cause, slow_layers
from simulated_job import Plan, simulate
from simulated_layout import Layout
from simulated_program import Workload
from simulated_store import simulated_store

JOB = "large"
SLOW_RANK = 777


def plan(dp: int = 128, steps: int = 20) -> Plan:
    layout = Layout(dp=dp, tp=8)
    workload = Workload(layers=50, kernels=12, optimizer_kernels=99)
    slow = Cause("slow_region", 0.3, (SLOW_RANK % layout.size,), slow_layers(layout, 0, workload.layers))
    return Plan(seed=1, layout=layout, steps=steps, workload=workload, causes=(slow,))


def make_large_job(out: Path) -> None:
    """Write the store, or bring the views of an earlier one up to date; an interrupted run leaves nothing at `out`."""
    if out.exists():
        Store(out).close()
        return
    partial = out.with_name(out.name + ".partial")
    partial.unlink(missing_ok=True)
    simulated_store(partial, **{JOB: simulate(plan())})
    partial.rename(out)


if __name__ == "__main__":
    make_large_job(Path(sys.argv[1]))
