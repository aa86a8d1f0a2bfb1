"""The models of a run: its checkpoints, the outcomes since, and the checkpoint that is being made.

The rule kept here: the model at any step is the last verified checkpoint and every update since, and an update is a
function of the results that its outcome names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from epochal.coordinator.machine.parts.checkpointing import Checkpointing
from epochal.coordinator.machine.parts.run_work import WorkAtCheckpoint
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, parts_digest
from epochal.state.config.model_table import ModelSpec
from epochal.state.documents import CheckpointRef, Outcome, UpdateRef
from epochal.state.model.first_model import model_digest
from epochal.state.weights import UsualNorm
from epochal.state.wire import Blake3, Sha256
from epochal.state.wire_document import WireDocument

KEEP_CHECKPOINTS = 2
"""Number of verified checkpoints that are kept, with outcomes and results since the older one, which prove the newer.
Near the blobs' size limit only the newest is kept."""


@dataclass(frozen=True, slots=True)
class RunModels(WireDocument):
    """The models of a run.

    Attributes:
        spec: of the run's model, complete, once the run has its first checkpoint.
        spec_sha256: its digest.
        checkpoints: the verified ones that are kept, oldest first.
        work_at: the run's work as of each of them, by step.
        manifests: of the kept checkpoints and updates that have several parts, by digest.
        outcomes: by step, since the oldest kept checkpoint.
        updates: by step, of those outcomes whose update is made.
        checkpointing: the checkpoint that is being made.
        usual: how long the results of the last applied round were; None before one, or if nothing was learned.
        cold_start_step: the step of the last cold start: an epoch that began without a client that is warm.
        rebuild: whether witnesses of the last round held different replicas.
        blobs_near_bound: whether the blobs are near their size limit, so that only the newest checkpoint is kept.
    """

    spec: ModelSpec | None = None
    spec_sha256: Sha256 | None = None
    checkpoints: tuple[CheckpointRef, ...] = ()
    work_at: Mapping[int, WorkAtCheckpoint] = field(default_factory=dict)
    manifests: Mapping[Sha256, CheckpointManifest] = field(default_factory=dict)
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    updates: Mapping[int, UpdateRef] = field(default_factory=dict)
    checkpointing: Checkpointing | None = None
    usual: UsualNorm | None = None
    cold_start_step: int | None = None
    rebuild: bool = False
    blobs_near_bound: bool = False

    @property
    def checkpoint(self) -> CheckpointRef | None:
        """The newest verified checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    def known_digest(self, step: int) -> Blake3 | None:
        """Return the digest of a replica that a checkpoint, an outcome or an update names; None if none does."""
        for checkpoint in self.checkpoints:
            if checkpoint.step == step:
                return checkpoint.replica_digest
        if step in self.updates:
            return self.updates[step].replica_digest
        following = self.outcomes.get(step + 1)
        return None if following is None else following.replica_digest

    def lacks_update(self, step: int) -> bool:
        """Whether a step has an outcome whose update is not made: nobody holds the replica after it, or few."""
        return step in self.outcomes and step not in self.updates

    def blobs_of(self, kept: CheckpointRef | UpdateRef) -> tuple[tuple[Sha256, int], ...]:
        """Return digest and size of every blob of a kept checkpoint or update, in the order of the file."""
        if kept.part_count == 1:
            return ((kept.blob_sha256, kept.size_bytes),)
        return tuple((part.sha256, part.size_bytes) for part in self.manifests[kept.blob_sha256].parts)

    def making(self, checkpointing: Checkpointing | None) -> "RunModels":
        """Return the models with this checkpoint being made; None for no checkpoint."""
        return self if checkpointing is self.checkpointing else replace(self, checkpointing=checkpointing)

    def with_outcome(self, outcome: Outcome, usual: UsualNorm | None) -> "RunModels":
        """Return the models with the outcome of a step, and how long its results were."""
        return replace(self, outcomes={**self.outcomes, outcome.step: outcome}, usual=usual)

    def with_update(self, update: UpdateRef, parts: tuple[CheckpointPart, ...]) -> "RunModels":
        """Return the models with the update of a step, which consists of these parts."""
        return replace(self, updates={**self.updates, update.step: update}).with_manifest(parts)

    def with_spec(self, spec: ModelSpec) -> "RunModels":
        """Return the models, which are of this model."""
        return replace(self, spec=spec, spec_sha256=model_digest(spec))

    def with_manifest(self, parts: tuple[CheckpointPart, ...]) -> "RunModels":
        """Return the models with the manifest of a checkpoint or an update; the same if that has one part."""
        if len(parts) < 2:
            return self
        return replace(self, manifests={**self.manifests, parts_digest(parts): CheckpointManifest(parts)})

    def with_checkpoint(self, checkpoint: CheckpointRef, work: WorkAtCheckpoint) -> "RunModels":
        """Return the models with another verified checkpoint, of which this was the run's work."""
        known = replace(self, work_at={**self.work_at, checkpoint.step: work})
        return known.keeping((*self.checkpoints, checkpoint))

    def keeping(self, checkpoints: tuple[CheckpointRef, ...]) -> "RunModels":
        """Return the models with the newest of these, and the outcomes since: near the blobs' limit, the last only."""
        checkpoints = checkpoints[-1 if self.blobs_near_bound else -KEEP_CHECKPOINTS :]
        updates = {step: update for step, update in self.updates.items() if step > checkpoints[0].step}
        kept = {ref.blob_sha256 for ref in checkpoints} | {ref.blob_sha256 for ref in updates.values()}
        return replace(
            self,
            checkpoints=checkpoints,
            work_at={ref.step: self.work_at[ref.step] for ref in checkpoints},
            updates=updates,
            manifests={digest: manifest for digest, manifest in self.manifests.items() if digest in kept},
            outcomes={step: outcome for step, outcome in self.outcomes.items() if step > checkpoints[0].step},
            blobs_near_bound=False,
        )
