"""One rank of a data-parallel run whose step is one CUDA graph, NCCL all_reduce included. Under torchrun, or alone.

    torchrun --nproc-per-node 4 tests/gpu/train.py --names modules --lifetimes --dump /tmp/dump

Several ranks may share a GPU (NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1). It profiles two windows. --lifetimes: the graph
is instantiated again between them, and a second graph is destroyed after its last replay, before its window is exported.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from workload import captured, no_scope, prepare, warm_up

import annotq.agent

WAIT, WARM_UP = 2, 1


def main() -> None:
    options = parsed()
    rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    if "RANK" in os.environ:
        dist.init_process_group("nccl")
    slow = rank == options.slow_rank
    annotq.agent.start(modules=options.names == "modules")
    scopes = {
        "modules": no_scope,
        "regions": annotq.agent.region,
        "torch": torch.cuda.graph_annotations.mark_kernels,
    }
    scope = scopes[options.names]
    repeat = options.slow_factor if slow and options.slow == "attention" else 1
    net, x, target = prepare(options.layers, scope=scope, repeat=repeat)
    optimizer = torch.optim.AdamW(net.parameters(), capturable=True, foreach=True)
    model = distributed(net) if options.reduce == "ddp" and dist.is_initialized() else net

    def step() -> None:
        model(x, target).backward()
        if dist.is_initialized() and options.reduce == "flat":
            for layer in net.layers:
                reduce(list(layer.parameters()), scope)
        with scope("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    warm_up(step, 11 if options.reduce == "ddp" else 3)
    annotated: dict[str, Any] = {} if options.names == "modules" else {"enable_annotations": True}
    graph = captured(step, keep_graph=True, **annotated)
    graph.instantiate()
    torch_says = remember({})
    replays: list[Any] = [graph]
    active = options.active
    windows = torch.profiler.schedule(wait=WAIT, warmup=WARM_UP, active=active, repeat=2)
    with torch.profiler.profile(schedule=windows, on_trace_ready=annotq.agent.trace_handler()) as profiler:
        for number in range(options.steps):
            if options.lifetimes and number == WAIT + WARM_UP + active:  # the second window begins
                graph.instantiate()  # other ids from here on
                remember(torch_says)
                replays.append(captured(lambda: net(x, target), **annotated))
                remember(torch_says)
            late = {"launch": slow, "rotating": number % world() == rank}
            if late.get(options.slow, False):
                time.sleep(options.delay_ms / 1000)
            for each in replays:
                each.replay()
            torch.cuda.synchronize()
            if number == 2 * (WAIT + WARM_UP + active) - 1:
                del replays[1:]  # destroyed before profiler.step() exports the window
            profiler.step()
            annotq.agent.step(number)
            if options.pace_ms:
                time.sleep(options.pace_ms / 1000)
    if options.dump:
        path = Path(options.dump) / f"rank{rank}.torch.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({str(node): entries for node, entries in torch_says.items()}, default=str))
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
        torch.cuda.synchronize()
    annotq.agent.stop()
    os._exit(0)  # NCCL ranks that share a GPU may hang in their own teardown


def distributed(net: nn.Module) -> nn.Module:
    """torch's DDP, as its documentation wants it before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    torch.cuda.current_stream().wait_stream(stream)
    return model


def reduce(parameters: list[nn.Parameter], scope: Callable[[str], Any]) -> None:
    """One all_reduce for a layer's gradients."""
    with scope("reduce"):
        flat = torch.cat([parameter.grad.view(-1) for parameter in parameters])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))


def remember(found: dict[int, Any]) -> dict[int, Any]:
    """Add what torch itself has annotated so far, by packed node id."""
    for node, entries in torch.cuda.graph_annotations.get_kernel_annotations().items():
        found[node] = list(entries)
    return found


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", choices=["modules", "regions", "torch"], default="modules")
    parser.add_argument("--reduce", choices=["ddp", "flat"], default="ddp", help="DDP, or an all_reduce for each layer")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--active", type=int, default=10)
    parser.add_argument("--lifetimes", action="store_true")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow", choices=["attention", "launch", "rotating", "none"], default="none")
    parser.add_argument("--slow-factor", type=int, default=4)
    parser.add_argument("--delay-ms", type=float, default=3.0)
    parser.add_argument(
        "--pace-ms", type=float, default=0.0, help="pause after every step, to have time to ask meanwhile"
    )
    parser.add_argument("--dump", help="folder for torch's own annotations")
    return parser.parse_args()


if __name__ == "__main__":
    main()
