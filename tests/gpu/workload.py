"""A small transformer on a GPU, captured whole: what the scripts and tests in this folder measure and check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

NameScope = Callable[[str], AbstractContextManager[Any]]


def no_scope(_name: str) -> AbstractContextManager[Any]:
    """Names nothing."""
    return nullcontext()


class Attention(nn.Module):
    def __init__(self, width: int, repeat: int = 1) -> None:
        super().__init__()
        self.repeat = repeat
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = x
        for _ in range(self.repeat):
            q, k, v = self.qkv(y).view(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return y


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Layer(nn.Module):
    def __init__(self, number: int, width: int, scope: NameScope, repeat: int = 1) -> None:
        super().__init__()
        self.number, self.scope = number, scope
        self.norm = nn.LayerNorm(width)
        self.attn = Attention(width, repeat)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        with self.scope(f"layers.{self.number}.attn"):
            x = x + self.attn(self.norm(x))
        with self.scope(f"layers.{self.number}.mlp"):
            return x + self.mlp(x)


class Net(nn.Module):
    """scope names regions by hand; repeat: how often attention runs, to make a rank slow."""

    def __init__(self, layers: int = 4, width: int = 256, scope: NameScope = no_scope, repeat: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(number, width, scope, repeat) for number in range(layers))
        self.loss = nn.MSELoss()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        loss: Tensor = self.loss(x, target)
        return loss


def prepare(
    layers: int = 4, width: int = 256, length: int = 128, batch: int = 4, scope: NameScope = no_scope, repeat: int = 1
) -> tuple[Net, Tensor, Tensor]:
    """The model and its inputs on the current device, in bfloat16, with gradients in place."""
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)
    net = Net(layers, width, scope, repeat).cuda().bfloat16()
    x, target = torch.randn(2, batch, length, width, device="cuda", dtype=torch.bfloat16)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return net, x, target


def warm_up(step: Callable[[], object], times: int = 3) -> None:
    """Run a step on a side stream, so that what happens only once is not captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def captured(step: Callable[[], object], *, keep_graph: bool = False, **options: Any) -> torch.cuda.CUDAGraph:
    """The step as a graph; options are those of torch.cuda.graph."""
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with torch.cuda.graph(graph, **options):
        step()
    return graph


@contextmanager
def profiled(path: str) -> Iterator[None]:
    """Write a Kineto trace of the block, GPU work included."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profiler:
        yield
        torch.cuda.synchronize()
    profiler.export_chrome_trace(path)
