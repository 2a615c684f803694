"""Connections to Postgres that never wait for ever, whatever the server does."""

import math
import select
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import OperationalError
from sqlalchemy.exc import DisconnectionError

from ratchet.spec import deadlines

Value = TypeVar("Value")


class Connection(psycopg.Connection[Any]):
    """A server ends a statement that takes too long. One that is frozen, or whose network is gone, does not:
    then this side gives up, and closes the connection."""

    patience_s: float = deadlines.STORE_BUSY

    def wait(self, gen: PQGen[Value], interval: float = 0.1, timeout: float | None = None) -> Value:
        try:
            return super().wait(gen, interval, self.patience_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as error:  # pyright: ignore[reportPrivateUsage]
            if timeout is not None:
                raise
            self.close()
            raise OperationalError(f"the server has been silent for {self.patience_s:g} s") from error


_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def drop_if_gone(connection: Connection, _record: object, _proxy: object) -> None:
    """Let the pool replace a connection whose server hung up meanwhile, as one that was restarted did. Costs
    no round trip, and does not wait for a server that is silent."""
    poll = select.poll()
    try:
        poll.register(connection.fileno(), _HUNG_UP)
    except psycopg.OperationalError as error:
        raise DisconnectionError from error
    if poll.poll(0):
        raise DisconnectionError


def connect(*args: Any, busy_s: float, statement_s: float, **options: Any) -> Connection:
    """A connection whose locks are waited for `busy_s` and whose statements end after `statement_s`."""
    settings = {
        # A little less than for a whole statement, so that it is the lock that is named.
        "lock_timeout": f"{busy_s * 900:.0f}",
        "statement_timeout": f"{statement_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{deadlines.STORE_IDLE * 1000:.0f}",
        "application_name": "ratchet",
    }
    given = str(options.pop("options", ""))
    flags = " ".join([*(f"-c {name}={value}" for name, value in settings.items()), given]).strip()
    options.setdefault("connect_timeout", max(1, math.floor(busy_s)))
    connection = Connection.connect(*args, options=flags, **options)
    connection.patience_s = statement_s + deadlines.STORE_SILENT
    return connection
