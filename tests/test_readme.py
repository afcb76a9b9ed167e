"""The README's commands run, and what it shows is what the program prints today."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

# `make` builds environments; CI runs the targets themselves.
BLOCKS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
COMMANDS = [line for line in BLOCKS if line.startswith("annotq ")]
QUESTIONS = re.findall(r"\| `(annotq [^`]+)` \|", README)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme") / "store.duckdb"
    for command in COMMANDS:
        assert run(command, path).returncode == 0, command
    return path


def run(command: str, store: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "annotq.cli", *shlex.split(command)[1:]]
    return subprocess.run(
        words,
        cwd=ROOT,
        # torchrun lies beside this interpreter; the state of the run belongs into the test's folder.
        env={
            **os.environ,
            "ANNOTQ_DB": str(store),
            "ANNOTQ_SPOOL": str(store.with_name("spool")),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_the_blocks_hold_the_two_set_up_commands_and_an_ingest() -> None:
    assert [line.split("#")[0].strip() for line in BLOCKS] == [
        "make demo",
        "make test",
        "annotq ingest tests/data/slow4",
        "annotq run -- torchrun --standalone --nproc-per-node 4 deploy/examples/train.py --slow-rank 2",
    ]
    assert len(QUESTIONS) == 5


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_has_an_answer(question: str, store: Path) -> None:
    answer = run(question, store)
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout.splitlines()) > 2


def test_the_demo_in_the_readme_and_the_reference_are_what_the_code_gives_now() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, timeout=90
    )
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")]), ids=str
)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    files = re.findall(r"`((?:agent|collector|cli|tests|docs|bench|deploy)/[\w./-]+\.\w+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [file for file in files if not (ROOT / file).exists()]
    assert missing == []
