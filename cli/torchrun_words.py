"""What a torchrun command line says about its job: on how many nodes it runs, and what it is called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def spans_nodes(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether it is a torchrun on more than one node, each of which runs the command."""
    if Path(command[0]).name != "torchrun" and not any(word in _MODULES for word in command):
        return False
    # A number, or the least and the most, such as 1:4.
    most = (_option(command, environ, "nnodes") or "1").rpartition(":")[2]
    return most.isascii() and most.isdigit() and int(most[:9]) > 1


def run_id(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The id that --rdzv-id gives to all ranks of all nodes; None when there is none."""
    given = _option(command, environ, "rdzv_id")
    return None if given is None or given.lower() in ("", "none") else given


def _option(command: Sequence[str], environ: Mapping[str, str], name: str) -> str | None:
    """Its value: of the command's own words, which end with the script, else of torchrun's variable."""
    for place, word in enumerate(command):
        if word.endswith(".py"):
            break
        match = re.fullmatch(r"--?([a-z_-]+)(?:=(.*))?", word, re.DOTALL)
        if match is not None and match[1].replace("-", "_") == name:
            return match[2] if match[2] is not None else next(iter(command[place + 1 :]), None)
    return environ.get(f"PET_{name.upper()}")
