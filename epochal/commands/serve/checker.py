"""`epochal checker`: check results, and make slices of updates, beside an object store, for a coordinator."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.coordinators import naming_wrong_token
from epochal.cli.options.shared import (
    CHECKER_TOKEN_VARIABLE,
    CoordinatorCaOption,
    LogOptions,
    UrlArgument,
    check_worker_token,
    trusted,
)
from epochal.cli.options.spool_folder import checked_spool_folder
from epochal.cli.output.printing import run_to_end, say
from epochal.cli.shutdown import interruption
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.spool import Spool
from epochal.runtime.retry import DEFAULT_BOUND_S, RetryPolicy
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.tools.check_results.result_checker import Checker
from epochal.tools.check_results.slice_maker import SliceMaker

MAX_PARALLEL = 64


def checker(
    url: UrlArgument,
    logged: LogOptions,
    token: Annotated[
        str, typer.Option(envvar=CHECKER_TOKEN_VARIABLE, help="Token from `epochal token checker`.", show_default=False)
    ] = "",
    parallel: Annotated[
        int, typer.Option(min=1, max=MAX_PARALLEL, help="Number of results that are checked at a time.")
    ] = 2,
    spool: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder on a disk for temporary files: this process's slice of the model, as float32, and of a result."
            " Default: /var/tmp, or where the system keeps temporary files.",
        ),
    ] = None,
    reconnect_s: Annotated[
        float, typer.Option("--reconnect", min=0, help="Seconds to retry while the coordinator does not answer.")
    ] = DEFAULT_BOUND_S,
    tls_ca: CoordinatorCaOption = None,
) -> None:
    """Check results that arrive in a run's object store and add them up, so that the coordinator need not read them.

    Run it on a machine near the store, as many as you like: each makes its slice of every update. It needs no
    credentials of the store. What it holds when it ends is done by another checker, or by the coordinator.
    """
    logged.start()
    check_worker_token(token, CHECKER_TOKEN_VARIABLE, "checker")
    work = _Work(parallel, checked_spool_folder(spool), RetryPolicy(bound_s=reconnect_s))
    run_to_end(_check(url, token, work, trusted(tls_ca)))


@dataclass(frozen=True, slots=True)
class _Work:
    """How the process works: the number of results at a time, the folder of temporary files, how it reconnects."""

    parallel: int
    spool_folder: Path
    policy: RetryPolicy


async def _check(url: str, token: str, work: _Work, verify: bool | str) -> None:
    policy = work.policy
    async with await CoordinatorClient.connect(url, policy, verify) as coordinator:
        coordinator.use_token(token)
        try:
            with naming_wrong_token("checker", CHECKER_TOKEN_VARIABLE, url):
                await coordinator.parameter_names()
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_NOW:  # the run has no model yet
                raise
        with interruption() as stop:
            say(f"checking results of run {coordinator.run_id}")
            adding = WorkerThread("epochal-merge")
            maker = SliceMaker(coordinator, policy, say, Spool(work.spool_folder), adding)
            async with asyncio.TaskGroup() as tasks:
                checking = [tasks.create_task(Checker(coordinator, policy, say).run()) for _ in range(work.parallel)]
                making = tasks.create_task(maker.run())
                stopping = tasks.create_task(stop.wait())
                await asyncio.wait([stopping, *checking], return_when=asyncio.FIRST_COMPLETED)
                for task in (stopping, making, *checking):
                    task.cancel()
