"""Runs the blocks of a page, top to bottom, as a reader would: one shell, one store, a terminal of 100 columns.

The shell stands in an empty folder that shows the repository's files; its home folder is empty too. Addresses of 127.0.0.1 that
the page names get free ports, so that two pages can run at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fences import Block, blocks
from given import GIVEN

ROOT = Path(__file__).parent.parent
COLUMNS = 100
HOME = "/home/you"  # what pages call the home folder
RUN = ("bash", "console", "python", "sql")
_END = "\x1e"
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{2,5}")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# A page that annotq writes names the store that it was made from, and how long that path is differs.
_SIZE = re.compile(r"(?<=^wrote )(\S+ \()[\d.]+ [kM]B", re.MULTILINE)
_HIDDEN = {"build", "dist", "annotq.egg-info"}
_WAIT_FOR_PORT = """
wait_for_port() {
    for _ in $(seq 300); do (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1; done; return 1
}
"""


@dataclass(frozen=True)
class Ran:
    """A command of a block: what a terminal shows after it (stdout, then stderr) and its exit code; None: it never came to it."""

    block: Block
    command: str
    shown: str
    code: int | None
    output: str


def run_page(page: Path, folder: Path, timeout: float = 200) -> list[Ran]:
    """Run what can be run in `folder` (empty). A command that fails in a bash block ends the page; what is left has no code."""
    given = GIVEN.get(str(page).removeprefix(f"{ROOT}/"), lambda _: None)
    return run_blocks([block for block in blocks(page) if block.language in RUN], folder, given, timeout)


def run_blocks(
    todo: Sequence[Block], folder: Path, given: Callable[[Path], None] = lambda _: None, timeout: float = 200
) -> list[Ran]:
    """The same for blocks that lie on no page. given: makes the files that the first command needs."""
    work, home, errors = (folder / name for name in ("work", "home", "errors"))
    for path in (work, home, errors):
        path.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in _HIDDEN:
            (work / entry.name).symlink_to(entry)
    given(work)
    ports = dict(_free_ports({port for block in todo for port in _PORT.findall(block.text)}))
    steps = [(block, *step) for block in todo if not block.not_run for step in _steps(block)]
    script = [_WAIT_FOR_PORT]
    for number, (block, command, _) in enumerate(steps):
        text = _PORT.sub(lambda match: ports[match[0]], _shell(block, command))
        script.append(_step(text, block, errors / str(number)))
    ended = _in_terminal("\n".join(script), work, home, timeout).split(_END)
    results = []
    for number, (block, command, shown) in enumerate(steps):
        parts = [ended[2 * number].removeprefix("\n") if 2 * number < len(ended) else ""]
        with contextlib.suppress(FileNotFoundError):
            parts.append((errors / str(number)).read_text(errors="replace"))
        output = _as_on_the_page("".join(parts), work, home, ports)
        code = int(ended[2 * number + 1]) if 2 * number + 1 < len(ended) else None
        results.append(Ran(block, command, shown, code, output))
    return results


def failures(results: list[Ran]) -> list[str]:
    """The commands that did not do well, with what they printed. A code that the next command shows (`echo $?`) is meant."""
    shown = {id(before) for before, after in pairwise(results) if after.command == "echo $?"}
    return [
        f"line {ran.block.line}: {ran.command}\nexit code {ran.code}\n{ran.output}"
        for ran in results
        if ran.code != 0 and id(ran) not in shown
    ]


def is_stale(ran: Ran) -> bool:
    """Whether the page shows something else than the command prints; the sizes of written files may differ."""
    return ran.block.language == "console" and _SIZE.sub(r"\1", ran.shown.rstrip()) != _SIZE.sub(r"\1", ran.output)


def _steps(block: Block) -> tuple[tuple[str, str], ...]:
    return block.commands() if block.language == "console" else ((block.text, ""),)


def _shell(block: Block, command: str) -> str:
    """The block as shell text."""
    if block.language == "python":
        return f"python - <<'END_OF_BLOCK'\n{command}\nEND_OF_BLOCK"
    if block.language == "sql":
        return f"annotq query - <<'END_OF_BLOCK'\n{command}\nEND_OF_BLOCK"
    return command


def _step(text: str, block: Block, errors: Path) -> str:
    """One command, then a record separator, its exit code, and another; $? stays as the command left it."""
    if block.background:
        waits = "; ".join(f"wait_for_port {port}" for port in _PORT.findall(text))
        text = f"{{ {text}\n}} >{shlex.quote(f'{errors}.background')} 2>&1 & {waits}"
    strict = block.language != "console"
    lines = ["set -e" if strict else "(exit ${code:-0})", f"{{ {text}\n}} 2>{shlex.quote(str(errors))}", "code=$?"]
    return "\n".join([*lines, "set +e" if strict else "", f"printf '{_END}%d{_END}\\n' $code"])


def _in_terminal(script: str, work: Path, home: Path, timeout: float) -> str:
    """What the script writes to a terminal, plain text. Ends it, and what it left behind, after `timeout` seconds."""
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TERM": "xterm-256color",
        "NO_COLOR": "1",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    } | {name: value for name, value in os.environ.items() if name in ("LD_LIBRARY_PATH", "PYTHONPATH", "CHROMIUM")}
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=inside,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(inside)
    try:
        written = b"".join(_read(outside, shell, time.monotonic() + timeout))
    finally:
        os.close(outside)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(timeout=10)
    return _ESCAPE.sub("", written.decode(errors="replace").replace("\r\n", "\n"))


def _read(terminal: int, shell: subprocess.Popen[bytes], end: float) -> Iterator[bytes]:
    """Until the shell has ended and nothing more comes: what runs in the background keeps the terminal open."""
    while time.monotonic() < end:
        over = shell.poll() is not None
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # the last process has closed it
                return
            if not data:
                return
            yield data
        elif over:
            return


def _free_ports(named: set[str]) -> Iterator[tuple[str, str]]:
    with contextlib.ExitStack() as held:
        for port in sorted(named):
            listening = held.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            yield port, str(listening.getsockname()[1])


def _as_on_the_page(text: str, work: Path, home: Path, ports: dict[str, str]) -> str:
    """With the folders and ports that the page names."""
    for port, taken in ports.items():
        text = text.replace(f"127.0.0.1:{taken}", f"127.0.0.1:{port}")
    text = text.replace(str(work), f"{HOME}/annotq").replace(str(home), HOME)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
