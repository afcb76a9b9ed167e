"""Every kind of collective in a capture, on two NCCL ranks or more: what the annotations of its kernels say, as JSON lines.

torchrun --nproc-per-node 2 tests/gpu/collectives.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from workload import captured, warm_up

import annotq.agent


def main() -> None:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    dist.init_process_group("nccl")
    ranks = dist.get_world_size()
    spool = Path(tempfile.mkdtemp())
    annotq.agent.start(job="collectives", spool=spool)
    found: dict[str, Any] = {}
    for name, call in calls(rank, ranks).items():
        try:
            warm_up(call, 2)
            graph = captured(partial(marked, name, call), keep_graph=True)
            graph.instantiate()
            found[name] = summary(max(spool.glob("*/*.snapshot.json")))
        except Exception as error:
            found[name] = repr(error)[:200]
    lines = [json.dumps({"rank": rank, "call": name, "kernels": kernels}) for name, kernels in found.items()]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()
    dist.barrier()
    torch.cuda.synchronize()
    annotq.agent.stop()
    os._exit(0)


def calls(rank: int, ranks: int) -> dict[str, Callable[[], object]]:
    """What to capture, by name."""
    x = torch.ones(1024, device="cuda")
    wide = torch.ones(1024 * ranks, device="cuda")
    same = torch.empty_like(x)
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks
    uneven = [256, 768] if ranks == 2 else [1024 // ranks] * ranks
    sizes = [uneven[rank]] * ranks
    received = torch.empty(sum(sizes), device="cuda")

    def in_a_ring() -> None:
        operations = [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, same, previous)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def in_one() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(same)

    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce async": lambda: dist.all_reduce(x, async_op=True).wait(),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(wide, x),
        "all_gather": lambda: dist.all_gather(list(wide.chunk(ranks)), x),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x, wide),
        "all_to_all_single": lambda: dist.all_to_all_single(same, x),
        "all_to_all_single with sizes": lambda: dist.all_to_all_single(received, x, sizes, uneven),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "batch_isend_irecv": in_a_ring,
        "coalesced": in_one,
        "functional all_reduce": lambda: functional.all_reduce(x, "sum", dist.group.WORLD).add_(0),
        "functional all_gather": lambda: functional.all_gather_tensor(x, 0, dist.group.WORLD).add_(0),
    }


def marked(name: str, call: Callable[[], object]) -> None:
    with annotq.agent.region(name):
        call()


def summary(snapshot: Path) -> list[dict[str, Any]]:
    """Of each kernel of NCCL: its name and the collective's fields."""
    content = json.loads(snapshot.read_text())
    nodes, annotations = content["nodes"], content["annotations"]
    fields = dict(
        zip(annotations["node"], (annotations["distinct"][code] for code in annotations["code"]), strict=True)
    )
    names = zip(
        nodes["index"], (nodes["names"][code] if code is not None else "" for code in nodes["name"]), strict=True
    )
    shown = (
        "name",
        "Collective name",
        "dtype",
        "In msg nelems",
        "Out msg nelems",
        "In split size",
        "Dst Rank",
        "Src Rank",
    )
    return [
        {"kernel": name[:40], **{key: fields.get(index, {}).get(key) for key in shown if key in fields.get(index, {})}}
        for index, name in names
        if "nccl" in name.lower()
    ]


if __name__ == "__main__":
    main()
