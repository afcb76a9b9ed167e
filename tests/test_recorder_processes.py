"""The recorder in real training processes: killed, forked, spawned, disabled, with a shipper beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from annotq.agent.spool_reader import ProcessFolder, process_folders


def train(tmp_path: Path, code: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a training script in a process of its own, with its spool in tmp_path/spool."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANNOTQ_")}
    return subprocess.run(
        [sys.executable, *options, script],
        env={**kept, "ANNOTQ_SPOOL": str(tmp_path / "spool"), "ANNOTQ_JOB": "job", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def folders(tmp_path: Path) -> list[ProcessFolder]:
    found = list(process_folders(tmp_path / "spool"))
    assert all(isinstance(folder, ProcessFolder) for folder in found)
    return found  # type: ignore[return-value]


def kinds(folder: ProcessFolder) -> list[str]:
    return [file.kind for file in folder.files()]


def test_forked_data_loaders_leave_the_recording_alone(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        """
        import annotq.agent, os
        from torch.utils.data import DataLoader

        class Numbers:
            def __len__(self): return 8
            def __getitem__(self, index):
                annotq.agent.step(1000)
                with annotq.agent.region("load"): pass
                annotq.agent.trace_handler()
                annotq.agent.stop()
                return index

        annotq.agent.start()
        loader = DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork")
        for batch in loader:
            annotq.agent.step()
        assert len(list(loader)) == 8
        if os.fork() == 0:
            raise SystemExit  # a child that runs the exit handlers
        os.wait()
        """,
        "-W",
        "error::RuntimeWarning",
    )
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = folders(tmp_path)
    assert kinds(folder) == ["end"]
    beat = folder.last_beat()
    assert beat is not None and beat.step == 7  # the trainer's own eight steps


def test_a_spawned_child_that_imports_the_script_is_no_rank(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        """
        import annotq.agent, multiprocessing
        annotq.agent.start()

        def work(): pass

        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()
            assert child.exitcode == 0
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(folders(tmp_path)) == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_that_are_children_of_multiprocessing_are_recorded_to_their_end(tmp_path: Path, method: str) -> None:
    done = train(
        tmp_path,
        f"""
        import annotq.agent, multiprocessing

        def work(rank):
            annotq.agent.start(rank=rank, world_size=2)
            annotq.agent.step()

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            children = [context.Process(target=work, args=(rank,)) for rank in range(2)]
            for child in children: child.start()
            for child in children: child.join()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [folder.info.rank for folder in folders(tmp_path)] == [0, 1]
    assert [kinds(folder) for folder in folders(tmp_path)] == [["end"], ["end"]]


def test_after_a_kill_all_that_was_kept_is_there(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        """
        import annotq.agent, os, torch
        from torch.profiler import profile
        annotq.agent.start()
        with profile(on_trace_ready=annotq.agent.trace_handler()):
            torch.ones(8).sum()
        annotq.agent.step()
        annotq.agent.recorder.current().background.finish(60)
        os.kill(os.getpid(), 9)
        """,
    )
    assert done.returncode == -signal.SIGKILL
    (folder,) = folders(tmp_path)
    assert not folder.alive()
    (trace,) = folder.files()
    assert json.loads(trace.path.read_bytes())["traceEvents"]
    beat = folder.last_beat()
    assert beat is not None and beat.step == 0


def test_disabled_is_inert(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        """
        import annotq.agent, threading, torch
        from torch.cuda import graphs
        from torch.profiler import profile
        annotq.agent.start(endpoint="127.0.0.1:1")
        with profile(on_trace_ready=annotq.agent.trace_handler()) as profiler:
            with annotq.agent.region("mlp"):
                torch.ones(8).sum()
        assert not any(event.is_user_annotation for event in profiler.events())
        annotq.agent.step()
        assert not graphs._global_instantiate_hooks
        assert threading.active_count() == 1
        annotq.agent.stop()
        """,
        "-W",
        "error::RuntimeWarning",
        ANNOTQ_DISABLED="1",
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "spool").exists()


def test_without_room_for_a_file_training_goes_on(tmp_path: Path) -> None:
    """The limit on file sizes stands for a disk that takes no more."""
    done = train(
        tmp_path,
        """
        import annotq.agent, resource, torch
        from torch.profiler import profile
        annotq.agent.start()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for _ in range(2):
            with profile(on_trace_ready=annotq.agent.trace_handler()):
                torch.ones(8).sum()
        print("trained")
        """,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("a profiler window was lost") == 1
    (folder,) = folders(tmp_path)
    assert kinds(folder) == ["end"]
    assert not list(folder.path.glob(".tmp-*"))


def test_an_older_torch_is_recorded_without_graphs_and_quietly(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        """
        import sys, torch
        # What torch before 2.14 lacks.
        del torch.cuda.graphs.register_graph_instantiate_hook
        sys.modules["torch.cuda.graph_annotations"] = None
        import annotq.agent
        annotq.agent.start()
        with annotq.agent.mark_kernels({"name": "mlp"}, backward=False), annotq.agent.region("mlp"):
            torch.ones(8).sum()
        annotq.agent.step()
        """,
        "-W",
        "error::RuntimeWarning",
    )
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = folders(tmp_path)
    assert kinds(folder) == ["end"]


def test_only_the_standard_library_and_torch_are_loaded_in_a_recorded_process(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        """
        import sys, tempfile, torch, torch.cuda.graph_annotations
        from torch.profiler import profile
        unused = tempfile.mkdtemp() + "/trace.json"  # not /dev/null: the export replaces what is there
        with profile(on_trace_ready=lambda profiler: profiler.export_chrome_trace(unused)):
            torch.ones(8).sum()  # loads what torch itself needs
        before = set(sys.modules)
        import annotq.agent
        annotq.agent.start()
        with profile(on_trace_ready=annotq.agent.trace_handler()):
            with annotq.agent.region("mlp"):
                torch.ones(8).sum()
        annotq.agent.step()
        annotq.agent.stop()
        loaded = {name.split(".")[0] for name in set(sys.modules) - before}
        print(*sorted(loaded - sys.stdlib_module_names))
        """,
    )
    assert done.stdout.split() == ["annotq"], done.stderr


def test_local_rank_0_starts_the_shipper_which_outlives_it(tmp_path: Path) -> None:
    code = """
        import annotq.agent
        annotq.agent.start(rank=3, world_size=4, local_rank={local_rank})
        from annotq.agent import shipper_start
        print(*[process.pid for process in shipper_start._started])
        """
    refused = "127.0.0.1:1"  # nobody listens on this port
    silent = train(tmp_path, code.replace("{local_rank}", "1"), ANNOTQ_ENDPOINT=refused)
    assert silent.stdout.split() == []
    done = train(
        tmp_path, code.replace("{local_rank}", "0"), "-X", "dev", ANNOTQ_ENDPOINT=refused, ANNOTQ_TOKEN="secret"
    )
    assert done.returncode == 0 and done.stderr == ""
    pid = int(done.stdout)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert command[1:5] == [b"-P", b"-m", b"annotq.agent.ship", b"--spool"]
        assert b"secret" not in b" ".join(command)
        assert b"ANNOTQ_TOKEN=secret" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "spool/shipper.log").exists()
