"""A transformer whose layers are split over tensor-parallel ranks: what parallel_train.py captures in one CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Group = Any


@dataclass(frozen=True)
class Groups:
    """tensor: ranks that share a layer (neighbours, on one host). data: ranks with the same part of it, on other data."""

    tensor: Group
    data: Group
    tensor_ranks: tuple[int, ...]
    data_ranks: tuple[int, ...]


def parallel_groups(rank: int, ranks: int, tensor: int) -> Groups:
    """ranks = data x tensor; rank = data index x tensor + tensor index. Collective: every rank makes all groups."""
    rows = [tuple(range(first, first + tensor)) for first in range(0, ranks, tensor)]
    columns = [tuple(range(first, ranks, tensor)) for first in range(tensor)]
    made = {row: dist.new_group(list(row), group_desc=kind) for kind, sets in _kinds(rows, columns) for row in sets}
    row, column = rows[rank // tensor], columns[rank % tensor]
    return Groups(made[row], made[column], row, column)


def _kinds(rows: list[tuple[int, ...]], columns: list[tuple[int, ...]]) -> list[tuple[str, list[tuple[int, ...]]]]:
    return [("tensor_parallel", rows), ("data_parallel", [column for column in columns if column not in rows])]


class _SumGradient(torch.autograd.Function):
    """Identity forward; the gradients of all ranks are added up on the way back. Before a layer that is split by columns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumOutput(torch.autograd.Function):
    """The outputs of all ranks are added up; identity backward. After a layer that is split by rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


class Attention(nn.Module):
    """extra_cycles: clock cycles that the GPU spends here beside the work, to make a rank slow."""

    def __init__(self, width: int, heads: int, groups: Groups) -> None:
        super().__init__()
        parts = len(groups.tensor_ranks)
        self.groups, self.heads = groups, heads // parts
        self.inner = width // parts
        self.qkv = nn.Linear(width, 3 * self.inner)
        self.out = nn.Linear(self.inner, width, bias=False)
        self.extra_cycles = 0

    def forward(self, x: Tensor) -> Tensor:
        x = _SumGradient.apply(x, self.groups.tensor)
        return _SumOutput.apply(self.local(x), self.groups.tensor)  # type: ignore[no-any-return]

    def local(self, x: Tensor) -> Tensor:
        """What one rank computes, without a collective."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.extra_cycles:
            torch.cuda._sleep(self.extra_cycles)
        return self.out(y.transpose(1, 2).reshape(batch, length, self.inner))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, width: int, groups: Groups) -> None:
        super().__init__()
        self.groups = groups
        inner = 4 * width // len(groups.tensor_ranks)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = _SumGradient.apply(x, self.groups.tensor)
        return _SumOutput.apply(self.down(nn.functional.gelu(self.up(x))), self.groups.tensor)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: Groups) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads, groups), Mlp(width, groups)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, groups: Groups) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads, groups) for _ in range(layers))
        self.loss = nn.MSELoss()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.loss(x, target)  # type: ignore[no-any-return]
