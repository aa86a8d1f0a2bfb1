"""The glossary: every word with which a run is shown, and its meaning.

The rule kept here: the page in a browser, the terminal, the plots and the reports take their words from these tables,
so that one thing has one name wherever it is seen. The page reads them as a module that is made from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from epochal.state.messages.history_rows import ClientFate
from epochal.state.messages.requests import DataDecision
from epochal.state.phase_names import RunState
from epochal.state.shown.critical_path import PartKind


@dataclass(frozen=True, slots=True)
class PartWords:
    """A part of a client's time in a round, as it is shown.

    Attributes:
        letter: represents it where there is room for nothing else.
        label: its name.
        means: what the client does in it.
    """

    letter: str
    label: str
    means: str


PARTS: Mapping[str, PartWords] = MappingProxyType(
    {
        "document": PartWords("W", "waiting for the document", "Waiting for the run document that begins the round."),
        "replica": PartWords(
            "R",
            "getting the model ready",
            "Getting the model of this round ready: fetching and merging the results of the round before.",
        ),
        "data": PartWords("D", "data", "Waiting for training data: fetching, decoding and packing it."),
        "train": PartWords("T", "training", "Computing on the data."),
        "encode": PartWords("E", "encoding", "Making the result small enough to send."),
        "upload": PartWords("U", "upload", "Sending the result."),
        "check": PartWords("C", "check", "The coordinator, or a checker, checks the result."),
        "attest": PartWords("A", "attestation", "Waiting for the witnesses to say which results came in time."),
        "download": PartWords("L", "download", "Receiving the other clients' results."),
        "merge": PartWords("M", "merge", "Averaging all results into the model."),
    }
)
"""The parts of a client's round in their order, by the name that their seconds have in `ClientFigures` (`train_s`)."""
NOT_TOLD = PartWords("?", "not told", "Time of which the client says nothing, or nothing yet.")
"""Time of a client that is in none of the parts."""
WHOSE_NOBODY: Mapping[str, str] = MappingProxyType(
    {
        "missing": "results that never came",
        "empty": "rounds of which nothing was applied",
        "between": "between epochs",
        "outage": "outages of the coordinator",
        "unknown": NOT_TOLD.label,
    }
)
"""Time of a run that is in no part of a client's round, by `PartKind`."""
FATES: Mapping[ClientFate, str] = MappingProxyType(
    {
        "applied": "applied",
        "lost": "not applied",
        "rejected": "broke a rule",
        "failed": "failed",
        "missing": "nothing came",
        "idle": "had no work",
    }
)
"""The outcomes of a client's work in a round."""
PHASES: Mapping[RunState, str] = MappingProxyType(
    {
        RunState.UNINITIALIZED: "the run has not begun",
        RunState.WAITING_FOR_MEMBERS: "the run waits until enough clients have joined",
        RunState.WARMUP: "clients fetch the model and open their data",
        RunState.ROUND_TRAIN: "each client trains on its share of this round's data and publishes its result",
        RunState.ROUND_WITNESS: "elected clients attest which results they received in time",
        RunState.COOLDOWN: "an elected client saves a checkpoint of the model",
        RunState.FINISHED: "all rounds are done",
        RunState.PAUSED: "an operator has paused the run",
    }
)
"""The activity of a run in each phase."""
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "phase": (
            "What the run does now: it waits for members, prepares, trains, agrees on results, or makes a checkpoint."
        ),
        "epoch": "The time between two checkpoints made while nobody trains; it has many rounds.",
        "round": (
            "Every client trains on its part of the data, its result is collected, and all results are merged "
            "into the model."
        ),
        "step": (
            "The number of a round that was applied to the model. A round that fails is tried again under the "
            "same step."
        ),
        "time to the end": (
            "Remaining steps times the mean time from one of the last rounds to the next, with those that were "
            "not applied and what lies between epochs, without pauses."
        ),
        "tokens": "Pieces of text that the model was trained on and whose results were applied.",
        "tokens/s": (
            "Tokens that were applied in the last rounds, divided by the time from the first one's start to the "
            "last one's end."
        ),
        "training loss": (
            "How wrong the model's predictions were on the data it trained on, as the clients say: nats per "
            "token, lower is better."
        ),
        "held-out loss": (
            "The same on text that it does not train on, as the operator's `epochal evaluate` recorded it."
        ),
        "learning rate": "How far one local step of training moves the model.",
        "member": "A machine that has joined the run.",
        "ready": "A member that has the model and the data, and can take part in the next round.",
        "client": "A member that has work in a round.",
        "batch": "A fixed number of samples: the smallest piece of work.",
        "applied": "The batches whose results are in the model.",
        "carried": (
            "The batches that no result has covered yet, such as those of a client that left: they are in a later "
            "round."
        ),
        "under way": "The batches of the round that is trained on now.",
        "quarantined": "The batches on which several clients failed: they left the run, with the reason.",
        "checkpoint": (
            "The whole model as a file, which the coordinator has checked: from there a new member, or a restart, "
            "goes on."
        ),
        "witness": "A client that was elected to say which results came in time.",
        "attempt": "The number of earlier tries at the same step.",
        "median": "Half of the values are smaller, half are larger.",
        "version": "The number of a change of the run's published state. The slider goes from version to version.",
        "smoothing": (
            "Each point becomes a mean of those before it, the older the less: 0 shows the points as they are."
        ),
    }
    | {part.label: part.means for part in (*PARTS.values(), NOT_TOLD)}
)
"""The meaning of each word of a run's views."""
COUNTED_FOR_LESS = "it was longer than usual, or more of the merge than one member may be"

