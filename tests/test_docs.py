"""Every command in the pages runs, or says why nobody runs it; what the pages show is what the program prints today."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from console import pages, rewritten  # noqa: E402
from fences import Block, blocks, outside_fences  # noqa: E402
from shell import RUN, Ran, failures, is_stale, run_page  # noqa: E402

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}

# What nobody runs here, and why. A page that marks another block has to be added, with a reason that holds.
NOT_RUN = {
    "README.md": ["makes its own environment", "lines of a training script"],
    "bench/README.md": ["takes minutes and gigabytes"],
    "docs/gpu.md": ["needs a GPU", "needs a GPU", "needs a GPU"],
    "docs/how-to/kubernetes.md": ["needs Kubernetes", "needs Kubernetes"],
    "docs/how-to/slurm.md": ["needs SLURM", "needs SLURM"],
    "docs/how-to/torch-annotations.md": ["needs a GPU", "needs a GPU"],
    "docs/how-to/torchrun.md": ["lines of a training script"],
    "docs/live.md": ["needs a certificate and another machine"],
    "docs/tutorial.md": ["it installs"],
}


def run(page: Path, folder: Path) -> list[Ran]:
    results = run_page(page, folder)
    assert failures(results) == []
    return results


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if any(b.language in RUN for b in blocks(page))])
def test_the_commands_of_a_page_run_and_print_what_it_shows(name: str, tmp_path: Path) -> None:
    results = run(PAGES[name], tmp_path)
    stale = "\n".join(f"line {ran.block.line}: $ {ran.command}" for ran in results if is_stale(ran))
    assert stale == "", f"{name}: other output today; see `git diff` after: python docs/console.py {name}"


def test_a_page_that_is_wrong_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ echo as; echo shown\nas\nshown\n$ echo two\n3\n```\n\n```bash\nexport X=kept\nfalse\ntrue\n```\n\n"
        "```bash\necho never\n```\n"
    )
    results = run_page(page, tmp_path)
    assert [is_stale(ran) for ran in results] == [False, True, False, False]
    assert [ran.code for ran in results] == [0, 0, None, None]
    assert len(failures(results)) == 2
    assert rewritten(page, results).startswith("```console\n$ echo as; echo shown\nas\nshown\n$ echo two\ntwo\n```\n")


def test_only_the_sizes_of_written_files_may_differ() -> None:
    def stale(shown: str, printed: str) -> bool:
        return is_stale(Ran(Block(1, "console", "", ""), "annotq report", shown, 0, printed))

    assert not stale("wrote a.html (106 kB), open it", "wrote a.html (1.2 MB), open it")
    assert stale("wrote a.html (106 kB), open it", "wrote b.html (106 kB), open it")
    assert stale("read a.html (106 kB)", "read a.html (107 kB)")


def test_what_a_block_sets_holds_for_the_next_and_exit_codes_can_be_shown(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\nexport X=kept\ncd docs\n```\n\n"
        "```console\n$ echo $X; ls README.md\nkept\nREADME.md\n$ (exit 3)\n$ echo $?\n3\n```\n"
    )
    results = run_page(page, tmp_path)
    assert failures(results) == []
    assert not any(map(is_stale, results))


def test_what_is_not_run_is_listed() -> None:
    found = {name: [b.not_run for b in blocks(page) if b.not_run] for name, page in PAGES.items()}
    assert {name: reasons for name, reasons in found.items() if reasons} == NOT_RUN


def test_every_fence_is_of_a_kind_that_is_checked() -> None:
    kinds = {block.language for page in PAGES.values() for block in blocks(page)}
    assert kinds <= {*RUN, "yaml", "text"}
    # A command outside of a fence is run by nobody.
    loose = [
        f"{name}: {line}"
        for name, page in PAGES.items()
        for line in outside_fences(page)
        if re.match(r" {4}(\$ |annotq |make |python |torchrun |[.\w]+/\S* )|\s+```|~~~", line)
    ]
    assert loose == []
