"""A whole run on one machine, with real processes over loopback, and the checks that it worked.

One coordinator, one TCP data server and N clients are started as separate `epochal` commands. On the way one client is
killed without warning and another joins, both at given steps of the run. Meanwhile a further command evaluates every
checkpoint on text that was held out, into the run's history. Afterwards the journal is audited, and
the parameters are recomputed from checkpoint and outcomes.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from epochal.cli.options.admin_token import ADMIN_TOKEN_VARIABLE
from epochal.cli.options.shared import DATA_SERVER_TOKEN_VARIABLE
from epochal.cli.output.printing import ADMIN_TOKEN_SHOWN
from epochal.coordinator.auth.program_tokens import program_token_from
from epochal.coordinator.proof.audit import AuditReport, audit_store
from epochal.coordinator.store.files.folder import TESTNET_FOLDER
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.state_file import StateFile, dump_state, parse_state
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable, EpochalError, InvalidDocument, InvalidInput, Refused
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.requests import RunStatus
from epochal.state.phase_names import RunState
from epochal.tools.testnet.child_processes import Child, Children
from epochal.tools.testnet.demo_data import DemoData, write_demo_data
from epochal.tools.testnet.demos import demo_of
from epochal.trainers.registry import NULL
from epochal.view.figures.report_page import REPORT_NAME, write_report
from epochal.view.figures.run_record import RunRecord, read_record

HOST = "127.0.0.1"
FINISH_TIMEOUT_S = 30.0
EVALUATION_TIMEOUT_S = 60.0
"""Time limit for the evaluation of the last checkpoint, after the run has finished."""
EVALUATED_SAMPLES = 64
EVALUATION_NAME = "held-out"
DEATH_NOTICE_S = 1.0
POLL_S = 5.0
LOSS_WINDOW = 3
"""Rounds over which the first and the last loss are averaged."""
WELL_BELOW_UNIGRAM = 0.85
"""The last loss must be below this share of the data's unigram entropy."""


