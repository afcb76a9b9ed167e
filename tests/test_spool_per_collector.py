"""What is recorded for one collector never goes to another: spools, the note in the lock file, endpoints that are none."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from scripted_collector import ScriptedCollector
from spools import holding, writer
from test_recorder_processes import train

from annotq.agent import config
from annotq.agent.channel import Access
from annotq.agent.errors import EXIT_USAGE, AnnotqError
from annotq.agent.ship import run_shipper
from annotq.agent.ship_options import ShipOptions
from annotq.agent.shipper_lock import held_for

# A shipper of another job, as far as the lock says.
_HOLD = (
    "import sys; from pathlib import Path; from annotq.agent.file_locks import hold;"
    "from annotq.agent.shipper_lock import note_endpoint;"
    "note_endpoint(hold(Path(sys.argv[1])), 'theirs:4517'); print(flush=True); sys.stdin.read()"
)


def test_each_collector_has_a_spool_of_its_own_unless_one_is_given() -> None:
    state = {"XDG_STATE_HOME": "/state"}
    root = Path("/state/annotq/spool")
    assert config.spool_root(state) == root
    assert config.spool_root({**state, "ANNOTQ_ENDPOINT": "a:1"}) == root / "a_1"
    assert config.spool_root({**state, "ANNOTQ_ENDPOINT": "a:1"}, endpoint="[::1]:4517") == root / "_1_4517"
    assert config.spool_root({"ANNOTQ_SPOOL": "/s", "ANNOTQ_ENDPOINT": "a:1"}, endpoint="b:2") == Path("/s")


def test_two_jobs_with_two_collectors_do_not_meet(tmp_path: Path) -> None:
    code = "import annotq.agent; annotq.agent.start(ship=False)"
    for endpoint in ("127.0.0.1:1", "127.0.0.1:2"):
        done = train(tmp_path, code, ANNOTQ_ENDPOINT=endpoint, ANNOTQ_SPOOL="", XDG_STATE_HOME=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
    spools = sorted((tmp_path / "annotq/spool").iterdir())
    assert [spool.name for spool in spools] == ["127.0.0.1_1", "127.0.0.1_2"]
    assert [len(list(spool.glob("job.*"))) for spool in spools] == [1, 1]


def test_a_shipper_says_where_it_sends_to(tmp_path: Path) -> None:
    writer(tmp_path).close(99, "stopped")
    with ScriptedCollector() as collector:
        run_shipper(ShipOptions(tmp_path, Access(collector.endpoint), seed=1), threading.Event())
        assert (tmp_path / "shipper.lock").read_text() == collector.endpoint
    assert held_for(tmp_path) is None  # it has ended


def test_a_spool_that_is_shipped_elsewhere_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = tmp_path / "spool"
    writer(spool).close(99, "stopped")
    with holding(_HOLD, spool / "shipper.lock"):
        assert held_for(spool) == "theirs:4517"
        code = "import annotq.agent; annotq.agent.start(ship=False)"
        recorded = train(tmp_path, code, ANNOTQ_ENDPOINT="ours:4517")
        silent = train(tmp_path, code, ANNOTQ_ENDPOINT="theirs:4517")
        summary = run_shipper(ShipOptions(spool, Access("ours:4517")), threading.Event())
    said = "sends to theirs:4517, not to ours:4517"
    assert recorded.stderr.count(said) == 1 and silent.stderr == ""
    assert said in caplog.text and "shipped to theirs:4517 by process" in summary.sentence()


@pytest.mark.parametrize("endpoint", ["a:4517", "127.0.0.1:1", "[::1]:65535", "a.b-c:1"])
def test_endpoints(endpoint: str) -> None:
    assert config.checked_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint", ["a", "a:", ":1", "a:0", "a:65536", "http://a:1", "::1:4517", "[]:1", "a b:1", "a:²", "a:1x"]
)
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(AnnotqError, match=r"is no HOST:PORT") as raised:
        config.checked_endpoint(endpoint)
    assert raised.value.exit_code == EXIT_USAGE


def test_a_wrong_endpoint_is_warned_of_where_the_training_runs(tmp_path: Path) -> None:
    code = """
        import sys, annotq.agent
        annotq.agent.start()
        from annotq.agent import shipper_start
        assert not shipper_start._started
        assert not {"grpc", "pyarrow"} & set(sys.modules)
        """
    done = train(tmp_path, code, ANNOTQ_ENDPOINT="http://collector:4517")
    assert done.returncode == 0
    assert done.stderr.count("ANNOTQ_ENDPOINT: 'http://collector:4517' is no HOST:PORT.") == 1
    assert len(list((tmp_path / "spool").glob("job.*"))) == 1


@pytest.mark.parametrize("token", ["gehéim", "two\nlines"])
def test_a_token_that_cannot_be_sent_is_named(token: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    for environ in ({"ANNOTQ_TOKEN": token}, {"ANNOTQ_TOKEN_FILE": str(tmp_path / "token")}):
        with pytest.raises(AnnotqError, match=rf"The token of {next(iter(environ))}.* cannot be sent"):
            config.token(environ)
