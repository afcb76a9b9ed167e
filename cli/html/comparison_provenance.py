"""What is compared: both sides line by line, with what differs marked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from annotq.cli.html.comparison_sides import Compared, provenance_statements
from annotq.cli.html.figure import Figure
from annotq.cli.html.rendering import count, duration, render
from annotq.cli.time_columns import utc_text
from annotq.collector.receipt import Receipt, ranges

# Lines that are shown even where they are the same on both sides.
ALWAYS = ("job", "attempt", "steps that are timed", "ranks", "GPU", "clock error", "graph kernels with a region")
# Hosts named one by one.
MOST_HOSTS = 6


@dataclass(frozen=True)
class Line:
    """differs: worth a mark. What names the side itself (job, steps, time) always differs and is not marked."""

    name: str
    before: str
    after: str
    differs: bool


def provenance_figure(before: Compared, after: Compared) -> Figure:
    statements = [statement for side in (before, after) for statement in provenance_statements(side.side)]
    lines = _lines(before, after)
    first = [line for line in lines if line.differs or line.name in ALWAYS]
    rest = [line for line in lines if line not in first]
    # What is the same is folded away, unless it may change without being marked.
    unmarked = [line for line in rest if line.before != line.after]
    first += unmarked
    rest = [line for line in rest if line not in unmarked]
    body = render("comparison_provenance.html", first=first, rest=rest, notes=_notes(before, after))
    return Figure(
        "sides", "What is compared", "What differs besides the code may be what made the difference.", body, statements
    )


def _lines(before: Compared, after: Compared) -> list[Line]:
    marked: list[tuple[str, Callable[[Compared], str]]] = [
        ("ranks", lambda side: _ranks(side.receipt)),
        ("hosts", lambda side: str(len(side.machines.hosts)) if side.machines.hosts else "not known"),
        ("GPU", lambda side: ", ".join(side.machines.gpus) or "not known"),
        *((_version_name(name), _version(name)) for name in sorted(before.machines.versions | after.machines.versions)),
        ("steps that are timed", lambda side: count(len(side.steps))),
        ("steps come from", lambda side: side.windows.step_source or "no window"),
        ("node ids", lambda side: ", ".join(side.receipt.encodings) or "none"),
        ("clocks", lambda side: ", ".join(side.clock.methods) or "none"),
        ("clock error", lambda side: _clock_error(side.receipt)),
        ("graph kernels with a region", lambda side: _matched(side.receipt)),
        ("traces not complete", lambda side: f"{side.receipt.incomplete} of {side.receipt.traces}"),
    ]
    plain: list[tuple[str, Callable[[Compared], str]]] = [
        ("job", lambda side: side.side.job),
        ("attempt", lambda side: str(side.side.attempt)),
        ("steps asked for", lambda side: side.steps_text or "all"),
        ("host names", lambda side: _hosts(side.machines.hosts)),
        ("profiler windows", lambda side: f"{count(side.windows.traces)} (one per rank and window)"),
        ("recorded (UTC)", _recorded),
        ("GPU events", lambda side: count(side.receipt.gpu_events)),
        (
            "kernels unannotated, orphan",
            lambda side: f"{count(side.receipt.unannotated)}, {count(side.receipt.orphan)}",
        ),
        ("events outside of steps", lambda side: count(side.receipt.outside_steps)),
    ]
    lines = [Line(name, text(before), text(after), False) for name, text in plain]
    lines += [Line(name, text(before), text(after), text(before) != text(after)) for name, text in marked]
    order = ["job", "attempt", "steps asked for", "steps that are timed", "ranks", "hosts", "host names", "GPU"]
    return sorted(lines, key=lambda line: order.index(line.name) if line.name in order else len(order))


def _ranks(receipt: Receipt) -> str:
    of = f" of {receipt.ranks_expected}" if receipt.ranks_expected else ""
    missing = f", missing: {ranges(receipt.ranks_missing)}" if receipt.ranks_missing else ""
    return f"{len(receipt.ranks_seen)}{of}{missing}"


def _hosts(hosts: tuple[str, ...]) -> str:
    named = ", ".join(hosts[:MOST_HOSTS]) or "not known"
    return f"{named} and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else named


def _version_name(name: str) -> str:
    return name.replace("_", " ")


def _version(name: str) -> Callable[[Compared], str]:
    return lambda side: ", ".join(side.machines.versions.get(name, ())) or "not known"


def _recorded(side: Compared) -> str:
    start, end = side.windows.start_ns, side.windows.end_ns
    if start is None or end is None:
        return "not known"
    return f"{(utc_text(start) or '')[:19]}, {duration(end - start)}"


def _clock_error(receipt: Receipt) -> str:
    return "not known" if receipt.clock_error_ns is None else duration(receipt.clock_error_ns)


def _matched(receipt: Receipt) -> str:
    if not receipt.graph_events:
        return "no graph kernel"
    return f"{receipt.matched:,} of {receipt.graph_events:,} ({receipt.matched / receipt.graph_events:.1%})"


def _notes(before: Compared, after: Compared) -> list[str]:
    sides = [before] if after is before else [before, after]
    return [f"{side.title}: {note}" for side in sides for note in side.receipt.notes]
