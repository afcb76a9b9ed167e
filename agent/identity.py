"""Who this process is in its job: from arguments, ANNOTQ_* variables, torchrun, SLURM, else a job of one process.

Pure: a function of what was given, an environment and a few facts, so that `annotq doctor` can say what start() would choose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from annotq.agent import config
from annotq.agent.valid_text import valid_text

# Elastic restarts and SLURM requeues both count from 0; a job has fewer restarts than this in one queue run.
_RESTARTS_PER_REQUEUE = 100

_LARGEST = 999_999_999  # a rank, an attempt, a place: what nine digits can say

_COORDINATE = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,9})\s*")


@dataclass(frozen=True)
class Given:
    """What the caller of start() said; None: nothing."""

    job: str | None = None
    attempt: int | None = None
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    coordinates: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Facts:
    """What the environment does not tell: the script's name, process id and start (CLOCK_REALTIME seconds) of this process
    and of the one that started it; distributed: (rank, world size) of torch.distributed where it is initialized already."""

    script: str
    pid: int
    started: float
    launcher_pid: int
    launcher_started: float
    distributed: tuple[int, int] | None = None


@dataclass(frozen=True)
class Identity:
    """job, attempt, ranks and coordinates. world_size: None when only the rank is known. origins: where each came from.
    problems: sentences to warn with."""

    job: str
    attempt: int
    rank: int
    world_size: int | None
    local_rank: int
    coordinates: Mapping[str, int]
    origins: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def identify(given: Given, environ: Mapping[str, str], facts: Facts) -> Identity:
    """Choose the identity. Never raises: a value that cannot be used is a problem and is passed over."""
    choice = _Choice(environ)
    rank, world_size, local_rank = _ranks(choice, given, facts)
    coordinates = _coordinates(choice, given)
    attempt = _attempt(choice, given)
    job = _job(choice, given, facts, launched=world_size != 1)
    return Identity(
        job, attempt, rank, world_size, local_rank, coordinates, dict(choice.origins), tuple(choice.problems)
    )


class _Choice:
    """Picks the first usable value and remembers where it came from."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.origins: dict[str, str] = {}
        self.problems: list[str] = []

    def argument(self, what: str, value: int | None) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            self.problems.append(f"The argument {what}={value!r} is no number and was passed over.")
            return None
        self.origins[what] = "argument"
        return value

    def number(self, what: str, *names: str) -> int | None:
        """The first of the variables that holds a natural number."""
        for name in names:
            text = self.environ.get(name, "").strip()
            if text.isascii() and text.isdigit() and len(text) < 10:
                self.origins[what] = name
                return int(text)
            if text:
                self.problems.append(f"{name} is {text!r}, no number, and was passed over.")
        return None

    def text(self, what: str, name: str) -> str | None:
        value = valid_text(self.environ.get(name, "").strip())
        if value:
            self.origins[what] = name
        return value or None


def _ranks(choice: _Choice, given: Given, facts: Facts) -> tuple[int, int | None, int]:
    rank = choice.argument("rank", given.rank)
    world_size = choice.argument("world_size", given.world_size)
    local_rank = choice.argument("local_rank", given.local_rank)
    if rank is None:
        # The variables of one launcher belong together: torchrun inside a SLURM step sees both.
        rank = choice.number("rank", "RANK")
        if rank is None and "WORLD_SIZE" not in choice.environ:
            rank = choice.number("rank", "SLURM_PROCID")
        if rank is None and facts.distributed is not None:
            rank, choice.origins["rank"] = facts.distributed[0], "torch.distributed"
    if world_size is None:
        world_size = choice.number("world_size", "WORLD_SIZE")
        if world_size is None and "RANK" not in choice.environ:
            world_size = choice.number("world_size", "SLURM_NTASKS")
        if world_size is None and facts.distributed is not None:
            world_size, choice.origins["world_size"] = facts.distributed[1], "torch.distributed"
    if local_rank is None:
        local_rank = choice.number("local_rank", "LOCAL_RANK", "SLURM_LOCALID")
    if world_size is not None and (rank or 0) >= world_size:
        choice.problems.append(f"Rank {rank or 0} is none of {world_size} ranks: the number of ranks was passed over.")
        world_size = None
    if rank is None and world_size is None:
        world_size, choice.origins["world_size"] = 1, "single process"
    for what, value in (("rank", rank), ("local_rank", local_rank)):
        if value is None:
            choice.origins[what] = "single process"
    return rank or 0, world_size, local_rank or 0


