"""One rank of a data- and tensor-parallel run whose step is one CUDA graph; one rank per GPU where there are enough.

    annotq run --modules -- torchrun --standalone --nproc-per-node 8 tests/gpu/parallel_train.py --case attention --percent 10

--case: what is wrong with the run, and with which rank (--rank); its truth goes to --facts, a file for each rank:
none; attention (its attention takes --percent longer, in every layer, forward); launch (its host sleeps --delay-ms before each
replay); rotating (each rank in turn, by step, replays a graph whose attention takes --percent longer).
--bandwidth: also times all_reduces of the sizes of a step alone, before anything is recorded, as nccl-tests does.
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
from parallel_net import Attention, Groups, Net, parallel_groups
from workload import captured, warm_up

WAIT, WARM_UP, WINDOWS = 4, 2, 2
BATCH, LENGTH, WIDTH, HEADS = 4, 512, 1024, 16


def main() -> None:
    options = parsed()
    rank, local_rank, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    torch.backends.cuda.enable_cudnn_sdp(False)
    dist.init_process_group("nccl")
    groups = parallel_groups(rank, ranks, options.tensor)
    in_turn = dist.new_group(backend="gloo")
    facts: dict[str, Any] = {"rank": rank, "groups": [groups.tensor_ranks, groups.data_ranks]}
    torch.manual_seed(rank)
    net = Net(options.layers, WIDTH, HEADS, groups).cuda().bfloat16()
    x, target = torch.randn(2, BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if options.bandwidth:
        facts["alone"] = [timed_all_reduce(group, size, ranks) for group, size, ranks in messages(net, x, groups)]
    for number in range(ranks):  # one after the other: they may share a GPU
        if number == rank:
            facts |= measured_attention(net.layers[0].attn, x)  # type: ignore[arg-type]
        dist.barrier(in_turn)
    replays = graphs(options, net, x, target, groups, rank, facts)
    facts["step_ns"] = trained(options, replays, rank, ranks)
    if options.facts:
        path = Path(options.facts) / f"rank{rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts))
    torch.cuda.synchronize()
    dist.barrier(in_turn)
    if options.record:
        import annotq.agent

        annotq.agent.stop()
    os._exit(0)  # NCCL ranks that share a GPU may hang in their own teardown


def graphs(
    options: argparse.Namespace, net: Net, x: torch.Tensor, target: torch.Tensor, groups: Groups, rank: int, facts: Any
) -> list[torch.cuda.CUDAGraph]:
    """The graph of a usual step and, for rotating, of a slow one."""
    import annotq.agent

    if options.record:
        annotq.agent.start(modules=True)
    optimizer = torch.optim.AdamW(net.parameters(), capturable=True, foreach=True)

    def step() -> None:
        net(x, target).backward()
        for layer in net.layers:
            with annotq.agent.region("gradients"):
                reduce(list(layer.parameters()), groups)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    cycles = round(facts["cycles_per_ns"] * facts["attention_ns"] * options.percent / 100)
    slow = options.case == "attention" and rank == options.rank
    extra = [cycles if slow else 0] + ([cycles] if options.case == "rotating" else [])
    made = []
    for extra_cycles in extra:
        for layer in net.layers:
            layer.attn.extra_cycles = extra_cycles
        warm_up(step, 3)
        made.append(captured(step))
    facts["extra_ns"] = [round(count / facts["cycles_per_ns"]) for count in extra]
    return made


def trained(options: argparse.Namespace, replays: list[torch.cuda.CUDAGraph], rank: int, ranks: int) -> list[int]:
    """Replay a graph per step; the durations of the steps outside of profiler windows, in ns, by the host's clock."""
    import annotq.agent

    windows = torch.profiler.schedule(wait=WAIT, warmup=WARM_UP, active=options.active, repeat=WINDOWS)
    profiled = (WAIT + WARM_UP + options.active) * WINDOWS
    found = []
    handler: Callable[[Any], None] = annotq.agent.trace_handler() if options.record else lambda _profiler: None
    with torch.profiler.profile(schedule=windows, on_trace_ready=handler) as profiler:
        for number in range(profiled):
            replay(options, replays, number, rank, ranks)
            profiler.step()
            if options.record:
                annotq.agent.step(number)
    for number in range(profiled, profiled + options.plain_steps):
        begun = time.perf_counter_ns()
        replay(options, replays, number, rank, ranks)
        if options.record:
            annotq.agent.step(number)
        found.append(time.perf_counter_ns() - begun)
    return found


