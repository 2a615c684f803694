"""Numbers as people read them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3m 05s`, `2h 10m`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def size(num_bytes: float) -> str:
    """`812 B`, `7.3 MB`, `1.6 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line of at most `width` characters, from its smallest to its largest value; longer
    series are averaged down, so that the whole run stays in sight."""
    if not values:
        return ""
    columns = min(width, len(values))
    cuts = [index * len(values) // columns for index in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[3] * columns
    return "".join(
        _BARS[min(int((mean - low) / (high - low) * len(_BARS)), len(_BARS) - 1)] for mean in means
    )


def measured(value: float | None, form: str) -> str:
    """A measurement, or `?` where it is missing or was not finite."""
    return "?" if value is None else format(value, form)


def known(values: Iterable[float | None]) -> list[float]:
    """The measurements that there are."""
    return [value for value in values if value is not None]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
