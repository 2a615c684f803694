"""The table of rows: what is struck, how, and at which moment. `table.yaml` says it, this reads it."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from signal import SIGKILL, SIGSTOP, Signals
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("table.yaml")

SYNCHRONOUS = "synchronous"
MOMENTS_A_VICTIM, VICTIMS_A_MOMENT = 3, 2
LEAST_KILLS, LEAST_QUICK_KILLS = 60, 12


class Victim(StrEnum):
    """What can be struck: a process, or something that every process stands on."""

    API = "api"
    CONTROL_WORKER = "control-worker"
    TEMPORAL = "temporal"
    GCS = "gcs"
    HEAD = "head"
    SESSION_WORKER = "session-worker"
    SESSION_HOST = "session-host"
    CONDUCTOR = "conductor"
    TRAINER = "trainer"
    GENERATOR = "generator"
    DATA_PLANE = "data-plane"
    TQ_CONTROLLER = "tq-controller"
    TQ_STORAGE = "tq-storage-0"
    STORE_LOCKED = "store-locked"
    """Another process holds the store's write lock."""
    STORE_READONLY = "store-readonly"
    """Nothing that the control worker writes reaches the store."""
    DISK_FULL = "disk-full"
    """Nothing that the trainer writes reaches the disk."""

    @property
    def is_process(self) -> bool:
        return self not in (Victim.STORE_LOCKED, Victim.STORE_READONLY, Victim.DISK_FULL)


class Reached(BaseModel):
    """A failpoint, and which passing of it in its process counts; None: the next one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    failpoint: str
    pass_: Annotated[int | None, Field(alias="pass")] = None

    def action(self, what: str) -> str:
        return f"{self.pass_} {what}" if self.pass_ else what


class Moment(BaseModel):
    """When something is struck."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    means: str
    at: Reached | None = None
    """Whoever comes here is held until the victim was struck. None: a time that the seed chooses."""
    after: Reached | None = None
    """`at` does not count before this was passed."""
    settings: tuple[str, ...] = ()
    """What the run's spec needs, so that there is such a moment."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow."""

    victim: Victim
    moment: str
    signal: Signals = SIGKILL
    """Of processes."""

    @property
    def label(self) -> str:
        """The victim, and how, unless it was killed."""
        return f"{self.victim}, stopped" if self.signal is SIGSTOP else self.victim.value

    def __str__(self) -> str:
        verb = {SIGKILL: "kill ", SIGSTOP: "stop "}[self.signal]
        return f"{verb if self.victim.is_process else ''}{self.victim} at {self.moment}"


@dataclass(frozen=True, slots=True)
class Row:
    """A run, and the blows it takes, one after the other."""

    strikes: tuple[Strike, ...]
    kind: str = SYNCHRONOUS
    """Of run."""

    def __str__(self) -> str:
        strikes = ", ".join(map(str, self.strikes))
        return strikes if self.kind == SYNCHRONOUS else f"{self.kind}: {strikes}"

    @property
    def slug(self) -> str:
        """For a run's id."""
        kind = "" if self.kind == SYNCHRONOUS else f"{self.kind}-"
        words = "-".join(str(strike).replace(" at ", "-").replace(" ", "-") for strike in self.strikes)
        return (kind + words.removeprefix("kill-").replace("-kill-", "-"))[:50].rstrip("-")


