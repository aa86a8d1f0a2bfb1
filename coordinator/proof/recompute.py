"""Recomputing a run's parameters from what its store keeps: a checkpoint, and the results since.

A checkpoint includes everything before it, so the results that it includes are deleted once two checkpoints are kept.
What can be recomputed is therefore the steps since the older kept checkpoint, and the report says how many those are.
"""

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from epochal.coordinator.machine.parts.verification import Compared
from epochal.coordinator.machine.run import Run
from epochal.coordinator.store.blobs import BlobReader
from epochal.coordinator.store.checkpoint_blobs import opened_parts
from epochal.runtime.long_work import long_work
from epochal.runtime.merging.sketches import Sketcher, likenesses
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import EpochalError, StoreFailed
from epochal.state.merging import OuterStep, merge, verify_arithmetic
from epochal.state.model.replica import Replica, parse_checkpoint, replica_digest
from epochal.state.model.tensors import BYTES_TYPE, FLOAT32_TYPE, InvalidTensorFile, TensorLayout, parse_tensor_file
from epochal.state.results import Difference, decode_result, norm_of
from epochal.state.text.amounts import counted
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, decode_update, update_bytes
from epochal.state.weights import number_of
from epochal.state.wire import Blake3, Sha256, sha256_hex

_TYPES = (FLOAT32_TYPE, BYTES_TYPE)
NORM_TOLERANCE = 1e-9
"""Relative difference of two lengths that were summed up in another order."""
LIKENESS_TOLERANCE = 1e-3
"""Difference of two cosines of the same sketches, of which three digits are kept."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Replicas that were recomputed.

    Attributes:
        compared_count: replicas whose digest was compared with the attested one.
        scope: how many of the run's steps were rebuilt, and why not all.
        problem: what is wrong; None if nothing is.
    """

    compared_count: int
    scope: str
    problem: str | None = None


async def recompute(run: Run, blobs: BlobReader, attested: dict[int, Blake3], step_count: int) -> Recomputed:
    """Apply the kept results to the older kept checkpoint, and compare each replica's digest.

    Args:
        run: the run as it is kept.
        blobs: holds checkpoints and results.
        attested: the digests on which quorums agreed, by replica.
        step_count: number of the run's steps.
    """
    if not run.models.checkpoints:
        problem = "there is no checkpoint to recompute from" if step_count else None
        return Recomputed(0, f"0 of {counted(step_count, 'step')}: there is no checkpoint yet", problem)
    known = attested | {checkpoint.step: checkpoint.replica_digest for checkpoint in run.models.checkpoints}
    first, step, compared, problem = run.models.checkpoints[0].step, run.models.checkpoints[0].step, 0, None
    try:
        async for replica, wrong_norm in replicas(run, blobs):
            step = replica.step
            if wrong_norm is not None:
                problem = wrong_norm
                break
            if step in known:
                compared += 1
                if replica_digest(replica) != known[step]:
                    problem = f"replica {step} recomputes to another digest than was attested"
                    break
        else:
            if step != run.progress.replica_step:
                problem = f"recomputing ends at replica {step}; the run is at {run.progress.replica_step}"
    except EpochalError as error:
        problem = f"the parameters cannot be recomputed: {error}"
    return Recomputed(compared, _scope(first, step, step_count), problem)


def _scope(first: int, last: int, step_count: int) -> str:
    """Return how many steps were rebuilt after replica `first`, and why not the others."""
    rebuilt = last - first
    if rebuilt >= step_count:
        return f"{counted(step_count, 'step')}, all since the run's first checkpoint"
    of_all = f"{rebuilt} of {counted(step_count, 'step')}"
    return f"{of_all}, from the checkpoint of step {first}: results that it includes are deleted"


async def replicas(run: Run, blobs: BlobReader) -> AsyncIterator[tuple[Replica, str | None]]:
    """Yield all replicas since the older kept checkpoint, recomputed from the kept results.

    Each comes with what is wrong with the lengths of the results that led to it, or None.
    """
    verify_arithmetic()
    with long_work(
        "computing the parameters again", run.progress.replica_step - run.models.checkpoints[0].step, "steps"
    ) as work:
        replica = parse_checkpoint(await _checkpoint(run, blobs))
        yield replica, None
        while (outcome := run.models.outcomes.get(replica.step + 1)) is not None:
            results = await _results(outcome, blobs, replica.layout)
            settings = run.identity.state_file.at(outcome.step).merge
            outer, rule = OuterStep.of(settings), UpdateRule.of(settings)
            header = UpdateHeader.of(outcome, rule)
            made = update_bytes(header, rule, replica.layout, ((Weight.of(entry), found) for entry, found in results))
            wrong = (
                _wrong_norm(outcome, results)
                or _wrong_likeness(
                    run.members.verification.compared.get(outcome.step), outcome, results, replica.layout
                )
                or await _wrong_update(run, blobs, outcome.step, made)
            )
            replica = merge(replica, decode_update(made, header, replica.layout), outer)
            work.advance()
            yield replica, wrong


