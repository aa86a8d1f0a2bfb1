"""The processor time of a server is that of all its processes, also of workers that it forks later."""

import subprocess
import sys

import pytest

from benchmarks.process_usage import cpu_s

WORK_S = 0.2
FORKS = f"""
import os, sys, time
sys.stdin.readline()
worker = os.fork()
if not worker:
    while time.process_time() < {WORK_S}:
        pass
    if ENDS:
        os._exit(0)
if worker and ENDS:
    os.waitpid(worker, 0)
if ENDS or not worker:
    print(flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("ends", [False, True])
def test_processor_time_is_that_of_workers_forked_later(*, ends: bool) -> None:
    code = FORKS.replace("ENDS", str(ends))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        before_s = cpu_s(server.pid)
        server.stdin.write(b"\n")
        server.stdin.flush()
        server.stdout.readline()
        assert cpu_s(server.pid) - before_s >= WORK_S / 2
        server.stdin.close()
