"""Journals of runs, for reading: an index of each, kept for a while and brought up to date when asked."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.environments.protocol import Environment
from ratchet.environments.registry import create_environment
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import Home
from ratchet.spec.loading import spec_from_mapping
from ratchet.store import RunRecord

if TYPE_CHECKING:  # brings pyarrow
    from ratchet.journal.reader import JournalIndex
    from ratchet.journal.records import Tombstone
    from ratchet.rollouts.group import PromptGroup

logger = logging.getLogger(__name__)

KEPT = 16
"""Runs whose journals somebody looked at last."""


@dataclass(frozen=True, slots=True)
class Page:
    groups: "list[PromptGroup]"
    """By key."""
    dropped: "list[Tombstone]"
    last: int | None
    """The last key that was looked at; None: there are no more."""


class _Journal:
    def __init__(self, home: Home, record: RunRecord) -> None:
        self.lock = threading.Lock()
        self._folder = home.run_folder(record.id) / "journal"
        self._index: JournalIndex | None = None
        self._environment = _environment(record)

    def page(self, keys: range, limit: int) -> Page:
        index = self._fresh()
        tombstones = index.tombstones()
        here = sorted(
            {key for key in index.keys() if key in keys} | {key for key in tombstones if key in keys}
        )
        shown = here[:limit]
        groups = index.groups(shown)
        return Page(
            groups=[groups[key] for key in shown if key in groups],
            dropped=[tombstones[key] for key in shown if key in tombstones],
            last=shown[-1] if len(here) > limit else None,
        )

    def group(self, key: int) -> "PromptGroup | None":
        return self._fresh().groups([key]).get(key)

    def prompts(self, groups: "Sequence[PromptGroup]") -> list[str | None]:
        """What the policy read, in the environment's words."""
        return [self._prompt(group) for group in groups]

    def _prompt(self, group: "PromptGroup") -> str | None:
        if self._environment is None:
            return None
        try:
            problem = self._environment.train_problem(group.key)
        except (
            Exception
        ):  # an environment of somebody's own may raise anything; the record is shown all the same
            logger.warning("no prompt for key %d of the journal", group.key, exc_info=True)
            return None
        return problem.prompt if problem.id == group.problem_id else None

    def _fresh(self) -> "JournalIndex":
        from ratchet.journal.reader import JournalIndex

        if self._index is None:
            self._index = JournalIndex(self._folder)
        else:
            self._index.refresh()
        return self._index


class Journals:
    """Of every run. Methods block, may be called from several threads, and raise StorageFault."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Journal] = OrderedDict()

    def page(self, run: RunRecord, keys: range, limit: int) -> tuple[Page, list[str | None]]:
        """The first so many groups and dropped draws with a key in `keys`, and the prompts of the groups."""
        journal = self._journal(run)
        with journal.lock:
            page = journal.page(keys, limit)
            return page, journal.prompts(page.groups)

    def group(self, run: RunRecord, key: int) -> "tuple[PromptGroup, str | None] | None":
        """One group and its prompt; None if it is not finished."""
        journal = self._journal(run)
        with journal.lock:
            group = journal.group(key)
            return None if group is None else (group, journal.prompts([group])[0])

    def _journal(self, run: RunRecord) -> _Journal:
        with self._lock:
            journal = self._open.get(run.id) or _Journal(self._home, run)
            self._open[run.id] = journal
            self._open.move_to_end(run.id)
            if len(self._open) > KEPT:
                self._open.popitem(last=False)
            return journal


def _environment(record: RunRecord) -> Environment | None:
    """What wrote the prompts; None where it is not installed, or its data lies elsewhere."""
    try:
        spec = spec_from_mapping(record.spec)
        return create_environment(spec.environment, spec.seed)
    except RatchetError:
        return None
