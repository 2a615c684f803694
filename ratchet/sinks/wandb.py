"""Weights & Biases: one W&B run a run, with its steps as an axis of its own.

What is logged goes to a process of W&B's own, and lasts once that has ended: a *segment*. The position names
the segments that were ended; offline, one that was not is deleted when the sink is opened again, and written
anew.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ratchet.sinks.follow import SinkState
from ratchet.sinks.news import News, Point
from ratchet.spec.faults import SpecError
from ratchet.spec.reporting import WandbSpec

AXIS = "trainer/step"


class WandbSink:
    takes_back = False
    tells: tuple[type[News], ...] = (Point,)
    at_once = 500
    lasts_after_close = True
    given_up = 0

    def __init__(
        self, spec: WandbSpec, run: str, folder: Path, api_key: str | None, config: dict[str, JsonValue]
    ) -> None:
        """`folder`: of this run alone. Raises SpecError without the package."""
        try:
            import wandb  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise SpecError("metrics.wandb needs Weights & Biases: pip install 'ratchet[wandb]'") from error
        self._spec, self._run, self._folder = spec, run, folder
        self._api_key, self._config = api_key, config
        self._segments: list[str] = []
        self._points = 0
        """In ended segments."""
        self._live: Any = None
        self._logged = self._skip = 0

    def open(self, state: SinkState) -> bool:
        if self._live is not None:  # after an error: what it holds is written anew
            self._live.finish(exit_code=0)
            self._live = None
        said = state.get("segments")
        self._segments = [str(name) for name in said] if isinstance(said, list) else []
        self._points = int(str(state.get("points", 0)))
        if self._spec.mode == "offline":
            there = {path.name for path in self._folder.glob("wandb/offline-run-*")}
            if not there.issuperset(self._segments):
                self._segments, self._points = [], 0
            for stray in there.difference(self._segments):
                shutil.rmtree(self._folder / "wandb" / stray)
            return bool(self._segments) or not said
        return True

    def write(self, news: Sequence[News]) -> None:
        if self._live is None:
            self._live = self._begun()
        for point in news:
            if isinstance(point, Point):
                self._logged += 1
                if self._logged > self._skip:
                    self._live.log({**point.values, AXIS: point.step})

    def commit(self) -> None:
        return None

    def close(self, *, ended: bool) -> SinkState:  # noqa: ARG002
        if self._live is not None:
            segment = Path(self._live.dir).parent.name
            self._live.finish(exit_code=0)
            self._live = None
            self._segments.append(segment)
            self._points += self._logged
        return {"segments": [*self._segments], "points": self._points}

    def _begun(self) -> Any:
        import wandb  # pyright: ignore[reportMissingImports]

        self._folder.mkdir(parents=True, exist_ok=True)
        live = wandb.init(
            project=self._spec.project,
            entity=self._spec.entity,
            id=self._run,
            name=self._run,
            dir=str(self._folder),
            mode=self._spec.mode,
            resume="allow" if self._spec.mode == "online" else None,
            reinit="create_new",
            config=self._config,
            settings=wandb.Settings(
                api_key=self._api_key,
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                save_code=False,
            ),
        )
        live.define_metric(AXIS)
        live.define_metric("*", step_metric=AXIS)
        # Online, the service says how much it took before somebody was killed.
        self._logged, self._skip = 0, max(0, live.step - self._points) if self._spec.mode == "online" else 0
        return live
