"""What recording costs: captures, replays, memory. One JSON line per measurement; each in a process of its own.

python tests/gpu/costs.py capture replay memory
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIANTS = ("plain", "torch", "annotq regions", "annotq modules")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["capture", "replay", "memory", "one-memory"])
    parser.add_argument("--variant", default="plain")
    options = parser.parse_args()
    for what in options.what:
        try:
            {"capture": capture, "replay": replay, "memory": memory, "one-memory": lambda: one_memory(options.variant)}[
                what
            ]()
        except Exception as error:
            say(what=what, failed=repr(error)[:500])
    sys.stdout.flush()
    os._exit(0)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


@contextmanager
def recording(variant: str, number: int) -> Iterator[dict[str, Any]]:
    """With `variant` switched on; gives the options of torch.cuda.graph and the scope that names regions."""
    import torch
    from workload import no_scope

    import annotq.agent
    from annotq.agent import node_ids

    mark_kernels = torch.cuda.graph_annotations.mark_kernels
    if variant == "plain":
        yield {"options": {}, "scope": no_scope}
    elif variant == "torch":  # torch's own recording, which on this driver needs the ids
        node_ids.install()
        yield {"options": {"enable_annotations": True}, "scope": mark_kernels}
        node_ids.remove()
    else:
        with tempfile.TemporaryDirectory() as spool:
            annotq.agent.start(
                job=f"{variant}-{number}", rank=0, world_size=1, spool=spool, modules=variant.endswith("modules")
            )
            scope = no_scope if variant.endswith("modules") else annotq.agent.region
            yield {"options": {} if scope is no_scope else {"enable_annotations": True}, "scope": scope}
            annotq.agent.stop()


def capture() -> None:
    """Wall time of `with torch.cuda.graph(...)`, instantiation and annotq's snapshot included, interleaved over the variants."""
    import torch
    from workload import prepare, warm_up

    times: dict[tuple[str, str], list[float]] = {}
    for number in range(7):
        for variant in random.Random(number).sample(VARIANTS, len(VARIANTS)):
            with recording(variant, number) as on:
                net, x, target = prepare(layers=24, scope=on["scope"])

                def step(net: Any = net, x: Any = x, target: Any = target) -> None:
                    net(x, target).backward()

                warm_up(step, 1)
                times.setdefault(("24 layers", variant), []).append(timed(step, on["options"]))
                del net, step
                big = many_kernels(on["scope"] if variant != "annotq modules" else None)
                if big is not None:
                    times.setdefault(("20,000 nodes, 2,000 regions", variant), []).append(timed(big, on["options"]))
            gc.collect()
            torch.cuda.empty_cache()
    for (what, variant), seconds in times.items():
        kept = statistics.median(seconds[1:])  # the first pays for what happens once
        every = [round(value, 4) for value in seconds]
        say(what="capture", graph=what, variant=variant, median_s=round(kept, 4), all_s=every)


def timed(step: Callable[[], object], options: dict[str, Any]) -> float:
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.disable()
    begun = time.perf_counter()
    with torch.cuda.graph(graph, **options):
        step()
    took = time.perf_counter() - begun
    gc.enable()
    return took


def many_kernels(scope: Any) -> Callable[[], None] | None:
    """2,000 regions of 10 kernels each."""
    import torch

    if scope is None:
        return None
    x = torch.zeros(64, device="cuda")

    def step() -> None:
        for region in range(2000):
            with scope(f"region {region}"):
                for _ in range(10):
                    x.add_(1)

    return step


def replay() -> None:
    """1,000 replays of the same step captured without and with annotq, in alternating blocks of 25: host time of the launch and
    time to the end of the GPU's work, their relative difference with a bootstrap interval over the pairs of blocks."""
    import torch
    from workload import captured, prepare, warm_up

    import annotq.agent

    graphs = {}
    spool = tempfile.mkdtemp()
    for name in ("plain", "annotq"):
        if name == "annotq":
            annotq.agent.start(job="replay", rank=0, world_size=1, spool=spool, modules=True)
        net, x, target = prepare(layers=24)

        def step(net: Any = net, x: Any = x, target: Any = target) -> None:
            net(x, target).backward()

        warm_up(step)
        graphs[name] = (captured(step), net, x, target)
    for name in ("plain", "annotq") * 3:
        for _ in range(30):
            graphs[name][0].replay()
    torch.cuda.synchronize()
    launch: dict[str, list[float]] = {"plain": [], "annotq": []}
    whole: dict[str, list[float]] = {"plain": [], "annotq": []}
    gc.disable()
    for number in range(40):
        for name in ("plain", "annotq") if number % 2 else ("annotq", "plain"):
            graph = graphs[name][0]
            begun = time.perf_counter()
            launched = 0.0
            for _ in range(25):
                before = time.perf_counter()
                graph.replay()
                launched += time.perf_counter() - before
            torch.cuda.synchronize()
            whole[name].append((time.perf_counter() - begun) / 25)
            launch[name].append(launched / 25)
    for what, times in (("launch", launch), ("to the end", whole)):
        ratios = [with_ / without - 1 for with_, without in zip(times["annotq"], times["plain"], strict=True)]
        low, high = bootstrap(ratios)
        say(
            what="replay",
            measured=what,
            replays_each=1000,
            plain_us=round(statistics.median(times["plain"]) * 1e6, 2),
            annotq_us=round(statistics.median(times["annotq"]) * 1e6, 2),
            difference=round(statistics.median(ratios), 5),
            interval_95=[round(low, 5), round(high, 5)],
        )


def bootstrap(values: list[float]) -> tuple[float, float]:
    generator = random.Random(7)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def memory() -> None:
    """Resident memory of a trainer that captures 24 layers and runs a profiler window, with and without annotq."""
    for variant in VARIANTS:
        done = subprocess.run(
            [sys.executable, __file__, "one-memory", "--variant", variant], capture_output=True, text=True, timeout=120
        )
        print(done.stdout.strip() or done.stderr[-500:], flush=True)


def one_memory(variant: str) -> None:
    import torch
    from workload import captured, prepare, warm_up

    with recording(variant, 0) as on:
        net, x, target = prepare(layers=24, scope=on["scope"])

        def step() -> None:
            net(x, target).backward()

        warm_up(step)
        before = resident()
        graph = captured(step, **on["options"])
        after = resident()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        say(
            what="memory",
            variant=variant,
            capture_adds_mib=round((after - before) / 2**20, 1),
            resident_mib=round(resident() / 2**20, 1),
            peak_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1),
            gpu_mib=round(torch.cuda.memory_allocated() / 2**20, 1),
        )


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