def _attempt(choice: _Choice, given: Given) -> int:
    attempt = choice.argument("attempt", given.attempt)
    if attempt is None:
        attempt = choice.number("attempt", config.ATTEMPT)
    if attempt is not None:
        return attempt
    restarts = choice.number("attempt", "TORCHELASTIC_RESTART_COUNT")
    requeues = choice.number("attempt", "SLURM_RESTART_COUNT")
    if restarts is None and requeues is None:
        choice.origins["attempt"] = "first attempt"
        return 0
    if restarts is None or requeues is None:
        return restarts or requeues or 0
    # torchrun counts from 0 again after a requeue, under the same SLURM job id.
    choice.origins["attempt"] = "TORCHELASTIC_RESTART_COUNT, SLURM_RESTART_COUNT"
    return requeues * _RESTARTS_PER_REQUEUE + restarts


def _job(choice: _Choice, given: Given, facts: Facts, launched: bool) -> str:
    if given.job is not None and (argument := valid_text(str(given.job).strip())):
        choice.origins["job"] = "argument"
        return argument
    if job := choice.text("job", config.JOB):
        return job
    environ, script = choice.environ, valid_text(facts.script)
    if (job := choice.text("job", "TORCHELASTIC_RUN_ID")) and job.lower() != "none":
        return job
    # By what torchrun says even where arguments say otherwise: it knows how many nodes there are.
    local_ranks, ranks = (environ.get(name, "").strip() for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if job := choice.text("job", "SLURM_JOB_ID"):
        return _slurm_job(job, environ, facts, one_node=bool(local_ranks) and local_ranks == ranks)
    if local_ranks != ranks and local_ranks:
        choice.origins["job"] = "script"
        choice.problems.append(
            f"The job is called {script!r} after its script, like every other run of it: give torchrun --rdzv-id NAME"
            f" or set {config.JOB}."
        )
        return script
    # One launcher started all ranks, so its start time is the same for all of them, in every attempt.
    launched = launched or "TORCHELASTIC_RUN_ID" in environ
    choice.origins["job"] = "script, start of the launcher" if launched else "script, start of the process"
    pid, seconds = (facts.launcher_pid, facts.launcher_started) if launched else (facts.pid, facts.started)
    # The process id keeps apart what a sweep starts in the same second.
    return f"{script}-{datetime.fromtimestamp(seconds, UTC):%Y%m%d-%H%M%S}-{pid}"


def _slurm_job(job: str, environ: Mapping[str, str], facts: Facts, one_node: bool) -> str:
    """One allocation runs several jobs: its steps, or one torchrun after the other in its script."""
    step = environ.get("SLURM_STEP_ID", "").strip()
    # The batch script and an interactive shell are steps with numbers near 2**32, which mean no step.
    if step.isascii() and step.isdigit() and len(step) < 10:
        return f"slurm-{job}.{step}"
    return f"slurm-{job}-{facts.launcher_pid}" if one_node and "TORCHELASTIC_RUN_ID" in environ else f"slurm-{job}"


def _coordinates(choice: _Choice, given: Given) -> dict[str, int]:
    if given.coordinates is not None:
        return _given_coordinates(choice, given.coordinates)
    text = choice.text("coordinates", config.COORDINATES)
    matches = [_COORDINATE.fullmatch(part) for part in (text or "").split(",") if part.strip()]
    if None in matches:
        choice.problems.append(f"{config.COORDINATES} is {text!r}, not such as 'dp=0,tp=3', and was passed over.")
        return {}
    return {match[1]: int(match[2]) for match in matches if match}


def _given_coordinates(choice: _Choice, given: object) -> dict[str, int]:
    """Of an argument that a user may have made of anything."""
    choice.origins["coordinates"] = "argument"
    if not isinstance(given, Mapping):
        choice.problems.append(
            f"The argument coordinates={given!r} is no dictionary such as {{'dp': 0}}, and was passed over."
        )
        return {}
    kept = {valid_text(str(name)): int(place) for name, place in given.items() if _is_place(place)}
    if len(kept) < len(given):
        choice.problems.append(f"The argument coordinates={given!r} holds values that are no numbers.")
    return kept


def _is_place(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
