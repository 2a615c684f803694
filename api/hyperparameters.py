"""Hyperparameters that change while a run goes on: checked before its workflow is asked."""

from collections.abc import Iterator, Mapping

from api.problems import BadRequest, InvalidValues
from ratchet.spec.faults import SpecError
from ratchet.spec.hyperparameters import with_values
from ratchet.spec.loading import spec_from_mapping
from ratchet.spec.problems import SpecProblem
from ratchet.store import RunRecord


def check_values(record: RunRecord, values: Mapping[str, float]) -> None:
    """Raises InvalidValues with a problem for every key that cannot have its value."""
    if not values:
        raise BadRequest("values: nothing to set; name at least one key, like policy.optimizer.lr")
    if problems := list(_problems(record, values)):
        raise InvalidValues(problems)


def _problems(record: RunRecord, values: Mapping[str, float]) -> Iterator[SpecProblem]:
    spec = spec_from_mapping(record.spec)
    for key, value in values.items():
        try:
            with_values(spec, {key: value})
        except SpecError as error:
            found = str(error).removeprefix(key).removeprefix(":").strip()
            yield SpecProblem(key=key, found=found)
