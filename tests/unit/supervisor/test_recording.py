"""A process is executed again as it was started, writing where it wrote."""

import os
import subprocess
from pathlib import Path

from workers.supervisor.recording import Recording


def test_a_process_that_writes_into_a_pipe_and_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            ["cat", "-"],
            cwd=tmp_path,
            env={"A": "b"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"up\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"up\n", "its arguments can be read only once it runs"
        recorded = Recording.of(process.pid)
        process.stdin.close()
    assert recorded.argv == ["cat", "-"]
    assert recorded.environment == {"A": "b"}
    assert recorded.folder == tmp_path
    assert recorded.output == Path(os.devnull), "the pipe was its own"
    assert recorded.errors == log
