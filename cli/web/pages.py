"""The small pages: the list of jobs, the login, and sentences where something is not to be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from annotq.cli.html.document import document
from annotq.cli.web.job_list import MOST_JOBS, JobRow, jobs_statement
from annotq.cli.web.job_urls import Asked, job_url

LIST_SECONDS = 10
WAITING_SECONDS = 3
_VERDICTS = {
    "straggler": ("STRAGGLER", "bad"),
    "imbalance": ("IMBALANCE", "bad"),
    "none": ("no straggler", "good"),
    "inconclusive": ("inconclusive", ""),
}
_MOST_CHOICES = 50
_LONGEST_CHOICE = 40  # it makes its list as wide


@dataclass(frozen=True)
class Line:
    """A row of the list, in words."""

    name: str
    url: str
    attempt: int
    state: str
    alarming: bool
    ranks: str
    incomplete: bool
    steps: str
    last_step: str
    verdict: str
    tone: str
    verdict_of_before: bool
    no_verdict: str
    sign: str
    when: str


@dataclass(frozen=True)
class Choice:
    """A job attempt to compare."""

    value: str
    text: str


def jobs_page(
    rows: Sequence[JobRow],
    verdicts: Mapping[tuple[str, int], tuple[str, bool]],
    now_ns: int,
    endpoint: str,
    may_leave: bool,
) -> str:
    """The list of jobs. verdicts: by job and attempt, with whether it is of the newest data; not known for all of them."""
    shown = rows[:MOST_JOBS]
    lines = [_line(row, verdicts.get((row.job, row.attempt)), now_ns) for row in shown]
    some = (
        f"The newest {MOST_JOBS} job attempts; annotq jobs lists all" if len(rows) > MOST_JOBS else _counted(len(rows))
    )
    body = _template(
        "jobs.html",
        rows=lines,
        shown=some,
        choices=[Choice(f"{row.attempt}/{row.job}", _short(row)) for row in shown[:_MOST_CHOICES]],
        endpoint=endpoint,
        sql=jobs_statement().filled(),
        may_leave=may_leave,
    )
    running = any(row.goes_on(now_ns) for row in rows)
    lead = f"of the collector at {endpoint}"
    return document("Jobs", body, lead=lead, refresh_seconds=LIST_SECONDS if running else None, forms=True)


def login_page(wrong: bool, after: str) -> str:
    """Asks for the token; `after`: where to go then."""
    return document("This collector wants a token", _template("login.html", wrong=wrong, next=after), forms=True)


def message_page(title: str, message: str, hint: str = "") -> str:
    """Something is not to be had: one sentence, and what to do."""
    return document(title, _template("message.html", message=message, hint=hint), home="/")


def waiting_page(asked: Asked) -> str:
    """A page takes its time; this one asks for it again."""
    what = f"the report of {asked.job}"
    if asked.against is not None:
        what = f"the comparison of {asked.job} with {asked.against}"
    body = _template("message.html", message=f"annotq is making {what}.", hint="It appears here when it is done.")
    return document("Being made", body, refresh_seconds=WAITING_SECONDS, home="/")


def _line(row: JobRow, verdict: tuple[str, bool] | None, now_ns: int) -> Line:
    word, tone = _VERDICTS.get(verdict[0], (verdict[0], "")) if verdict else ("", "")
    last_ns = row.seen_ns if row.seen_ns is not None else row.window_end_ns
    return Line(
        name=row.job or "(no name)",
        url=job_url(Asked(row.job, row.attempt)),
        attempt=row.attempt,
        state=_state(row, now_ns),
        alarming=bool(row.gone) or row.state(now_ns) == "silent",
        ranks=f"{row.ranks_seen:,}" + ("" if row.ranks_expected is None else f" of {row.ranks_expected:,}"),
        incomplete=row.ranks_expected is not None and row.ranks_seen < row.ranks_expected,
        steps=_steps(row),
        last_step="\u2013" if row.agent_step is None else f"{row.agent_step:,}",
        verdict=word,
        tone=tone,
        verdict_of_before=verdict is not None and not verdict[1],
        no_verdict=_no_verdict(row),
        sign=_sign(row, now_ns),
        when="" if not last_ns else datetime.fromtimestamp(last_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _steps(row: JobRow) -> str:
    if row.first_step is None or row.last_step is None:
        return "\u2013"
    return f"{row.first_step:,} to {row.last_step:,}"


def _state(row: JobRow, now_ns: int) -> str:
    counts = [
        f"{number:,}\u00a0{word}"
        for number, word in (
            (row.running, "running"),
            (row.ending, "ending"),
            (row.stopped, "stopped"),
            (row.gone, "gone"),
        )
        if number
    ]
    if not row.ranks_registered:
        return "from\u00a0files"
    return ("silent: " if row.state(now_ns) == "silent" else "") + ", ".join(counts)


def _no_verdict(row: JobRow) -> str:
    if row.ranks_seen < 2:
        return "one rank alone" if row.ranks_seen else "no data yet"
    return "known once its report is made"


def _sign(row: JobRow, now_ns: int) -> str:
    if row.seen_ns is not None:
        return f"{_age(now_ns - row.seen_ns)} ago"
    if row.window_end_ns is not None:
        day = datetime.fromtimestamp(row.window_end_ns // 10**9, UTC)
        return f"window of {day:%Y-%m-%d %H:%M} UTC"
    return "none yet"


def _age(age_ns: int) -> str:
    seconds = max(0, age_ns) // 10**9
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:,} {unit}"
    return f"{seconds} s"


def _counted(number: int) -> str:
    return f"{number} job attempt" + ("" if number == 1 else "s")


def _short(row: JobRow) -> str:
    name = row.job if len(row.job) <= _LONGEST_CHOICE else f"{row.job[: _LONGEST_CHOICE - 3]}..."
    return f"{name}, attempt {row.attempt}" if row.attempt else name


def _template(name: str, **values: object) -> Markup:
    return Markup(_environment().get_template(name).render(**values))


@cache
def _environment() -> Environment:
    folder = files(__package__) / "templates"
    sources = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".html")}
    return Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
