"""Evaluations of a run's checkpoints: which are computed, what is reported, and what is left out."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.runtime.permissions import OWNERS, Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import (
    CoordinatorUnreachable,
    InvalidDocument,
    InvalidInput,
    NotAllowed,
    Refused,
    TrainerFailed,
)
from epochal.state.messages.evaluation_reports import Evaluation, EvaluationReport
from epochal.state.model.replica import Replica, first_replica
from epochal.state.refusals import Refusal
from epochal.state.wire import sha256_hex
from epochal.tools.evaluate import losses
from epochal.tools.evaluate.evaluator import EvaluatedReplica, Evaluator, EvaluatorOptions, Figure
from epochal.tools.evaluate.losses import EvaluationOptions
from epochal.trainers.architectures import open_model
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.states import state_file
from tests.support.drive.listed_run import ListedRun

STATE = state_file(model__LLM__ngram={"context": 2, "embedding": 4, "hidden": 8})
SPEC = STATE.model.LLM.spec
MODEL = open_model(SPEC)
ON_DUMMY = EvaluationOptions(OWNERS, data="dummy", samples=4)
PATIENT = RetryPolicy(first_delay_s=0.0, max_delay_s=0.0, bound_s=60.0)


def at_step(step: int) -> Replica:
    return first_replica(step, MODEL.initial_parameters(bytes([step]) * 32))


def run_of(*views: list[Replica], spec: ModelSpec = SPEC, state: StateFile = STATE) -> ListedRun:
    return ListedRun(*views, spec=spec, state=state)


@dataclass
class Desk:
    """A run, what its coordinator was told, and what a person was shown."""

    run: ListedRun
    name: str | None = None
    failures: list[Exception] = field(default_factory=list)
    reported: list[EvaluationReport] = field(default_factory=list)
    shown: list[EvaluatedReplica] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    async def record(self, report: EvaluationReport) -> None:
        if self.failures:
            raise self.failures.pop()
        self.reported.append(report)

    def show(self, figure: Figure) -> None:
        assert isinstance(figure, EvaluatedReplica), "no benchmark"
        self.shown.append(figure)

    def evaluator(self, evaluation: EvaluationOptions = ON_DUMMY, *, records: bool = True) -> Evaluator:
        options = EvaluatorOptions(self.name, self.record if records else None, self.show, self.said.append)
        return Evaluator(self.run, evaluation, options)

    async def follow(self) -> None:
        async with self.evaluator() as evaluator:
            await evaluator.follow(PATIENT)

    async def once(self, step: int | None = None, **changes: Any) -> None:
        async with self.evaluator(replace(ON_DUMMY, **changes)) as evaluator:
            await evaluator.once(step)

    def steps(self) -> list[tuple[int, bool]]:
        return [(one.step, one.recorded) for one in self.shown]


async def test_loss_is_reported_as_it_is_shown() -> None:
    desk = Desk(run_of([at_step(1), at_step(2)]))
    await desk.once()
    (report,), (shown,) = desk.reported, desk.shown
    told = {key: value for key, value in asdict(report).items() if key not in ("replica_digest", "benchmark")}
    assert told.items() <= asdict(shown).items()
    assert (report.name, report.step, report.samples, shown.recorded) == ("validation", 2, 4, True)
    assert shown.split is None, "token data have none"
    assert report.loss == pytest.approx(np.log(256), abs=0.5)


async def test_step_of_a_checkpoint_that_is_held_is_evaluated() -> None:
    desk = Desk(run_of([at_step(1), at_step(2)]))
    await desk.once(1)
    assert desk.steps() == [(1, True)]
    with pytest.raises(InvalidInput, match="no checkpoint of step 7; allowed: 1, 2"):
        await desk.once(7)


async def test_followed_run_is_evaluated_to_its_end() -> None:
    desk = Desk(run_of([], [at_step(0)], [at_step(0), at_step(2)], [at_step(2), at_step(4)]))
    await desk.follow()
    assert desk.steps() == [(0, True), (2, True), (4, True)]
    assert desk.said == [
        "the next checkpoint is due at the end of the epoch, after 10 m at the latest (config.checkpoint_every is 0)"
    ]


async def test_recorded_evaluations_of_the_same_data_are_not_computed_again() -> None:
    first = Desk(run_of([at_step(1)]))
    await first.follow()
    (report,) = first.reported
    kept = {key: value for key, value in asdict(report).items() if key != "replica_digest"}
    again = Desk(run_of([at_step(1)], [at_step(1), at_step(2)]))
    again.run.history = (Evaluation(**kept, recorded_s=1.0),)
    await again.follow()
    assert again.steps() == [(2, True)]
    assert again.said[1:] == ["test-run, replica 1: recorded already"]
    other = Desk(run_of([at_step(1)]))
    other.run.history = (Evaluation(**(kept | {"data_fingerprint": "ab" * 32}), recorded_s=1.0),)
    await other.follow()
    assert other.steps() == [(1, True)]


async def test_loss_that_could_not_be_reported_is_reported_later() -> None:
    desk = Desk(run_of([at_step(1)]), failures=[CoordinatorUnreachable("away"), CoordinatorUnreachable("away")])
    await desk.follow()
    assert desk.run.read_count == 1
    assert desk.steps() == [(1, False), (1, True)]
    assert [line.partition(";")[0] for line in desk.said] == ["waiting: away"]


async def test_loss_is_shown_when_the_coordinator_refuses_it() -> None:
    desk = Desk(run_of([at_step(1)]), failures=[Refused(Refusal.FORBIDDEN, "no")])
    with pytest.raises(Refused, match="no"):
        await desk.once()
    assert desk.steps() == [(1, False)]


async def test_replica_without_a_finite_loss_is_left_out_and_said() -> None:
    large = first_replica(2, {name: np.full(shape, 3e38, np.float32) for name, shape in MODEL.shapes.items()})
    desk = Desk(run_of([at_step(1)], [at_step(1), large], [large, at_step(3)]))
    with pytest.raises(TrainerFailed, match=r"1 checkpoint not evaluated; replica 2: .*(nan|inf)"):
        await desk.follow()
    assert desk.steps() == [(1, True), (3, True)]
    assert desk.said[1].startswith("not evaluated: replica 2: ")


async def test_checkpoint_that_is_damaged_or_of_another_model_is_refused() -> None:
    desk = Desk(run_of([at_step(1)]))
    desk.run.damage = b"x"
    with pytest.raises(InvalidDocument, match="step 1 is damaged"):
        await desk.once()
    other = Desk(run_of([first_replica(1, {"a": np.zeros(3, np.float32)})]))
    with pytest.raises(InvalidDocument, match="step 1 is of another model: it has no "):
        await other.once()
    assert desk.shown == other.shown == []


async def test_name_and_options_that_do_not_go_with_the_run_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'a name' is no name of an evaluation"):
        await Desk(run_of([at_step(1)]), name="a name").once()
    with pytest.raises(InvalidInput, match="go with models of torch, not with EpochalNgram"):
        await Desk(run_of([at_step(1)])).once(torch=TorchOptions("cpu"))
    with pytest.raises(InvalidInput, match="no end; say how many samples"):
        await Desk(run_of([at_step(1)])).once(samples=None)
    with pytest.raises(InvalidInput, match="--split test: these data have no splits"):
        await Desk(run_of([at_step(1)])).once(split="test")
    with pytest.raises(InvalidInput, match="serves only a run's members"):
        await Desk(run_of([at_step(1)])).once(data="tcp://127.0.0.1:9")


def changing_at_3(folder: Path) -> StateFile:
    """Return the file of a run whose held-out data are even tokens, and from step 3 on odd ones."""
    for name, first in (("even", 0), ("odd", 1)):
        np.arange(first, 256, 2, dtype="<u2").tofile(folder / f"{name}.bin")
    place = "model.LLM.held_out_location"
    return state_file(
        model__LLM__ngram=STATE.model.LLM.ngram.model_dump(),
        model__LLM__held_out_location={"Local": str(folder / "even.bin")},
        changes=[
            {"at_step": 2, "values": {"merge.outer_lr": 0.5}},
            {"at_step": 3, "values": {place: {"Local": str(folder / "odd.bin")}}},
        ],
    )


async def test_held_out_data_of_a_run_are_those_of_each_replicas_step(tmp_path: Path) -> None:
    views = [[at_step(1)], [at_step(1), at_step(2)], [at_step(2), at_step(3)], [at_step(3), at_step(4)]]
    desk = Desk(run_of(*views, state=changing_at_3(tmp_path)))
    async with desk.evaluator(EvaluationOptions(OWNERS)) as evaluator:
        await evaluator.follow(PATIENT)
    before, after = "validation", "validation-from-3"
    assert [(one.step, one.name) for one in desk.reported] == [(1, before), (2, before), (3, after), (4, after)]
    named = Desk(desk.run, name="named")
    await named.once(4, data=str(tmp_path / "odd.bin"), samples=None)
    (same,) = named.reported
    last = desk.reported[-1]
    assert (same.name, same.loss, same.data_fingerprint) == ("named", last.loss, last.data_fingerprint)
    assert len({one.data_fingerprint for one in desk.reported}) == 2


async def test_volunteer_who_evaluates_opens_no_held_out_file_unasked(tmp_path: Path) -> None:
    desk = Desk(run_of([at_step(1)], state=changing_at_3(tmp_path)))
    with pytest.raises(NotAllowed, match=r"even\.bin on this machine, which may hold anything"):
        async with desk.evaluator(EvaluationOptions(Permissions.of_volunteer())) as evaluator:
            await evaluator.once(1)


async def test_loss_does_not_depend_on_how_many_samples_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    together, apart = Desk(run_of([at_step(1)])), Desk(run_of([at_step(1)]))
    await together.once()
    monkeypatch.setattr(losses, "SAMPLES_AT_A_TIME", 1)
    await apart.once()
    (one,), (other,) = together.reported, apart.reported
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert one.data_fingerprint == other.data_fingerprint != sha256_hex(b"")
