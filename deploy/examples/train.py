"""A small data-parallel training run, recorded by annotq: on a GPU as a CUDA graph, else eager.

annotq run -- torchrun --standalone --nproc-per-node 4 deploy/examples/train.py --slow-rank 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import profile, schedule

import annotq.agent


class Layer(nn.Module):
    def __init__(self, name: str, width: int, repeat: int) -> None:
        super().__init__()
        self.name, self.repeat = name, repeat
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with annotq.agent.region(f"{self.name}.mlp"):
            y = torch.stack([self.mlp(x) for _ in range(self.repeat)]).mean(0)
        with annotq.agent.region(f"{self.name}.norm"):
            return self.norm(x + y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--slow-rank", type=int, help="this rank runs every mlp --slow-factor times")
    parser.add_argument("--slow-factor", type=int, default=4)
    options = parser.parse_args()

    rank, local_rank, ranks = (int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if ranks > 1:  # NCCL wants a GPU for each rank
        dist.init_process_group("nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) else "gloo")

    annotq.agent.start()

    width, batch = (1024, 512) if gpus else (128, 64)
    repeat = options.slow_factor if rank == options.slow_rank else 1
    model = nn.Sequential(*(Layer(f"layers.{number}", width, repeat) for number in range(4))).to(device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    inputs, targets = torch.randn(2, batch, width, device=device)
    # All gradients in one place: one all_reduce, and a graph that writes to the same memory again and again.
    sizes = [parameter.numel() for parameter in parameters]
    gradients = torch.zeros(sum(sizes), device=device)
    for parameter, part in zip(parameters, gradients.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter)

    def forward_and_backward() -> None:
        gradients.zero_()
        output = model(inputs)
        with annotq.agent.region("loss"):
            loss = nn.functional.mse_loss(output, targets)
        with annotq.agent.region("backward"):
            loss.backward()

    work = as_graph(forward_and_backward) if gpus else forward_and_backward
    windows = schedule(wait=1, warmup=1, active=8)
    with profile(schedule=windows, on_trace_ready=annotq.agent.trace_handler()) as profiler:
        for _ in range(options.steps):
            work()
            if ranks > 1:
                with annotq.agent.region("all_reduce.grads"):
                    dist.all_reduce(gradients)
            with annotq.agent.region("optimizer"):
                optimizer.step()
            profiler.step()
            annotq.agent.step()

    if ranks > 1:
        dist.destroy_process_group()


def as_graph(work):
    """A function that replays `work` as a CUDA graph whose kernels know their regions."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # once for what only happens the first time
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, enable_annotations=True):
        work()
    return graph.replay


if __name__ == "__main__":
    main()
