"""What `annotq run` learns from the command line of a torchrun that spans several nodes."""

from __future__ import annotations

import shlex

import pytest

from annotq.cli.commands.run import _job_name
from annotq.cli.torchrun_words import run_id, spans_nodes


@pytest.mark.parametrize(
    ("line", "spans", "name"),
    [
        ("torchrun --nproc-per-node 8 train.py", False, None),
        ("torchrun --nnodes=2 train.py", True, None),
        ("/bin/torchrun --nnodes 2 --rdzv-id=llama train.py", True, "llama"),
        ("torchrun --nnodes=1:4 --rdzv_id llama train.py", True, "llama"),
        ("torchrun --nnodes=1:1 --rdzv-id none train.py", False, None),
        ("python -m torch.distributed.run --nnodes=2 train.py", True, None),
        # What follows the script is the script's own.
        ("torchrun train.py --nnodes=2 --rdzv-id=mine", False, None),
        ("python train.py --nnodes=2", False, None),
    ],
)
def test_words(line: str, spans: bool, name: str | None) -> None:
    words = shlex.split(line)
    assert (spans_nodes(words, {}), run_id(words, {})) == (spans, name)


def test_torchruns_own_variables_count_too() -> None:
    words = ["torchrun", "train.py"]
    assert spans_nodes(words, {"PET_NNODES": "2"})
    assert run_id(words, {"PET_RDZV_ID": "llama"}) == "llama"


def test_nodes_without_a_common_name_are_told_how_to_get_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert _job_name(["torchrun", "--nnodes=2", "--rdzv-id=llama", "train.py"]) == "llama"
    assert capfd.readouterr().err == ""
    assert _job_name(["torchrun", "--nnodes=2", "train.py"]).startswith("train-")
    assert "--job NAME" in (said := capfd.readouterr().err) and "--rdzv-id NAME" in said
