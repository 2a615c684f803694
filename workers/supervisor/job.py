"""Runs a program of ours as a job of a Ray cluster, and stands in for it here:
`python -m workers.supervisor.job URL NAME MODULE [WORD ...]`.

It ends as the job ends, and takes the job along on SIGTERM. If it is killed, the job goes on, until the next
one of the same name stops it. The job writes its log into RATCHET_HOME, which the cluster shares with us.
"""

import asyncio
import json
import logging
import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

from ratchet.spec import deadlines
from ratchet.spec.faults import InfraFault, RatchetError, SpecError, Unavailable
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.telemetry import logs
from workers.liveness import beat_if_asked
from workers.supervisor.jobs import ENDED, JobsClient

logger = logging.getLogger(__name__)

RUNTIME_ENV_VARIABLE = "RATCHET_RUNTIME_ENV"
"""A Ray runtime environment, as JSON, for jobs and actors on a cluster whose image does not hold Ratchet."""

PYTHON_VARIABLE = "RATCHET_PYTHON"
"""The Python of jobs, as seen on the cluster; else its first `python`."""

LOOK_EVERY = 1.0


def entrypoint(name: str, module: str, words: Sequence[str]) -> str:
    """The job's shell command. $RAY_ADDRESS among the words is the cluster's own address."""
    quoted = [word if word == "$RAY_ADDRESS" else shlex.quote(word) for word in words]
    log = f'"${HOME_VARIABLE}"/logs/{shlex.quote(name)}.log'
    return f'exec "${{{PYTHON_VARIABLE}:-python}}" -m {module} {" ".join(quoted)} >> {log} 2>&1'


def runtime_env(home: Home) -> dict[str, Any]:
    """Raises SpecError if RATCHET_RUNTIME_ENV is not a JSON object."""
    try:
        chosen = dict(json.loads(os.environ.get(RUNTIME_ENV_VARIABLE, "{}")))
    except (ValueError, TypeError) as error:
        raise SpecError(f"{RUNTIME_ENV_VARIABLE} is not a JSON object: {error}") from None
    variables = {HOME_VARIABLE: str(home.root)}
    if python := os.environ.get(PYTHON_VARIABLE):
        variables[PYTHON_VARIABLE] = python
    return chosen | {"env_vars": {**chosen.get("env_vars", {}), **variables}}


async def run(url: str, name: str, module: str, words: Sequence[str]) -> int:
    """The exit code: 0 if the job succeeded or was stopped by us. Raises RatchetError if it cannot start."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    home = Home()
    beat = asyncio.create_task(beat_if_asked())
    async with JobsClient(url) as jobs:
        title = f"ratchet-{home.tag}-{name}"
        for predecessor in await jobs.unfinished(title):
            logger.warning("stopping job %s, left by a predecessor", predecessor)
            await _stop(jobs, predecessor)
        job = f"{title}-{uuid.uuid4().hex[:8]}"
        await jobs.submit(job, entrypoint(name, module, words), runtime_env(home))
        logger.info("submitted job %s to %s", job, url)
        code = await _follow(jobs, job, stopped)
    beat.cancel()
    return code


async def _follow(jobs: JobsClient, job: str, stopped: asyncio.Event) -> int:
    while not stopped.is_set():
        try:
            status, message = await jobs.status(job)
        except Unavailable as error:  # how long to bear that is the supervisor's to say
            logger.warning("%s", error)
            status, message = "", ""
        if status in ENDED:
            # Its log is in RATCHET_HOME; only what kept it from getting that far is said here.
            logger.info("job %s ended: %s: %s", job, status, " / ".join(message.splitlines()[:2]))
            return 0 if status == "SUCCEEDED" else 1
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await stopped.wait()
        except TimeoutError:
            continue
    await _stop(jobs, job)
    return 0


async def _stop(jobs: JobsClient, job: str) -> None:
    await jobs.stop(job)
    deadline = time.monotonic() + deadlines.STOP_GRACE
    while (await jobs.status(job))[0] not in ENDED:
        if time.monotonic() > deadline:
            raise InfraFault(f"job {job} does not stop within {deadlines.STOP_GRACE:.0f} s")
        await asyncio.sleep(LOOK_EVERY / 4)


def main() -> None:
    url, name, module, *words = sys.argv[1:]
    logs.configure("job")
    try:
        sys.exit(asyncio.run(run(url, name, module, words)))
    except RatchetError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