class _Run(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    settings: tuple[str, ...]


class Kind(BaseModel):
    """A kind of run, beside the synchronous one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: tuple[str, ...]
    exact: bool
    """Whether it ends in the bits of one that nobody touched. Its prompts are counted in any case."""
    moments: dict[str, Moment] = {}
    """Those that are elsewhere in it."""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    run: _Run
    kinds: dict[str, Kind]
    moments: dict[str, Moment]
    quick: tuple[str, ...]
    full: tuple[str, ...]
    negative_control: str


@dataclass(frozen=True, slots=True)
class Table:
    """Everything there is to do."""

    recipe: str
    settings: tuple[str, ...]
    """Of every run."""
    kinds: dict[str, Kind]
    moments: dict[str, Moment]
    quick: tuple[Row, ...]
    rows: tuple[Row, ...]
    """The quick ones too."""
    negative_control: Row

    def settings_of(self, row: Row) -> list[str]:
        more = [setting for strike in row.strikes for setting in self.moment(row, strike).settings]
        own = () if row.kind == SYNCHRONOUS else self.kinds[row.kind].settings
        return [*self.settings, *own, *dict.fromkeys(more)]

    def moment(self, row: Row, strike: Strike) -> Moment:
        own = {} if row.kind == SYNCHRONOUS else self.kinds[row.kind].moments
        return own.get(strike.moment) or self.moments[strike.moment]

    def is_exact(self, kind: str) -> bool:
        return kind == SYNCHRONOUS or self.kinds[kind].exact


def load_table(path: Path = FILE) -> Table:
    """Read it. Raises ValueError for a row that does not parse."""
    file = _File.model_validate(yaml.safe_load(path.read_text()))
    quick = tuple(parse_row(line, file.moments, file.kinds) for line in file.quick)
    return Table(
        file.run.recipe,
        file.run.settings,
        file.kinds,
        file.moments,
        quick,
        quick + tuple(parse_row(line, file.moments, file.kinds) for line in file.full),
        parse_row(file.negative_control, file.moments, file.kinds),
    )


def parse_row(line: str, moments: Iterable[str], kinds: Collection[str] = ()) -> Row:
    """`[kill|stop] VICTIM at MOMENT`, several with commas between them, after `KIND: ` for a run that is not
    synchronous. Raises ValueError."""
    kind, colon, rest = line.partition(": ")
    if colon and kind not in kinds:
        raise ValueError(f"{line!r}: there is no kind of run {kind!r}")
    kind, line = (kind, rest) if colon else (SYNCHRONOUS, line)
    strikes: list[Strike] = []
    for text in line.split(","):
        match = re.fullmatch(r"\s*(?:(kill|stop) )?([a-z0-9-]+) at ([a-z0-9-]+)\s*", text)
        if match is None:
            raise ValueError(f"{text.strip()!r} is not `[kill|stop] VICTIM at MOMENT`")
        verb, victim, moment = match.groups()
        if victim not in set(Victim):
            raise ValueError(f"{text.strip()!r}: there is no victim {victim}")
        if moment not in set(moments):
            raise ValueError(f"{text.strip()!r}: there is no moment {moment}")
        if (verb is not None) != Victim(victim).is_process:
            raise ValueError(f"{text.strip()!r}: processes are killed or stopped, the rest just happens")
        number = SIGSTOP if verb == "stop" else SIGKILL
        strikes.append(Strike(Victim(victim), moment, number))
    return Row(tuple(strikes), kind)


def kills(rows: Iterable[Row]) -> int:
    return sum(len(row.strikes) for row in rows)


def gaps(table: Table) -> list[str]:
    """What the table owes: every victim in enough moments, every moment with enough victims, enough kills."""
    moments_of: defaultdict[str, set[str]] = defaultdict(set)
    victims_at: defaultdict[str, set[str]] = defaultdict(set)
    for strike in (strike for row in table.rows for strike in row.strikes):
        moments_of[strike.victim].add(strike.moment)
        victims_at[strike.moment].add(strike.victim)
    found = [
        f"{victim} is struck in {len(moments_of[victim])} moments, not {MOMENTS_A_VICTIM}"
        for victim in Victim
        if len(moments_of[victim]) < MOMENTS_A_VICTIM
    ]
    found += [
        f"{moment} has {len(victims_at[moment])} victims, not {VICTIMS_A_MOMENT}"
        for moment in table.moments
        if len(victims_at[moment]) < VICTIMS_A_MOMENT
    ]
    for what, rows, least in (
        ("the table", table.rows, LEAST_KILLS),
        ("--quick", table.quick, LEAST_QUICK_KILLS),
    ):
        if kills(rows) < least:
            found.append(f"{what} has {kills(rows)} kills, not {least}")
    return found


def chosen(rows: Sequence[Row], victim: str | None, name: str | None) -> list[Row]:
    """Those of `rows` that strike the victim, and that have `name` in their own."""
    return [
        row
        for row in rows
        if (victim is None or any(strike.victim == victim for strike in row.strikes))
        and (name is None or name in str(row))
    ]
