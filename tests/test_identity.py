"""Who a process is: arguments, then ANNOTQ_*, then torchrun, then SLURM, then a job of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from annotq.agent import process_facts
from annotq.agent.identity import Facts, Given, Identity, identify

# 2026-12-01 07:36:40 and 07:36:41 UTC
FACTS = Facts("train", pid=4712, started=1796110601.0, launcher_pid=4711, launcher_started=1796110600.5)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "llama",
}
SLURM = {"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"}
ONE_NODE = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8"}


def identity(environ: dict[str, str], **given: object) -> Identity:
    return identify(Given(**given), environ, FACTS)  # type: ignore[arg-type]


def places(found: Identity) -> tuple[int, int | None, int]:
    return found.rank, found.world_size, found.local_rank


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0)),
        ({"RANK": "0"}, (0, None, 0)),
        (TORCHRUN, (5, 8, 1)),
        (SLURM, (9, 16, 1)),
        # torchrun started by srun: all of it is torchrun's.
        ({**SLURM, **TORCHRUN}, (5, 8, 1)),
        ({**SLURM, "RANK": "3"}, (3, None, 1)),
        ({"RANK": "two", "WORLD_SIZE": "4"}, (0, 4, 0)),
    ],
)
def test_ranks(environ: dict[str, str], expected: tuple[int, int | None, int]) -> None:
    assert places(identity(environ)) == expected


def test_arguments_win() -> None:
    found = identity({**TORCHRUN, "ANNOTQ_JOB": "env"}, job="mine", attempt=7, rank=6, world_size=16, local_rank=0)
    assert (found.job, found.attempt, places(found)) == ("mine", 7, (6, 16, 0))
    assert set(found.origins.values()) == {"argument"}


def test_a_rank_of_an_initialized_process_group_is_the_last_resort() -> None:
    facts = Facts("train", 2, 0.0, 1, 0.0, distributed=(3, 4))
    assert places(identify(Given(), {}, facts)) == (3, 4, 0)
    assert places(identify(Given(), {"RANK": "1", "WORLD_SIZE": "2"}, facts)) == (1, 2, 0)


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (TORCHRUN, "llama"),
        ({**TORCHRUN, "ANNOTQ_JOB": "mine"}, "mine"),
        (SLURM, "slurm-77"),
        # Two steps of an allocation are two jobs; the batch script and a shell have numbers that mean no step.
        ({**SLURM, "SLURM_STEP_ID": "1"}, "slurm-77.1"),
        ({**SLURM, "SLURM_STEP_ID": "4294967291"}, "slurm-77"),
        ({**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "SLURM_STEP_ID": "1"}, "slurm-77.1"),
        # And so are two torchruns in its script.
        ({**SLURM, **ONE_NODE}, "slurm-77-4711"),
        ({"ANNOTQ_JOB": "a\udcff"}, "a\\xff"),
        ({**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "slurm-77"),
        # One launcher has started all ranks of the node: they share its start.
        (ONE_NODE, "train-20261201-073640-4711"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "train-20261201-073640-4711"),
        # No launcher but a shell, whose start is that of many jobs.
        ({}, "train-20261201-073641-4712"),
    ],
)
def test_job(environ: dict[str, str], job: str) -> None:
    found = identity(environ)
    assert (found.job, found.problems) == (job, ())


def test_ranks_given_by_arguments_alone_agree_on_the_job() -> None:
    assert {identity({}, rank=rank).job for rank in range(3)} == {"train-20261201-073640-4711"}


def test_several_nodes_without_a_run_id_share_only_the_script_and_are_told_the_cure() -> None:
    found = identity({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"})
    assert found.job == "train"
    assert "--rdzv-id" in found.problems[0] and "ANNOTQ_JOB" in found.problems[0]


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 0),
        (TORCHRUN, 2),
        ({**SLURM, "SLURM_RESTART_COUNT": "1"}, 1),
        # torchrun counts from 0 again in a requeued SLURM job of the same id.
        ({**TORCHRUN, "SLURM_RESTART_COUNT": "1"}, 102),
        ({**TORCHRUN, "SLURM_RESTART_COUNT": "0"}, 2),
        ({**TORCHRUN, "ANNOTQ_ATTEMPT": "4"}, 4),
        ({**TORCHRUN, "ANNOTQ_ATTEMPT": "-1"}, 2),
    ],
)
def test_attempt(environ: dict[str, str], attempt: int) -> None:
    assert identity(environ).attempt == attempt


def test_coordinates() -> None:
    assert identity({"ANNOTQ_COORDINATES": "dp=0, tp=3"}).coordinates == {"dp": 0, "tp": 3}
    assert identity({"ANNOTQ_COORDINATES": "dp=0"}, coordinates={"pp": 1}).coordinates == {"pp": 1}
    wrong = identity({"ANNOTQ_COORDINATES": "dp=first"})
    assert wrong.coordinates == {} and "dp=first" in wrong.problems[0]


@pytest.mark.parametrize(
    ("environ", "given", "word"),
    [
        ({"RANK": "two"}, {}, "RANK is 'two'"),
        ({}, {"world_size": 0}, "is none of 0 ranks"),
        ({}, {"rank": -1}, "rank=-1"),
        ({}, {"world_size": "4"}, "world_size='4'"),
        ({}, {"coordinates": {"dp": "x"}}, "'dp': 'x'"),
        ({}, {"coordinates": {"dp": True}}, "'dp': True"),
        ({}, {"coordinates": {"dp": 1 << 70}}, "holds values that are no numbers"),
        ({}, {"coordinates": ["dp", 0]}, "is no dictionary"),
        ({}, {"rank": 1 << 70}, "is no number"),
    ],
)
def test_a_value_that_cannot_be_used_is_said_and_passed_over(
    environ: dict[str, str], given: dict[str, object], word: str
) -> None:
    found = identity(environ, **given)
    assert word in found.problems[0]
    assert places(found) == (0, 1, 0)


def test_children_of_one_launcher_find_the_same_start(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("from annotq.agent.process_facts import facts; print(facts())")
    output = [subprocess.run([sys.executable, script], stdout=subprocess.PIPE, check=True).stdout for _ in range(2)]
    first, second = (eval(text, {"Facts": Facts}) for text in output)
    assert first.script == "job"
    assert (first.launcher_pid, first.launcher_started) == (second.launcher_pid, second.launcher_started)
    assert first.launcher_pid == os.getpid()
    own = process_facts.facts().started
    assert own == pytest.approx(first.launcher_started)
    assert own < first.started <= second.started


def test_without_a_gpu_there_is_no_name_and_no_source_of_node_ids() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert process_facts.gpu_name() is None
    assert process_facts.annotation_ids() == "none"
    assert process_facts.versions()["torch"] == torch.__version__


def test_a_spool_shared_by_machines_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw\n"
        "31 30 8:2 / /home/local\\040disk rw - xfs /dev/sdb rw\n"
        "32 22 0:41 / /scratch rw - fuse.sshfs host: rw\n"
    )
    monkeypatch.setattr(process_facts, "_PROC", tmp_path)
    kinds = {folder: process_facts.network_file_system(Path(folder)) for folder in ("/var", "/home/me", "/scratch/x")}
    assert kinds == {"/var": None, "/home/me": "nfs4", "/scratch/x": "fuse.sshfs"}
    assert process_facts.network_file_system(Path("/home/local disk/spool")) is None
    assert process_facts.network_file_system(Path("/homes")) is None
