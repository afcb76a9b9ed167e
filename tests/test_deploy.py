"""What deploy/ offers fits the program: command lines parse, metrics are exported, files are what their tools read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from annotq.cli.main import app
from annotq.collector.metrics import Metrics

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMMANDS: Any = typer.main.get_command(app)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def of_kind(name: str, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(name) if document["kind"] == kind]
    return found


def check_call(words: list[str]) -> None:
    """`annotq WORDS` parses: the command exists, so do its options, and their values convert. Nothing is run."""
    COMMANDS.commands[words[0]].make_context(words[0], words[1:])


def calls_in_text(text: str) -> Iterator[list[str]]:
    """The words after `annotq` of each call in a script, a unit or a page; continuation lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        for match in re.finditer(r"(?:^|[\s`/=])annotq ((?:[a-z]+)(?: [^`|#]*)?)", line):
            call = re.split(r"\s(?:\|\||&&|->|says|sends)|[`;:](?:\s|$)| {2,}", match[1])[0]
            name = call.split()[0]
            if name in COMMANDS.commands and call.split()[1:]:
                yield shlex.split(re.sub(r'"?\$\{?\w+\}?"?', "x", call).replace("HOST:PORT", "h:1"))


def calls_in_compose() -> Iterator[list[str]]:
    for service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values():
        if service.get("entrypoint", ["annotq"])[0] == "annotq":
            yield [*service.get("entrypoint", ["annotq"])[1:], *service["command"]]
        if test := service.get("healthcheck", {}).get("test"):
            assert test[:2] == ["CMD", "annotq"]
            yield test[2:]


def calls_in_kubernetes() -> Iterator[list[str]]:
    for file in ("kubernetes/collector.yaml", "kubernetes/job-with-sidecar.yaml"):
        for document in documents(file):
            pod = document["spec"].get("template", {}).get("spec", {})
            for container in [*pod.get("initContainers", []), *pod.get("containers", [])]:
                if "command" not in container:  # the image's entry point is annotq
                    yield container["args"]


TEXTS = ("README.md", "compose.yaml", "slurm/job.sbatch", "systemd/annotq-collector.service")
CALLS = [
    *(call for name in TEXTS for call in calls_in_text((DEPLOY / name).read_text())),
    *calls_in_compose(),
    *calls_in_kubernetes(),
]


@pytest.mark.parametrize("call", CALLS, ids=shlex.join)
def test_every_command_line_parses(call: list[str]) -> None:
    check_call(call)


def test_the_command_lines_are_found() -> None:
    names = {call[0] for call in CALLS}
    assert names >= {"serve", "ship", "run", "status"}
    with pytest.raises(Exception, match="No such option"):
        check_call(["ship", "--no-such-option"])


def test_every_variable_is_one_that_annotq_reads() -> None:
    known = set(re.findall(r"`(ANNOTQ_\w+)`", (ROOT / "docs/reference/environment.md").read_text()))
    code = "\n".join(file.read_text() for name in ("agent", "cli", "collector") for file in (ROOT / name).rglob("*.py"))
    known |= set(re.findall(r"\bANNOTQ_[A-Z0-9_]+\b", code))
    for file in filter(Path.is_file, DEPLOY.rglob("*")):
        assert set(re.findall(r"\bANNOTQ_[A-Z0-9_]+\b", file.read_text())) <= known, file


def test_the_batch_script_passes_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    if not Path(shellcheck).exists():
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, DEPLOY / "slurm/job.sbatch"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_batch_script_keeps_the_exit_code_of_the_training(tmp_path: Path) -> None:
    # The real script with stand-ins for the cluster's own programs: srun runs its last words here.
    for name, body in {
        "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
        "torchrun": f'echo "$ANNOTQ_JOB $ANNOTQ_ATTEMPT $*" > {tmp_path}/trained; exit 7',
        "scontrol": "echo node1; echo node2",
        "annotq": f'echo "$*" >> {tmp_path}/calls',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "ANNOTQ_ENDPOINT": "collector:4517"}
    environment |= {
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_RESTART_COUNT": "1",
    }
    script = ["bash", str(DEPLOY / "slurm/job.sbatch"), "train.py", "--steps", "9"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    trained = (tmp_path / "trained").read_text()
    assert trained.startswith("slurm-42 1 --nnodes=2 --nproc-per-node=8")
    assert trained.endswith("--rdzv-endpoint=node1:29500 train.py --steps 9\n")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["doctor", "ship --spool /tmp/annotq-42 --once", "status --job slurm-42"]
    for call in calls:
        check_call(shlex.split(call))


def test_the_unit_is_one_that_systemd_reads() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = DEPLOY / "systemd/annotq-collector.service"
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    # The program is not installed where the unit expects it; everything else must be right.
    complaints = [line for line in done.stderr.splitlines() if "annotq-collector" in line]
    assert [line for line in complaints if "is not executable" not in line] == []


def test_the_collector_of_kubernetes_can_be_reached_and_keeps_its_store() -> None:
    deployment, service = (of_kind("kubernetes/collector.yaml", kind) for kind in ("Deployment", "Service"))
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert f"--listen=0.0.0.0:{ports['grpc']}" in container["args"]
    assert f"--metrics=0.0.0.0:{ports['metrics']}" in container["args"]
    # One process owns the file: never two pods, not even during a roll-out.
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]["type"]) == (1, "Recreate")
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    claim = of_kind("kubernetes/collector.yaml", "PersistentVolumeClaim")["metadata"]["name"]
    assert mounts["/data"]["persistentVolumeClaim"]["claimName"] == claim
    assert set(mounts) >= {"/data", "/tmp", "/etc/annotq/tls", "/etc/annotq/token"}
    assert pod["spec"]["terminationGracePeriodSeconds"] > 30  # what serve takes to finish its queue


