"""A graphed layer in an eager model, with module names (argument 1) or without (0): whether torch warns on stderr is compared."""

from __future__ import annotations

import os
import sys
import tempfile

import torch
from workload import prepare

import annotq.agent

if __name__ == "__main__":
    if sys.argv[1] == "1":
        annotq.agent.start(job="warning", rank=0, world_size=1, spool=tempfile.mkdtemp(), modules=True)
    net, x, target = prepare(layers=2)
    layer = torch.cuda.make_graphed_callables(net.layers[0], (x.clone().requires_grad_(),))
    for _ in range(2):
        net.loss(net.layers[1](layer(x.requires_grad_())), target).backward()
    torch.cuda.synchronize()
    annotq.agent.stop()
    sys.stderr.flush()
    os._exit(0)
