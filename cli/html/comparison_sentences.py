"""What changed, in at most five sentences with their numbers, and what else differs between the sides."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from annotq.cli.html.comparison_axis import signed_duration
from annotq.cli.html.comparison_sides import Compared
from annotq.cli.html.comparison_times import RankParts
from annotq.cli.html.rendering import duration
from annotq.collector.diff import SLOWEST_EFFECT, SMALLEST_EFFECT, Change
from annotq.collector.diff_sides import Key

# In the order of `annotq diff`.
WORDS = ("slower", "slower on some ranks", "faster", "faster on some ranks", "same", "unsure", "new", "vanished")
CHANGED = ("slower", "slower on some ranks", "faster", "faster on some ranks", "new", "vanished")
PARTS = (
    ("compute", "compute_ns"),
    ("transfer", "exposed_transfer_ns"),
    ("wait", "wait_ns"),
    ("launch gap", "launch_gap_ns"),
    ("other", "other_ns"),
)
LONGEST_NAME = 80
# Regions that a sentence names.
NAMED = 3

Rows = Sequence[Change[Key]]


def name_of(key: Key) -> str:
    """ "layers.0.mlp backward", "transfer (all_reduce) grads backward"."""
    part, region, phase = key
    words = [None if part == "compute" else part, region, phase]
    return " ".join(word for word in words if word)


def short_name(key: Key) -> str:
    """Cut in the middle where no sentence could hold it."""
    name = name_of(key)
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def step_of(rows: Rows) -> Change[Key] | None:
    return next((row for row in rows if row.key[0] == "step"), None)


def badge(rows: Rows, same_side: bool) -> tuple[str, str]:
    """A word for the whole comparison, and whether it is good, bad or neither (the class of its colour)."""
    step = step_of(rows)
    if same_side:
        return "compared with itself", ""
    if step is None or step.change in ("new", "vanished"):
        return "not comparable", ""
    if step.change == "same":
        changed = sum(row.change in CHANGED for row in rows)
        if changed and not any(row.steps_a and row.steps_b and row.key[0] != "step" for row in rows):
            return "step the same, no region in common", ""
        return (f"step the same, {changed} of its regions not" if changed else "no difference beyond noise"), ""
    if step.change == "unsure":
        return "unsure: too few steps", ""
    return step.change, "bad" if step.change.startswith("slower") else "good"


def sentences(before: Compared, after: Compared, rows: Rows) -> list[str]:
    """At most five."""
    if before.side == after.side:
        itself = f"Both sides are {before.title}: compared with itself a job has no difference."
        return [f"{itself} {_step(before, after, rows)}"]
    found = [
        _step(before, after, rows),
        _counts(before, after, rows),
        _largest(before, after, rows),
        _parts(before.parts.sample, after.parts.sample),
        _verdicts(before, after),
    ]
    return [sentence for sentence in found if sentence]


def _step(before: Compared, after: Compared, rows: Rows) -> str:
    lacking = [side.title for side in (before, after) if not side.has_data]
    if lacking:
        named = list(dict.fromkeys(lacking))
        return (
            f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'} no GPU work in a step of a usable profiler window, so "
            f"nothing can be compared{_held(before, after)}."
        )
    step = step_of(rows)
    if step is None or step.a_ns is None or step.b_ns is None:
        return "One side has no step, so the time of a step cannot be compared."
    took = f"A step took {duration(step.a_ns)}, takes {duration(step.b_ns)}"
    numbers = f"{step.steps_a} and {step.steps_b} steps)"
    if step.low_ns is not None and step.high_ns is not None and step.a_ns:
        numbers = f"95 % interval {step.low_ns / step.a_ns:+.1%} to {step.high_ns / step.a_ns:+.1%}; {numbers}"
    percent = "" if step.ratio is None else f" by {abs(step.ratio - 1):.1%}"
    match step.change:
        case "slower" | "faster":
            return f"{took}: {step.change}{percent} ({numbers}."
        case "unsure":
            return f"{took} ({numbers}: too few steps to tell a change from chance, six a side give an interval."
        case "same":
            held = step.low_ns is not None and step.high_ns is not None and step.low_ns <= 0 <= step.high_ns
            why = (
                "no difference beyond noise"
                if held
                else f"less than {SMALLEST_EFFECT:.0%} apart, as two runs of one code are"
            )
            return f"{took}: {why} ({numbers}."
    slowest = f"{duration(step.slowest_a_ns)} to {duration(step.slowest_b_ns)}"
    return f"{took}: the ranks' median stayed, the slowest rank's step went from {slowest} ({numbers}."


def _held(before: Compared, after: Compared) -> str:
    """What there is instead."""
    held = [
        f"{side.side.job}@{side.side.attempt} has the steps {side.windows.first_step} to {side.windows.last_step}"
        for side in (before, after)
        if not side.has_data and side.side.steps is not None and side.windows.first_step is not None
    ]
    return f"; {', '.join(held)}" if held else "; annotq status says what was loaded"


def _counts(before: Compared, after: Compared, rows: Rows) -> str:
    if not before.has_data or not after.has_data:
        return ""
    regions = [row for row in rows if row.key[0] != "step"]
    if not regions:
        return "Neither side has a region or a judged collective, so only the step is compared."
    counts = Counter(row.change for row in regions)
    both = len(regions) - counts["new"] - counts["vanished"]
    lone = f"{counts['new']} new, {counts['vanished']} vanished"
    if not both:
        return f"The sides share no region: {lone}, and nothing but the step can be compared."
    if counts["same"] == len(regions):
        return (
            f"All {both} regions and transfers, the same names on both sides, are the same: no difference beyond noise."
        )
    told = ", ".join(f"{counts[word]} {word}" for word in WORDS[:6] if counts[word])
    lone = lone if counts["new"] + counts["vanished"] else "none is new or vanished"
    return f"Of {both} regions and transfers on both sides: {told}; {lone}."


def _largest(before: Compared, after: Compared, rows: Rows) -> str:
    if not before.has_data or not after.has_data:
        return ""
    regions = [row for row in rows if row.key[0] != "step" and row.change in CHANGED]
    lost = [row for row in regions if _effect(row) > 0]
    gained = [row for row in regions if _effect(row) < 0]
    told = []
    if lost:
        told.append(f"most time is lost in {', '.join(map(_told, lost[:NAMED]))}")
    if gained:
        told.append(f"most is gained in {', '.join(map(_told, gained[:NAMED]))}")
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _effect(row: Change[Key]) -> float:
    """What it is ranked by, with its sign."""
    if row.change.endswith("on some ranks"):
        return (row.slowest_b_ns or 0) - (row.slowest_a_ns or 0)
    return row.difference_ns


def _told(row: Change[Key]) -> str:
    name = short_name(row.key)
    if row.change.endswith("on some ranks"):
        return f"{name} on its slowest rank ({duration(row.slowest_a_ns)} to {duration(row.slowest_b_ns)})"
    if row.change in ("new", "vanished"):
        return f"{name} ({row.change}, {duration(row.a_ns if row.b_ns is None else row.b_ns)} a step)"
    interval = f", {signed_duration(row.low_ns)} to {signed_duration(row.high_ns)}" if row.low_ns is not None else ""
    text = f"{signed_duration(row.difference_ns)} a step{interval}"
    slowest = slowest_difference(row)
    if slowest is not None and slowest * row.difference_ns < 0 and slowest_counts(row):
        text += f", but its slowest rank went from {duration(row.slowest_a_ns)} to {duration(row.slowest_b_ns)}"
    return f"{name} ({text})"


def slowest_difference(row: Change[Key]) -> float | None:
    """Of the slowest rank, in ns; None where a side lacks it."""
    if row.slowest_a_ns is None or row.slowest_b_ns is None:
        return None
    return row.slowest_b_ns - row.slowest_a_ns


def slowest_counts(row: Change[Key]) -> bool:
    """Whether the slowest rank's time changed by as much as diff would name."""
    difference = slowest_difference(row)
    return difference is not None and abs(difference) >= SLOWEST_EFFECT * (row.slowest_a_ns or 0)


