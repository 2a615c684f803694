"""NIXL's progress thread, which as it comes takes a whole core of every process that has an agent.

Its Python API sets the thread's pause between two looks to 0, and Ray makes the agent, so neither can be
asked for another one. Without the thread nobody could read what this process has put.
"""

import sys
from typing import Any

PAUSE = 100
"""Microseconds. The thread then takes about 2 % of a core."""


class _Bindings:
    """NIXL's, with a configuration that keeps its pause."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        made: Any = bindings.nixlAgentConfig
        pause: Any = made.pthrDelay

        class Config(made):
            @property
            def pthrDelay(self) -> int:
                return pause.__get__(self)

            @pthrDelay.setter
            def pthrDelay(self, _: int) -> None:
                pause.__set__(self, PAUSE)

        self.nixlAgentConfig = Config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)


def rest_between_looks() -> None:
    """For agents that this process has not made yet."""
    from nixl._api import nixl_agent

    api: Any = sys.modules[nixl_agent.__module__]
    if not isinstance(api.nixlBind, _Bindings):
        api.nixlBind = _Bindings(api.nixlBind)
