"""Entry point of the pytest plugin: options always, fixtures where `ratchet[testing]` is installed.

pytest imports this module in every project of the environment, so it imports next to nothing itself.
"""

import importlib.util

import pytest

NEEDED = ("temporalio", "pytest_asyncio")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ratchet")
    group.addoption(
        "--temporal-address",
        metavar="HOST:PORT",
        help="use this Temporal server for ratchet_temporal instead of starting one",
    )
    group.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the command snapshots of golden histories (then review the diff)",
    )
    parser.addini("ratchet_histories", "folder of golden histories", default="tests/histories")


def pytest_configure(config: pytest.Config) -> None:
    if all(importlib.util.find_spec(name) for name in NEEDED):
        config.pluginmanager.import_plugin("workers.testing.fixtures")