STATUS: Mapping[str, str] = MappingProxyType(
    {
        "phase": WORDS["phase"],
        "epoch": WORDS["epoch"],
        "rounds": WORDS["round"],
        "clients": "machines that are ready, of those that have joined",
        "tokens": WORDS["tokens"],
        "loss": WORDS["training loss"],
        "evaluation": WORDS["held-out loss"],
        "client": "a machine that trains, by its id; `in round`: it has work now; `preparing`: it gets model and data",
        "trainer": "what computes there",
        "share": "the part of each round's data that the client has earned, of what it would take at most",
        "part": f"its part of this round; `counted × 0.5`: its last result counted for half, {COUNTED_FOR_LESS}",
        "last loss": "the loss of the client's own part of its last round",
        "waits for data": "part of the client's time in which data were missing, and why: fetching, decoding, packing",
        "heard": "when the client last sent something",
        "fetched ahead": "samples that were fetched for rounds to come, and whether those rounds trained on them",
    }
)
"""Words of the panel of `epochal status`."""

CHECKS: Mapping[str, str] = MappingProxyType(
    {
        "clients": "client processes that were started",
        "rounds": "rounds whose results were merged into the model",
        "epochs": "epochs, each of which ended in a checkpoint",
        "tokens": "tokens trained on",
        "loss_first": "training loss in the first rounds, in nats per token; lower is better",
        "loss_last": "training loss in the last rounds",
        "held_out_loss_first": "loss of the first checkpoint on text that nobody trained on",
        "held_out_loss_last": "the same of the last checkpoint",
        "evaluations": "checkpoints whose loss on held-out text was computed",
        "unigram_entropy": "loss of a model that knows only how frequent each byte is",
        "exported_to": "folder with the model as transformers loads it",
        "replicas_identical": "whether every client's copy of the model (its replica) was the same, bit for bit",
        "replica_digests_compared": "hashes of replicas that clients logged, all compared with each other",
        "duplicates": "batches of data that were trained on twice; must be 0",
        "missing": "batches that should have been trained on and were not; must be 0",
        "quarantined": "batches that failed again and again and were left out",
        "unapplied": "batches that still wait for an attempt: their client was killed, or the run ended before",
        "replay_identical": "whether the coordinator's journal, replayed, gives the same documents again",
        "recomputed_steps": "rounds whose merge was computed again from the results, and compared",
        "killed_at_step": "round in which a client was killed, on purpose",
        "joined_at_step": "round in which a new client joined",
        "training_s": "seconds from the first client's start to the last round",
        "wall_s": "seconds in all",
        "compacted_segments": "old parts of the journal that a proof replaces",
        "record_chain": "hash over all records of the journal",
        "replica_chain": "hash over all results that were merged, with the replicas before",
        "applied": "batches whose results were merged, each counted once",
        "torn_bytes": "an incomplete last record, which was never published",
        "damaged_bytes": "a damaged last record, which may have been published",
        "blobs": "results and checkpoints that the run needs, all of them read",
        "wrong_blobs": "those that are missing or damaged; must be 0",
        "recomputed": "which rounds were computed again, and why not all",
        "made_at": "when the copy was begun",
        "step": "the round that the copy ends with",
        "journal_records": "records that were copied",
        "blob_bytes": "their size",
    }
)
"""Fields of the reports of a local run, of an audit and of a backup."""

DECIDED: Mapping[DataDecision, str] = MappingProxyType(
    {
        "append": "decided by `data append`",
        "state file": "decided by the state file",
        "operator": "decided by the operator",
        "first round": "decided by the first round that was applied",
        "turn of its members": "decided by the first round that is applied; it is the turn of these data",
        "nobody yet": "not decided yet",
    }
)
"""The sources of the decision on a run's data."""


def time_label(kind: PartKind) -> str:
    """Return the name of what a run's time went into."""
    part = PARTS.get(kind)
    return WHOSE_NOBODY[kind] if part is None else part.label
