"""`epochal evaluate`: the loss of a run's checkpoints on data, or benchmarks of lm_eval, into the run's history."""

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from epochal.cli.options.admin_token import AdminToken
from epochal.cli.options.client_data import check_place
from epochal.cli.options.permission_options import PermissionOptions
from epochal.cli.options.shared import CoordinatorCaOption, JsonOption
from epochal.cli.options.torch_choice import TorchDataChoice
from epochal.cli.options.torch_trainer import check_machine
from epochal.cli.output.logs import LogFormat, start_logging
from epochal.cli.output.printing import run_to_end, say
from epochal.data_providers.locations import parse_location
from epochal.runtime.permissions import OWNERS
from epochal.state.errors import InvalidInput
from epochal.state.text.amounts import counted
from epochal.tools.checkpoints.readable_run import ServedRun
from epochal.tools.checkpoints.run_address import (
    DEFAULT_RECONNECT_S,
    ReconnectOption,
    RunAddress,
    RunArgument,
    following_policy,
)
from epochal.tools.evaluate.benchmarks import BenchmarkOptions
from epochal.tools.evaluate.evaluator import BenchmarkedReplica, Evaluator, EvaluatorOptions, Figure, checked_name
from epochal.tools.evaluate.losses import EvaluationOptions
from epochal.tools.sample.text_tokens import TextOptions

_Step = Annotated[int | None, typer.Option(min=0, help="Evaluate the checkpoint of this step. Default: the newest.")]
_Follow = Annotated[bool, typer.Option("--follow", help="Evaluate every new checkpoint, until the run has finished.")]
_Data = Annotated[
    str | None,
    typer.Option(
        metavar="LOCATION",
        help="Data to evaluate on, as `epochal client --data` takes it. "
        "Default: the held-out data that the run's state file names, or the run's own.",
    ),
]
_Split = Annotated[
    str | None, typer.Option(help="Split of a folder of JSON lines or parquet files. Default: validation.")
]
_Samples = Annotated[
    int | None,
    typer.Option(min=1, help="Number of samples, or questions of each task, from the first one on. Default: all."),
]
_Name = Annotated[
    str | None,
    typer.Option(
        help="Name of the evaluation in the run's history. Default: the split; without splits, training for the "
        "run's own data and validation for others."
    ),
]
_Record = Annotated[
    bool, typer.Option("--record/--no-record", help="Report each loss to the coordinator, for the run's history.")
]
_Tasks = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Compute these tasks of lm_eval instead of a loss, as hellaswag,arc_easy; or task files, NAME.yaml.",
    ),
]
_Shots = Annotated[
    int | None, typer.Option(min=0, help="With --tasks: solved examples before each question. Default: the task's.")
]
_Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="With --tasks: tokenizer, a path, hf://…, s3://… or gs://…, or bytes. Default: that of the run.",
    ),
]


def evaluate(
    run: RunArgument,
    allowed: PermissionOptions,
    computing: TorchDataChoice,
    step: _Step = None,
    follow: _Follow = False,
    data: _Data = None,
    split: _Split = None,
    samples: _Samples = None,
    name: _Name = None,
    record: _Record = True,
    tasks: _Tasks = None,
    shots: _Shots = None,
    tokenizer: _Tokenizer = None,
    reconnect_s: ReconnectOption = DEFAULT_RECONNECT_S,
    admin_token: AdminToken = None,
    tls_ca: CoordinatorCaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the loss of a run's checkpoint, or benchmarks (--tasks), and record them in the run's history."""
    if follow and step is not None:
        raise InvalidInput("--follow evaluates every new checkpoint; leave --step out")
    start_logging(LogFormat.TEXT, verbose=False)
    torch, permissions = computing.options(), allowed.permissions
    check_machine(torch)
    address = RunAddress(run, admin_token, tls_ca, permissions.reach)
    permitted = permissions if address.is_served else OWNERS
    evaluation: EvaluationOptions | BenchmarkOptions = EvaluationOptions(permitted, data, split, samples, torch)
    if tasks is not None:
        evaluation = BenchmarkOptions(
            permitted, _listed(tasks, data, split, name), shots, samples, TextOptions(tokenizer), torch
        )
    elif (shots, tokenizer) != (None, None):
        raise InvalidInput("--shots and --tokenizer go with --tasks")
    checked = None if name is None else checked_name(name)
    policy = following_policy(reconnect_s, follows=follow)
    if data is not None:
        check_place(parse_location(data))

    async def main() -> None:
        async with address.open(policy) as found:
            recorder = found.record if record and isinstance(found, ServedRun) else None
            options = EvaluatorOptions(checked, recorder, partial(_show, as_json=as_json), _note)
            async with Evaluator(found, evaluation, options) as evaluator:
                await (evaluator.follow(policy) if follow else evaluator.once(step))
            if record and recorder is None:
                _note("not in the run's history: only its coordinator records; name its address instead of the store")

    run_to_end(main())


def _listed(tasks: str, *others: str | None) -> tuple[str, ...]:
    """Return the names of tasks. Raise `InvalidInput` if options go with them that are for losses."""
    if any(one is not None for one in others):
        raise InvalidInput("--tasks have data and names of their own; leave --data, --split and --name out")
    return tuple(one.strip() for one in tasks.split(","))


def _show(found: Figure, *, as_json: bool) -> None:
    say(_as_json(found) if as_json else _as_text(found))


def _note(text: str) -> None:
    typer.echo(text, err=True)


def _as_json(found: Figure) -> str:
    return json.dumps(asdict(found))


def _as_text(found: Figure) -> str:
    recorded = f"; recorded as {found.name}" if found.recorded else ""
    if isinstance(found, BenchmarkedReplica):
        figure = found.benchmark
        error = "" if figure.stderr is None else f" ± {figure.stderr:.4f}"
        questions = counted(found.samples, "question")
        figures = f"{found.name} {figure.metric} {figure.value:.4f}{error} ({questions}){recorded}"
        return f"{found.run_id}, replica {found.step}: {figures}"
    loss = "nothing to predict" if found.loss is None else f"loss {found.loss:.4g} nats per {found.predicted}"
    of = "" if found.split is None else f", {found.split}"
    data = f"{counted(found.samples, 'sample')}, {counted(found.tokens, found.predicted)}{of}"
    return f"{found.run_id}, replica {found.step}: {loss} ({data}){recorded}"
