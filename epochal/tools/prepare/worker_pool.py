"""Processes that encode portions, whose results come back in the portions' order.

The rules kept here: a process ends with this one, however this one ends; no more than `PENDING_BYTES` for each process
wait to be encoded or taken; one core for each process, as the library's own threads would be counted twice.
"""

import os
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import epochal
from epochal.state.errors import EpochalError, InvalidInput
from epochal.tools.prepare.chats import ChatOptions
from epochal.tools.prepare.encoding_worker import receive, send
from epochal.tools.prepare.portions import PORTION_BYTES, EncodedPortion, Portion
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.text_tokenizer import NamedTokenizer

PENDING_BYTES = 3 * PORTION_BYTES
END_TIMEOUT_S = 10.0


class WorkerLost(EpochalError):
    """A process that encodes ended unexpectedly. Start the preparation again to resume it."""


class EncodingPool:
    """Some processes that encode. Leaving the context ends them."""

    def __init__(
        self, count: int, options: PrepareOptions, tokenizer: NamedTokenizer, chat: ChatOptions | None = None
    ) -> None:
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "epochal-prepare")
        self._settings = options, tokenizer, chat

    def __enter__(self) -> Self:
        root = str(Path(epochal.__file__).resolve().parents[2])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            "TOKENIZERS_PARALLELISM": "false",
            "RAYON_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # -P: a file of the user's folder is not taken for a library's
        command = [sys.executable, "-P", "-m", "epochal.tools.prepare.encoding_worker"]
        try:
            for _ in range(self._count):
                pipe = subprocess.PIPE
                # Ctrl-C goes to this process alone: a group of its own
                process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, process_group=0)
                self._processes.append(process)
                self._free.put(process)
            for process in self._processes:
                assert process.stdin is not None
                send(process.stdin, self._settings)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, BrokenPipeError):
                raise WorkerLost(_lost(self._processes[0])) from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # it has nothing to save
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.wait(END_TIMEOUT_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue

    def encoded(self, portions: Iterable[Portion]) -> Iterator[tuple[Portion, EncodedPortion]]:
        """Yield each portion with its tokens, in their order.

        Raises:
            WorkerLost: a process ended: killed, or out of memory.
            InvalidInput: the tokenizer cannot be used.
        """
        pending: deque[tuple[Portion, Future[EncodedPortion], int]] = deque()
        held = 0
        for portion in portions:
            size = max(portion.size_bytes, PORTION_BYTES // 4)
            while pending and (held + size > PENDING_BYTES * self._count or pending[0][1].done()):
                done, future, done_size = pending.popleft()
                yield done, future.result()
                held -= done_size
            pending.append((portion, self._threads.submit(self._encode, portion), size))
            held += size
        for done, future, _ in pending:
            yield done, future.result()

    def _encode(self, portion: Portion) -> EncodedPortion:
        if portion.form == "bad":
            return EncodedPortion()
        process = self._free.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process.stdin, portion)
            answer = receive(process.stdout)
        except (EOFError, BrokenPipeError, ValueError) as error:
            raise WorkerLost(_lost(process)) from error
        finally:
            self._free.put(process)
        if isinstance(answer, str):
            raise InvalidInput(answer)
        assert isinstance(answer, EncodedPortion)
        return answer


def _lost(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        code = 0
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    memory = ": did the machine run out of memory? --workers fewer needs less" if code == -signal.SIGKILL else ""
    return f"a process that encodes ended with {how}{memory}; the same command resumes where this one stopped"
