"""Large traces as torch.profiler writes them, made from a small real one.

The events of the source trace are repeated; each repetition comes later by the length of the source's window and has
correlations, event ids and step numbers of its own. Six steps become one, so that the trace of 160 MB has 58 of them,
about as many as a real one of that size: HolisticTraceAnalysis compares every event with every step. Everything else
stays as Kineto wrote it, the layout included.

    python bench/make_trace.py OUT --repeats 29      # OUT ending in .gz is compressed
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "tests/data/control4/rank0.pt.trace.json.gz"

# What must differ from one repetition to the next. `ts` keeps its decimals: the window is a whole number of
# microseconds.
NUMBERS = re.compile(
    r'("ts": |"correlation": |"id": |"External id": |"Ev Idx": |"Sequence number": |"ProfilerStep#)(\d+)'
)

STEPS_IN_ONE = 6
STEP = re.compile(
    r"""  \{
    "ph": "X",
    "cat": "(?P<cat>\w+)",
    "name": "ProfilerStep\#(?P<step>\d+)",
    "pid": [^\n]+
    "tid": (?P<tid>\w+),
    "ts": (?P<ts>[\d.]+),
    "dur": (?P<dur>[\d.]+)
    .*?
  \},
""",
    re.DOTALL,
)


def make_trace(out: Path, repeats: int, source: Path = SOURCE) -> None:
    """Write `repeats` repetitions of the events of `source` to `out`, and its annotations beside it."""
    head, metadata, events, tail = split(gzip.decompress(source.read_bytes()).decode())
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    with gzip.open(partial, "wt", compresslevel=6) if out.suffix == ".gz" else partial.open("w") as file:
        file.write(head + metadata)
        file.writelines(repetitions(longer_steps(events), repeats))
        file.write(tail)
    partial.rename(out)
    rank = source.name.split(".")[0]
    shutil.copy(source.with_name(f"{rank}.annotations.json"), out.with_name(f"{rank}.annotations.json"))


def split(text: str) -> tuple[str, str, str, str]:
    """The file up to the first event; the metadata events; the events; from the closing `Trace` event to the end."""
    first = text.index("  {\n", text.index('"traceEvents"'))
    work = text.index('  {\n    "ph": "X"')
    end = text.rindex("  {\n", 0, text.index('"cat": "Trace"'))
    return text[:first], text[first:work], text[work:end], text[end:]


def longer_steps(events: str) -> str:
    """`events` with STEPS_IN_ONE profiler steps merged into one, on the host and on the GPU."""
    ends: dict[tuple[str, str, int], int] = {}
    for match in STEP.finditer(events):
        key = match["cat"], match["tid"], int(match["step"]) // STEPS_IN_ONE
        ends[key] = max(ends.get(key, 0), nanoseconds(match["ts"]) + nanoseconds(match["dur"]))

    def merged(match: re.Match[str]) -> str:
        number, place = divmod(int(match["step"]), STEPS_IN_ONE)
        if place:
            return ""
        duration = ends[match["cat"], match["tid"], number] - nanoseconds(match["ts"])
        text = match[0].replace(f"#{match['step']}", f"#{number}")
        return text.replace(f'"dur": {match["dur"]}', f'"dur": {duration // 1000}.{duration % 1000:03}')

    return STEP.sub(merged, events)


def nanoseconds(microseconds: str) -> int:
    """Kineto writes three decimals."""
    return int(microseconds.replace(".", ""))


def repetitions(events: str, repeats: int) -> Iterator[str]:
    """`events` again and again, renumbered. The first is as it was."""
    fixed, values, strides = [], [], []
    position = 0
    window = time_window(events)
    stride = 1 + max(int(match[2]) for match in NUMBERS.finditer(events) if match[1] != '"ts": ')
    steps = len(set(re.findall(r"ProfilerStep#\d+", events)))
    for match in NUMBERS.finditer(events):
        fixed.append(events[position : match.start(2)])
        values.append(int(match[2]))
        strides.append({'"ts": ': window, '"ProfilerStep#': steps}.get(match[1], stride))
        position = match.end()
    parts = [""] * (2 * len(fixed) + 1)
    parts[0:-1:2] = fixed
    parts[-1] = events[position:]
    for repeat in range(repeats):
        parts[1::2] = [str(value + repeat * step) for value, step in zip(values, strides, strict=True)]
        yield "".join(parts)


def time_window(events: str) -> int:
    """Microseconds from the first to past the last moment of `events`."""
    times = [int(value) for value in re.findall(r'"ts": (\d+)', events)]
    longest = max(int(value) for value in re.findall(r'"dur": (\d+)', events))
    return max(times) - min(times) + longest + 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=29)
    parser.add_argument("--source", type=Path, default=SOURCE)
    options = parser.parse_args()
    make_trace(options.out, options.repeats, options.source)


if __name__ == "__main__":
    main()