def mean_parts(rows: Sequence[RankParts]) -> dict[str, float]:
    """The mean over the ranks, by column of PARTS and for period_ns; empty without rows."""
    columns = ["period_ns", *(column for _, column in PARTS)]
    return {column: fmean(getattr(row, column) for row in rows) for column in columns} if rows else {}


def _parts(before: Sequence[RankParts], after: Sequence[RankParts]) -> str:
    a, b = mean_parts(before), mean_parts(after)
    if not a or not b:
        return ""
    told = ", ".join(f"{name} {signed_duration(b[column] - a[column])}" for name, column in PARTS)
    return (
        f"On average over ranks and steps a step changed by {signed_duration(b['period_ns'] - a['period_ns'])}: {told}."
    )


def _verdicts(before: Compared, after: Compared) -> str:
    sides = [("before", before), ("after", after)]
    if before.judged is after.judged:
        sides = [(f"the whole attempt {before.side.job}@{before.side.attempt}", before)]
    told = []
    for word, side in sides:
        first = side.judged.sentences[0].rstrip(".") if side.judged.colour == "bad" else ""
        told.append(f"{word}: {side.judged.verdict}" + (f", {first[:1].lower()}{first[1:]}" if first else ""))
    text = "; ".join(told)
    return f"{text[:1].upper()}{text[1:]}."


