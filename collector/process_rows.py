"""The row of a process: who it is, as an agent, a trace or only a file name told."""

from __future__ import annotations

import json

import duckdb

from annotq.agent.errors import AnnotqError
from annotq.agent.kineto import TraceInfo
from annotq.agent.process_info import ProcessInfo
from annotq.collector.rows import Target

RANK_TAKEN = "rank_taken"  # as a reason, in the store and in metrics
# Of processes that are refused because of the same rank.
MOST_REFUSED = 50


class RankTakenError(AnnotqError):
    """Another process holds this rank of this job attempt."""


def ensure_process(connection: duckdb.DuckDBPyConnection, target: Target, rank: int) -> int:
    """The id of the process of this rank; a row of its own when it was not known."""
    process_id = target.process_id(rank)
    connection.execute(
        "INSERT INTO process (process_id, job, attempt, rank) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [process_id, target.job, target.attempt, rank],
    )
    return process_id


def merge_process(connection: duckdb.DuckDBPyConnection, info: TraceInfo, process_id: int) -> None:
    """Add what a trace says about its process. What the agent said about host, process id and GPU stands."""
    groups = _groups(info.process_groups)
    only = groups[0] if len(groups) == 1 else (None, None)
    connection.execute(
        """UPDATE process SET world_size = coalesce(?, world_size),
               host = CASE WHEN process_key IS NULL THEN coalesce(?, host) ELSE host END,
               pid = CASE WHEN process_key IS NULL THEN coalesce(?, pid) ELSE pid END,
               gpu = coalesce(?, gpu), versions = coalesce(?, versions), process_groups = coalesce(?, process_groups),
               default_group = coalesce(?, default_group),
               default_group_size = coalesce(?, default_group_size) WHERE process_id = ?""",
        [
            info.world_size,
            info.host,
            info.pid,
            info.gpu,
            _merged_versions(connection, process_id, info.versions),
            info.process_groups,
            *only,
            process_id,
        ],
    )


def register_process(connection: duckdb.DuckDBPyConnection, info: ProcessInfo) -> int:
    """Note who an agent says it is and return the process's id. Again the same adds a GPU that was not known before.

    Raises RankTakenError when another process holds the rank. Files that only gave a rank, a host or a process id are
    taken for the agent's own as far as they agree with it.
    """
    target = Target(info.job, info.attempt)
    process_id = ensure_process(connection, target, info.rank)
    ((key, host, pid),) = connection.execute(
        "SELECT process_key, host, pid FROM process WHERE process_id = ?", [process_id]
    ).fetchall()
    if key == info.key:
        # A recorder learns the name of its GPU when CUDA starts.
        connection.execute("UPDATE process SET gpu = coalesce(?, gpu) WHERE process_id = ?", [info.gpu, process_id])
        return process_id
    if key is not None or differ(host, info.host) or differ(pid, info.pid):
        raise RankTakenError(
            f"Rank {info.rank} of job {info.job}, attempt {info.attempt}, is taken: this is process {info.pid} on "
            f"{info.host}, the store holds process {pid} on {host}.",
            "Give each run its own name (ANNOTQ_JOB, or torchrun --rdzv-id), or a restart its own attempt (ANNOTQ_ATTEMPT).",
        )
    connection.execute(
        """UPDATE process SET world_size = coalesce(?, world_size), local_rank = ?, host = ?, pid = ?,
               gpu = coalesce(?, gpu), versions = coalesce(?, versions), coordinates = ?, process_key = ?, start_ns = ?,
               annotation_ids = ? WHERE process_id = ?""",
        [
            info.world_size,
            info.local_rank,
            info.host,
            info.pid,
            info.gpu,
            _merged_versions(connection, process_id, dict(info.versions)),
            json.dumps(dict(info.coordinates), sort_keys=True) if info.coordinates else None,
            info.key,
            info.start_ns,
            info.annotation_ids,
            process_id,
        ],
    )
    return process_id


def note_rank_taken(connection: duckdb.DuckDBPyConnection, info: ProcessInfo, detail: str, now_ns: int) -> None:
    """Keep, for `annotq status`, that a process was refused because another holds its rank: once each, MOST_REFUSED of them."""
    process_id = Target(info.job, info.attempt).process_id(info.rank)
    connection.execute(
        """INSERT INTO rejected_batch SELECT ?, 0, 'REGISTER', ?, ?, ? FROM rejected_batch
           WHERE process_id = ? AND kind = 'REGISTER' HAVING count(*) < ? AND count(*) FILTER (WHERE detail = ?) = 0""",
        [process_id, RANK_TAKEN, detail, now_ns, process_id, MOST_REFUSED, detail],
    )


def end_process(connection: duckdb.DuckDBPyConnection, process_id: int, time_ns: int, how: str) -> None:
    """Note that a process is over: stopped by itself, or gone."""
    connection.execute("UPDATE process SET end_ns = ?, ended = ? WHERE process_id = ?", [time_ns, how, process_id])


def add_note(connection: duckdb.DuckDBPyConnection, process_id: int, text: str, sequence: int | None = None) -> None:
    """Keep a sentence of an agent; from a file (no sequence) behind those that are there, and each only once."""
    if sequence is None:
        connection.execute(
            """INSERT INTO agent_note SELECT ?, coalesce(max(sequence), 0) + 1, ? FROM agent_note WHERE process_id = ?
               HAVING count(*) FILTER (WHERE note = ?) = 0""",
            [process_id, text, process_id, text],
        )
    else:
        connection.execute("INSERT INTO agent_note VALUES (?, ?, ?)", [process_id, sequence, text])


def differ(left: object, right: object) -> bool:
    """Whether two facts contradict each other; what is not known contradicts nothing."""
    return left is not None and right is not None and left != right


def _merged_versions(connection: duckdb.DuckDBPyConnection, process_id: int, found: dict[str, str]) -> str | None:
    """The versions known so far (agent: torch; trace: cuda_driver, nccl, ...) and these, as JSON; None without any."""
    stored = connection.execute("SELECT versions FROM process WHERE process_id = ?", [process_id]).fetchone()
    known = json.loads(stored[0]) if stored and stored[0] else {}
    versions = {**known, **found}
    return json.dumps(versions, sort_keys=True) if versions else None


def _groups(process_groups: str | None) -> list[tuple[str | None, int | None]]:
    """Name and number of ranks of each process group in distributedInfo.pg_config."""
    content = json.loads(process_groups or "[]")
    found = [group for group in content if isinstance(group, dict)] if isinstance(content, list) else []
    return [
        (str(group["pg_name"]) if "pg_name" in group else None, size if isinstance(size, int) else None)
        for group in found
        for size in [group.get("pg_size", len(group["ranks"]) if isinstance(group.get("ranks"), list) else None)]
    ]
