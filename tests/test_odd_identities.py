"""Identities that no collector can be told: bytes that are no text, numbers beyond 64 bits. They cost nobody else anything."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from scripted_collector import ScriptedCollector
from spools import identity, snapshot, writer

from annotq.agent import delivery
from annotq.agent.channel import Access
from annotq.agent.collector_end import CollectorEnd
from annotq.agent.process_info import ProcessInfo
from annotq.agent.ship import run_shipper
from annotq.agent.ship_options import ShipOptions, Summary
from annotq.agent.spool_reader import ProcessFolder, process_folder
from annotq.agent.valid_text import valid_text
from annotq.v1 import collector_pb2 as pb


def ship_once(spool: Path, collector: ScriptedCollector) -> Summary:
    return run_shipper(ShipOptions(spool, Access(collector.endpoint), once=True, seed=1), threading.Event())


@pytest.mark.parametrize(
    ("text", "written"),
    [("é", "é"), ("a\udcff", "a\\xff"), ("\ud800b", "\\ud800b"), ("\udcc3\udca9", "é"), ("x\udfff", "x\\udfff")],
)
def test_what_is_no_text_is_written_out(text: str, written: str) -> None:
    assert valid_text(text) == written


@pytest.mark.parametrize(
    "field",
    [
        {"job": "a\udcff"},
        {"gpu": "\ud800"},
        {"rank": 1 << 63},
        {"world_size": -(1 << 70)},
        {"coordinates": {"dp": 1 << 63}},
        {"coordinates": {"dp": True}},
        {"versions": {"torch": 2}},
    ],
)
def test_a_process_that_cannot_be_told_is_left_alone_and_the_others_go_on(
    field: dict[str, Any], tmp_path: Path
) -> None:
    odd, other = writer(tmp_path, 0), writer(tmp_path, 1)
    for spool in (odd, other):
        spool.put("snapshot", snapshot())
        spool.close(99, "stopped")
    told = json.loads(identity().to_json()) | field
    (odd.folder / "process.json").write_text(json.dumps(told))
    with ScriptedCollector() as collector:
        summary = ship_once(tmp_path, collector)
    assert [request.process.rank for request in collector.registered] == [1]
    assert f"process.json cannot be read: {next(iter(field))} is " in summary.reasons[0]
    assert (odd.folder / "00000001.snapshot.json").exists() and not other.folder.exists()


def test_a_process_whose_announcement_fails_is_marked_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of process.json are stricter than the wire today; what slips through must not stop the shipper."""

    def refuse_rank_0(info: ProcessInfo) -> pb.RegisterRequest:
        if info.rank == 0:
            raise ValueError("Value out of range")
        return request_of(info)

    request_of = delivery.request_of
    monkeypatch.setattr(delivery, "request_of", refuse_rank_0)
    for rank in (0, 1):
        writer(tmp_path, rank).close(99, "stopped")
    with ScriptedCollector() as collector:
        assert ship_once(tmp_path, collector).refused == 1
    (left,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    found = process_folder(left)
    assert isinstance(found, ProcessFolder)
    assert found.refused() == "it cannot be told to a collector: Value out of range"


def test_a_header_with_any_surrogate_can_be_sent() -> None:
    sent: list[pb.Batch] = []
    end = CollectorEnd(1, 0, sent.append)
    end.begin_file(1)
    end.note("lone \ud800 and \udcff")
    assert json.loads(sent[0].header) == {"text": "lone \\ud800 and \\xff"}