def cautions(before: Compared, after: Compared) -> list[str]:
    """What else differs, or was left out: whoever reads the numbers should know it."""
    found = []
    a, b = before.receipt, after.receipt
    if len(a.ranks_seen) != len(b.ranks_seen) and before.has_data and after.has_data:
        found.append(
            f"Different numbers of ranks: {len(a.ranks_seen)} before, {len(b.ranks_seen)} after. Times are those of a rank, so "
            "regions compare only where each rank still does the same."
        )
    for word, side in (("Before", before), ("After", after)):
        if side.receipt.ranks_missing:
            seen, missing = len(side.receipt.ranks_seen), len(side.receipt.ranks_missing)
            found.append(
                f"{word}: {missing} of {seen + missing} ranks are missing; what they did is not in these numbers."
            )
    windows = [f"{side.steps_text} {word}" for word, side in (("before", before), ("after", after)) if side.steps_text]
    if windows:
        found.append(
            f"Stragglers and what is compared are told of the whole attempt, all times of the steps {' and '.join(windows)}."
        )
    found += _differing_machines(before, after)
    if (overlap := _overlap(before, after)) and before.side != after.side:
        found.append(f"Both sides hold {overlap}: what they share cannot differ.")
    if _turned(before, after):
        found.append(
            f"After ({after.title}) is earlier than before ({before.title}). If that is not meant, turn it round: "
            f"{shlex.join(['annotq', 'report', after.title, '--against', before.title])}"
        )
    return found


def _turned(before: Compared, after: Compared) -> bool:
    """Whether all of after happened before all of before."""
    one, other = before.side, after.side
    if (one.job, one.attempt) == (other.job, other.attempt):
        return bool(before.steps and after.steps) and after.steps[-1].step < before.steps[0].step
    start, end = before.windows.start_ns, after.windows.end_ns
    return start is not None and end is not None and end < start


def _differing_machines(before: Compared, after: Compared) -> list[str]:
    found = []
    a, b = before.machines, after.machines
    if a.gpus != b.gpus and a.gpus and b.gpus:
        found.append(f"Different GPUs: {', '.join(a.gpus)} before, {', '.join(b.gpus)} after.")
    for name in sorted(set(a.versions) & set(b.versions)):
        if a.versions[name] != b.versions[name]:
            found.append(
                f"Different {name.replace('_', ' ')}: {', '.join(a.versions[name])} before, {', '.join(b.versions[name])} after."
            )
    return found


def _overlap(before: Compared, after: Compared) -> str:
    one, other = before.side, after.side
    if (one.job, one.attempt) != (other.job, other.attempt):
        return ""
    steps = {row.step for row in after.steps}
    shared = [row.step for row in before.steps if row.step in steps]
    return f"{len(shared)} of the same steps ({shared[0]} to {shared[-1]})" if shared else ""