async def _results(outcome: Outcome, blobs: BlobReader, layout: TensorLayout) -> list[tuple[OutcomeEntry, Difference]]:
    return [
        (entry, decode_result(await blob_of(blobs, Sha256(entry.result_sha256)), layout)[1])
        for entry in outcome.entries
    ]


async def _wrong_update(run: Run, blobs: BlobReader, step: int, made: bytes) -> str | None:
    """Return in which tensor the update that was kept differs from the one that its results make, or None."""
    named = run.models.updates.get(step)
    if named is None:
        return None
    parts = run.models.blobs_of(named)
    async with opened_parts(blobs, [sha256 for sha256, _ in parts]) as file:
        kept = file.view()
        if kept == made:
            return None
        return f"the update of step {step} is not the mean of its results: {_first_difference(kept, made)}"


def _first_difference(kept: memoryview, made: bytes) -> str:
    try:
        found, wanted = parse_tensor_file(kept, _TYPES), parse_tensor_file(made, _TYPES)
    except InvalidTensorFile as error:
        return f"it is no update: {error.message}"
    if found.layout == wanted.layout and found.metadata == wanted.metadata:
        tensors = found.tensors()
        for name, block in wanted.tensors().items():
            if block.tobytes() != tensors[name].tobytes():
                return f"tensor {name!r}"
    return "its header differs"


def _wrong_norm(outcome: Outcome, results: Sequence[tuple[OutcomeEntry, Difference]]) -> str | None:
    """Return which result of an outcome has another length than was kept, or None.

    Its factor was then computed from a wrong number; that it was computed rightly is what the replay shows.
    """
    for entry, difference in results:
        found, kept = norm_of(difference), number_of(entry.norm)
        if not math.isclose(found, kept, rel_tol=NORM_TOLERANCE):
            return f"the result of {entry.client_id} in step {outcome.step} has length {found!r}; {kept!r} was kept"
    return None


def _wrong_likeness(
    compared: Compared | None,
    outcome: Outcome,
    results: Sequence[tuple[OutcomeEntry, Difference]],
    layout: TensorLayout,
) -> str | None:
    """Return which result of an outcome is otherwise like the others than was kept, or None."""
    if compared is None:
        return None
    sketcher = Sketcher(bytes.fromhex(compared.seed), layout)
    weights = {entry.client_id: Weight.of(entry) for entry, _ in results}
    found = likenesses(
        {of.client_id: sketcher.sketches(values) for of, values in results if of.client_id in compared.figures},
        {client_id: weight.batch_count * weight.factor for client_id, weight in weights.items()},
    )
    for client_id, kept in compared.figures.items():
        for name, one, other in zip(("mean", "other"), found.get(client_id, ()), kept, strict=False):
            if (one is None) != (other is None) or (one and other and abs(one - other) > LIKENESS_TOLERANCE):
                of = f"the result of {client_id} in step {outcome.step}"
                return f"{of} has a cosine of {one} with the {name}; {other} was kept"
    return None


async def _checkpoint(run: Run, blobs: BlobReader) -> memoryview:
    """Return the bytes of the older kept checkpoint, each of its parts compared with its digest."""
    parts = run.models.blobs_of(run.models.checkpoints[0])
    for sha256, _ in parts:
        await blob_of(blobs, sha256)
    async with opened_parts(blobs, [sha256 for sha256, _ in parts]) as file:
        return file.view()


async def blob_of(blobs: BlobReader, sha256: Sha256) -> memoryview:
    """Return the bytes of a blob. Raise `StoreFailed` if they have another digest."""
    async with blobs.opened(sha256) as file:
        data = file.view()
    if sha256_hex(data) != sha256:
        raise StoreFailed(f"blob {sha256} is damaged")
    return data