@dataclass(frozen=True, slots=True)
class LocalRunOptions:
    """The options of `epochal up`.

    Attributes:
        chaos: whether a client is killed and another joins on the way.
        timeout_s: the run fails if it has not finished by then.
    """

    run_dir: Path
    client_count: int = 3
    round_count: int | None = None
    trainer: str = "numpy"
    chaos: bool = True
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a local run. It passed if `problems` is empty. Losses are in nats per token.

    Attributes:
        held_out_loss_first, held_out_loss_last: of the first and the last evaluation on text that nobody trained on.
        audit: of its journal, which counts its batches and rounds.
    """

    clients: int
    epochs: int
    tokens: int
    loss_first: float | None
    loss_last: float | None
    held_out_loss_first: float | None
    held_out_loss_last: float | None
    unigram_entropy: float
    killed_at_step: int | None
    joined_at_step: int | None
    training_s: float
    wall_s: float
    audit: AuditReport
    problems: tuple[str, ...]

    def fields(self) -> dict[str, Any]:
        """Return all figures by name, those of the audit among them."""
        return asdict(self.audit) | {name: value for name, value in asdict(self).items() if name != "audit"}


Show = Callable[[RunStatus, list[str]], None]
"""Called with the status, and with notes of the interventions in the run, whenever one of them changes."""


class LocalRun:
    """A coordinator, a data server and clients on this machine. `run_dir` keeps their data, files, logs and the run.

    Args:
        options: of the run.
        show: called with the run's status.
        announce: called with the coordinator's address, as soon as it serves.
    """

    def __init__(self, options: LocalRunOptions, show: Show, announce: Callable[[str], None] = lambda _: None) -> None:
        self._options = options
        self._announce = announce
        self._demo = demo_of(options.trainer)
        self._show = show
        self._store = str(options.run_dir / TESTNET_FOLDER)
        self._started_s = time.monotonic()
        self._training_s = 0.0
        self._notes: list[str] = []
        self._is_cut_short = False
        self._killed: Child | None = None
        self._killed_at: int | None = None
        self._joined_at: int | None = None
        self._epochs: set[int] = set()
        self._clients: list[Child] = []
        self._evaluator: Child | None = None
        self._evaluations: tuple[Evaluation, ...] = ()

    async def run(self) -> Report:
        """Start everything, watch it to the end, and check the result.

        Raises:
            InvalidInput: the run directory cannot be used.
            EpochalError: something did not start or ended early, or the run did not finish in time.
        """
        await asyncio.to_thread(take_folder, self._options.run_dir, f"--run-dir {self._options.run_dir}")
        data = await asyncio.to_thread(self.prepare)
        async with Children(self._options.run_dir / "logs") as children:
            url = await self.start(children)
            training_began_s = time.monotonic()
            try:
                async with (
                    asyncio.timeout(self._options.timeout_s),
                    await CoordinatorClient.connect(url, RetryPolicy(attempts=1)) as coordinator,
                ):
                    await self._watch(children, coordinator, url)
                    self._training_s = time.monotonic() - training_began_s
                    problems = await self._await_evaluations(coordinator)
            except TimeoutError:
                raise EpochalError(f"the run did not finish within {self._options.timeout_s:.0f} s") from None
            except (CoordinatorUnreachable, Refused, InvalidDocument) as error:
                await children.started[0].wait(DEATH_NOTICE_S)  # if it ended, its own log says why
                children.check(self._killed)
                raise EpochalError(f"the coordinator does not answer as it should: {error}") from error
            problems += await self._await_clients()
        audit = await audit_store(self._store, recompute=True)
        record = replace(await read_record(self._store), audit=audit)
        problems += await self._write_report(record)
        return self._report(record, data, audit, problems)

    def _report(self, record: RunRecord, data: DemoData, audit: AuditReport, problems: list[str]) -> Report:
        """Judge what the audit found and what the loss should be."""
        first, last = ends_of_losses([row.loss for row in record.rows if row.loss is not None])
        problems += audit.problems
        if self._options.trainer != NULL:
            problems += loss_problems(first, last, None if self._is_cut_short else data.unigram_entropy)
        return Report(
            clients=len(self._clients),
            epochs=len(self._epochs),
            tokens=record.tokens,
            loss_first=first,
            loss_last=last,
            held_out_loss_first=self._evaluations[0].loss if self._evaluations else None,
            held_out_loss_last=self._evaluations[-1].loss if self._evaluations else None,
            unigram_entropy=data.unigram_entropy,
            killed_at_step=self._killed_at,
            joined_at_step=self._joined_at,
            training_s=round(self._training_s, 2),
            wall_s=round(time.monotonic() - self._started_s, 2),
            audit=audit,
            problems=tuple(problems),
        )

    async def _write_report(self, record: RunRecord) -> list[str]:
        """Leave the run's page in its folder; return why it could not be written, as sentences."""
        try:
            await asyncio.to_thread(write_report, record, self._options.run_dir / REPORT_NAME)
        except EpochalError as error:
            return [f"the report could not be written: {error.message}"]
        return []

    def prepare(self) -> DemoData:
        """Write data and files into the run directory."""
        options = self._options
        data = write_demo_data(options.run_dir / "data", held_out=options.run_dir / "held-out")
        state = self._state_file()
        (options.run_dir / "state.toml").write_text(dump_state(state), encoding="utf-8")
        for folder in ("data", "held-out"):
            data_config = {
                "dir": folder,
                "token_size": "TwoBytes",
                "seq_len": state.model.LLM.max_seq_len,
                "shuffle_seed": list(range(32)),
            }
            (options.run_dir / f"{folder}.toml").write_text(tomli_w.dumps(data_config), encoding="utf-8")
        self._notes.append(f"{data.token_count:,} bytes of Python's standard library in {data.shard_count} shards")
        return data

    def _state_file(self) -> StateFile:
        """Return the demo's state file with the options; the run begins with two thirds of the clients."""
        tables = self._demo.tables()
        config, wanted = tables["config"], self._options.round_count
        if wanted is not None:
            self._is_cut_short = wanted < config["total_steps"]
            config["total_steps"] = wanted
        config["init_min_clients"] = max(1, self._options.client_count * 2 // 3)
        tables["model"]["LLM"]["data_location"] = {"Server": f"{HOST}:{_free_port()}"}
        return parse_state(tomli_w.dumps(tables), self._demo.state_name)

    async def start(self, children: Children) -> str:
        """Start coordinator, data server and clients; return the coordinator's address."""
        directory = self._options.run_dir
        coordinator, url = await children.start_server(
            "coordinator",
            *("coordinator", str(directory / "state.toml"), "--store", self._store),
            *("--host", HOST, "--port", "0"),
        )
        self._announce(url)
        environment = {DATA_SERVER_TOKEN_VARIABLE: await program_token_from(self._store, "data-server")}
        await children.start_server(
            "data-server", *("data-server", str(directory / "data.toml"), "--coordinator", url), environment=environment
        )
        for _ in range(self._options.client_count):
            await self.start_client(children, url)
        if self._options.trainer != NULL:
            self._evaluator = await self._start_evaluator(children, url, coordinator)
        return url

    async def _start_evaluator(self, children: Children, url: str, coordinator: Child) -> Child:
        (token,) = (line.removeprefix(ADMIN_TOKEN_SHOWN) for line in coordinator.printed if ADMIN_TOKEN_SHOWN in line)
        return await children.start(
            "evaluator",
            *("evaluate", url, "--follow", "--name", EVALUATION_NAME, "--samples", str(EVALUATED_SAMPLES)),
            *("--data", str(self._options.run_dir / "held-out.toml")),
            environment={ADMIN_TOKEN_VARIABLE: token},
            log_format=(),
        )

    async def start_client(self, children: Children, url: str) -> None:
        """Start one more client, named `client-N`."""
        name = f"client-{len(self._clients) + 1}"
        environment = self._demo.client_environment(self._options.client_count)
        arguments = ("client", url, "--own-run", "--name", name, "--trainer", self._options.trainer)
        self._clients.append(await children.start(name, *arguments, environment=environment))

    async def _watch(self, children: Children, coordinator: CoordinatorClient, url: str) -> None:
        feed = DocumentFeed(coordinator)
        while True:
            document = await feed.poll(POLL_S)
            if document is not None and document.run_state is RunState.ROUND_TRAIN:
                self._epochs.add(document.epoch)
                await self._make_chaos(children, document, url)
            status = await coordinator.status()
            self._show(status, self._notes)
            if status.run_state is RunState.FINISHED:
                return
            children.check(self._killed)

    async def _make_chaos(self, children: Children, document: RunDocument, url: str) -> None:
        if not self._options.chaos:
            return
        kill_at, join_at = max(2, document.total_steps // 3), max(3, document.total_steps // 2)
        if self._killed_at is None and document.step >= kill_at and len(self._clients) > 1:
            self._killed_at = document.step
            self._killed = self._clients[1]
            self._killed.kill()
            self._notes.append(f"step {document.step}: {self._killed.name} was killed without warning")
        if self._joined_at is None and document.step >= join_at:
            self._joined_at = document.step
            await self.start_client(children, url)
            self._notes.append(f"step {document.step}: {self._clients[-1].name} joins")

    async def _await_evaluations(self, coordinator: CoordinatorClient) -> list[str]:
        """Wait for the evaluation of the last checkpoint, and return what is wrong with them all."""
        if self._evaluator is None:
            return []
        code = await self._evaluator.wait(EVALUATION_TIMEOUT_S)
        if code != 0:
            ended = "did not end" if code is None else f"ended with {code}"
            return [f"the evaluator {ended}:\n{self._evaluator.log_tail()}"]
        self._evaluations = await coordinator.evaluations()
        self._show(await coordinator.status(), self._notes)
        return evaluation_problems([one.loss for one in self._evaluations if one.loss is not None])

    async def _await_clients(self) -> list[str]:
        codes = {child.name: await child.wait(FINISH_TIMEOUT_S) for child in self._clients if child is not self._killed}
        return [f"{name} ended with {code}, not with 0" for name, code in codes.items() if code != 0]


def take_folder(folder: Path, shown: str) -> None:
    """Make the folder of a run. Raise `InvalidInput`, with how it was given, if it cannot be used or is not empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InvalidInput(f"{shown} is not empty; allowed: a new or empty folder")
    except OSError as error:
        raise InvalidInput(f"{shown} cannot be used: {error.strerror or error}") from error


def ends_of_losses(losses: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the means of the first and of the last `LOSS_WINDOW` losses, of fewer where these would overlap."""
    window = min(LOSS_WINDOW, max(1, len(losses) // 2))
    return _mean(losses[:window]), _mean(losses[-window:])


def loss_problems(first: float | None, last: float | None, unigram_entropy: float | None) -> list[str]:
    """Return what is wrong with the losses at a run's ends, each as a sentence.

    Args:
        first, last: means over a few rounds; None if no round was trained.
        unigram_entropy: of the data; None for a run that is too short to get well below it, whose loss must only fall.
    """
    if last is None or first is None:
        return ["no loss was reported"]
    if unigram_entropy is not None and last >= WELL_BELOW_UNIGRAM * unigram_entropy:
        return [f"the loss ended at {last:.3f}, not well below the unigram entropy {unigram_entropy:.3f}"]
    if last > first:
        return [f"the loss rose from {first:.3f} to {last:.3f}"]
    return []


def evaluation_problems(losses: Sequence[float]) -> list[str]:
    """Return what is wrong with a run's held-out losses, in the order of its checkpoints, each as a sentence."""
    if not losses:
        return ["no checkpoint was evaluated"]
    if losses[-1] > losses[0]:
        return [f"the held-out loss rose from {losses[0]:.3f} to {losses[-1]:.3f}"]
    return []


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])
