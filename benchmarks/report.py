"""What every benchmark has in common: its arguments, a table for people, and one JSON line last."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows --quick and --json-only."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: under a minute")
    parser.add_argument("--json-only", action="store_true", help="print the JSON line and nothing else")
    return parser


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, between two of them linearly interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True, slots=True)
class Report:
    """Where a benchmark says what it does and what it found. Progress goes to stderr, the rest to stdout."""

    json_only: bool
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    """Of the minute before: numbers taken on a busy machine are worth little."""

    def progress(self, text: str) -> None:
        if not self.json_only:
            print(text, file=sys.stderr, flush=True)

    def publish(
        self,
        title: str,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        result: Mapping[str, object],
    ) -> None:
        """Print the table and, as the last line, the result. Raises ValueError if a number is not finite."""
        machine = {"cores": os.cpu_count(), "load_before": round(self.load_before, 2)}
        line = json.dumps({**result, **machine}, allow_nan=False)
        if not self.json_only:
            print(f"{title}, on {machine['cores']} cores at a load of {machine['load_before']}")
            print(table(header, rows))
        print(line, flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be: the first to the left, numbers to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def aligned(line: Sequence[str]) -> str:
        first, *rest = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(["", first, *rest])

    return "\n".join(aligned(line) for line in lines)