def test_the_sidecar_and_the_training_share_the_spool() -> None:
    job = of_kind("kubernetes/job-with-sidecar.yaml", "Job")
    pod = job["spec"]["template"]["spec"]
    (shipper,), (train,) = pod["initContainers"], pod["containers"]
    assert shipper["restartPolicy"] == "Always"  # a sidecar; without it the training would never start
    environment = {variable["name"]: variable.get("value") for variable in train["env"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in train["volumeMounts"]}
    assert environment["ANNOTQ_SPOOL"] in shipper["args"][1]
    assert mounts[environment["ANNOTQ_SPOOL"]] == next(
        mount["name"] for mount in shipper["volumeMounts"] if mount["mountPath"] == "/spool"
    )
    # Without an endpoint the ranks start no shipper of their own.
    assert "ANNOTQ_ENDPOINT" not in environment
    service = of_kind("kubernetes/collector.yaml", "Service")
    grpc_port = next(port["port"] for port in service["spec"]["ports"] if port["name"] == "grpc")
    assert f"--endpoint={service['metadata']['name']}:{grpc_port}" in shipper["args"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for container in (shipper, train) for mount in container["volumeMounts"]} <= volumes


def test_the_sidecar_ends_once_every_rank_is_sent_or_refused(tmp_path: Path) -> None:
    pod = of_kind("kubernetes/job-with-sidecar.yaml", "Job")["spec"]["template"]["spec"]
    shell, option, script = pod["initContainers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    script = script.replace("/spool/", f"{tmp_path}/").replace("sleep 1", "exit 9")

    def waits() -> bool:
        return subprocess.run([shell, option, script], timeout=20).returncode == 9

    assert not waits()
    for rank, marker in enumerate(("shipped", "refused")):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}/process.json").touch()
        assert waits()
        (tmp_path / f"rank{rank}/{marker}").touch()
        assert not waits()


def test_the_image_holds_all_that_the_package_needs() -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {step for step, _ in steps} <= {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "ENV",
        "ARG",
        "VOLUME",
        "EXPOSE",
    } | {
        "ENTRYPOINT",
        "CMD",
    }
    copied = [word for step, rest in steps if step == "COPY" for word in rest.split()[:-1]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = project["tool"]["setuptools"]["package-dir"].values()
    needed = [*folders, "pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]]
    for path in needed:
        assert (ROOT / path).exists()
        assert any(path == place or path.startswith(f"{place}/") for place in copied), path
    assert all((ROOT / path).exists() for path in copied if path != "deploy/examples/train.py")
    stages = [rest.split(" AS ")[1] for step, rest in steps if step == "FROM"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert {service["build"]["target"] for service in compose["services"].values()} <= set(stages)
    for service in compose["services"].values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_dashboard_asks_only_for_metrics_that_are_exported() -> None:
    exported = set()
    for family in Metrics().registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        exported |= {family.name + suffix for suffix in suffixes}
    board = json.loads((DEPLOY / "grafana/annotq.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    asked = {name for query in queries for name in re.findall(r"\bannotq_\w+", query)}
    assert asked <= exported
    assert exported - asked <= {
        f"{name}_{part}" for name in ("annotq_commit_seconds", "annotq_query_seconds") for part in ("sum", "count")
    }
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_page_names_every_file() -> None:
    page = (DEPLOY / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", page)
    files = {str(file.relative_to(DEPLOY)) for file in DEPLOY.rglob("*") if file.is_file() and file.name != "README.md"}
    assert {link for link in links if "/" not in link or not link.startswith("http")} == files