def replay(
    options: argparse.Namespace, replays: list[torch.cuda.CUDAGraph], number: int, rank: int, ranks: int
) -> None:
    if options.case == "launch" and rank == options.rank:
        time.sleep(options.delay_ms / 1000)
    turn = options.case == "rotating" and number % ranks == rank
    replays[1 if turn else 0].replay()
    torch.cuda.synchronize()


def reduce(parameters: list[torch.nn.Parameter], groups: Groups) -> None:
    """One all_reduce for a layer's gradients, over the ranks with other data."""
    flat = torch.cat([parameter.grad.view(-1) for parameter in parameters if parameter.grad is not None])
    dist.all_reduce(flat, group=groups.data)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        assert parameter.grad is not None
        parameter.grad.copy_(part.view_as(parameter))


def messages(net: Net, x: torch.Tensor, groups: Groups) -> list[tuple[Any, int, tuple[int, ...]]]:
    """(group, elements, ranks) of the two all_reduces of a step: activations, and a layer's gradients."""
    gradients = sum(parameter.numel() for parameter in net.layers[0].parameters())
    return [
        (group, size, ranks)
        for group, size, ranks in (
            (groups.tensor, x.numel(), groups.tensor_ranks),
            (groups.data, gradients, groups.data_ranks),
        )
        if len(ranks) > 1
    ]


def timed_all_reduce(group: Any, elements: int, ranks: tuple[int, ...], times: int = 20) -> dict[str, Any]:
    """Time of one all_reduce among many in a row, and its bus bandwidth as nccl-tests counts it: 2 (n - 1) / n x size / time."""
    buffer = torch.zeros(elements, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(times):
            dist.all_reduce(buffer, group=group)

    warm_up(work, 1)
    graph = captured(work)
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier(group)
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        found.append(gpu_ns(graph.replay) / times)
    nanoseconds = sorted(found)[len(found) // 2]
    size = buffer.numel() * buffer.element_size()
    bandwidth = 2 * (len(ranks) - 1) / len(ranks) * size / nanoseconds
    return {"ranks": ranks, "bytes": size, "ns": round(nanoseconds), "bus_gb_per_s": round(bandwidth, 3)}


def measured_attention(attention: Attention, x: torch.Tensor) -> dict[str, float]:
    """How long one rank's attention takes forward, in ns, and how many cycles the GPU's spin kernel counts in one."""

    def forward() -> None:
        with torch.no_grad():
            attention.local(x)

    warm_up(forward)
    graph = captured(forward)
    attention_ns = sorted(gpu_ns(graph.replay) for _ in range(9))[4]
    cycles = 10_000_000
    spin_ns = sorted(gpu_ns(lambda: torch.cuda._sleep(cycles)) for _ in range(5))[2]
    return {"attention_ns": attention_ns, "cycles_per_ns": cycles / spin_ns}


def gpu_ns(work: Callable[[], object]) -> float:
    """Time on the GPU, by its own events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e6


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=["none", "attention", "launch", "rotating"], default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--percent", type=float, default=30)
    parser.add_argument("--delay-ms", type=float, default=2)
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share a layer")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--active", type=int, default=12)
    parser.add_argument(
        "--plain-steps", type=int, default=100, help="steps after the profiler's windows, timed by the host"
    )
    parser.add_argument("--bandwidth", action="store_true")
    parser.add_argument("--facts", help="folder for what the run knows of itself")
    parser.add_argument("--no-record", dest="record", action="store_false", help="without annotq")
    return parser.parse_args()


if __name__ == "__main__":
    main()
