"""A small data-parallel training run, recorded by annotq: a CUDA graph on a GPU, eager work on a CPU.

annotq run -- torchrun --standalone --nproc-per-node 4 deploy/examples/train.py --slow-rank 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import profile, schedule

import annotq.agent

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--slow-rank", type=int, help="this rank runs every mlp four times")
options = parser.parse_args()
rank, local_rank, ranks = (int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
gpus = torch.cuda.device_count()
device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
width, batch = (1024, 512) if gpus else (128, 64)
repeats = 4 if rank == options.slow_rank else 1
torch.set_num_threads(1)
if ranks > 1:  # NCCL wants a GPU for each rank, unless told otherwise
    enough = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) or "NCCL_MULTI_RANK_GPU_ENABLE" in os.environ
    dist.init_process_group("nccl" if gpus and enough else "gloo")
annotq.agent.start()

torch.set_default_device(device)
layers = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(4)]
parameters = [parameter for layer in layers for parameter in layer.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
inputs, targets = torch.randn(2, batch, width)
# All gradients in one place: one all_reduce, and a graph that writes to the same memory again and again.
gradients = torch.zeros(sum(parameter.numel() for parameter in parameters))
for parameter, part in zip(parameters, gradients.split([p.numel() for p in parameters]), strict=True):
    parameter.grad = part.view_as(parameter)


def forward_and_backward():
    gradients.zero_()
    x = inputs
    for number, layer in enumerate(layers):
        with annotq.agent.region(f"layers.{number}.mlp"):
            y = torch.stack([layer(x) for _ in range(repeats)]).mean(0)
        x = nn.functional.layer_norm(x + y, (width,))
    with annotq.agent.region("backward"):
        nn.functional.mse_loss(x, targets).backward()


def captured(work):
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):  # once for what only happens the first time
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, enable_annotations=True):
        work()
    return graph.replay


run = captured(forward_and_backward) if gpus else forward_and_backward
windows = schedule(wait=1, warmup=1, active=8)
with profile(schedule=windows, on_trace_ready=annotq.agent.trace_handler()) as profiler:
    for _ in range(options.steps):
        run()
        if ranks > 1:
            with annotq.agent.region("all_reduce.grads"):
                dist.all_reduce(gradients)
        with annotq.agent.region("optimizer"):
            optimizer.step()
        profiler.step()
        annotq.agent.step()
if ranks > 1:
    dist.destroy_process_group()
