"""The words with which a run is shown, each with what it means: those of a round's parts, of what became of a client's
work, and of everything else.

The rule kept here: the page in a browser, the terminal, the plots and the report take their words from these tables,
so that one thing has one name wherever it is seen. The page reads them as a module that is made from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from epochal.state.messages.history_rows import ClientFate
from epochal.state.phase_names import RunState
from epochal.state.shown.critical_path import PartKind


@dataclass(frozen=True, slots=True)
class PartWords:
    """A part of a client's time in a round, as it is shown.

    Attributes:
        letter: stands for it where there is room for nothing else.
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
"""What became of a client's work in a round."""
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
"""What a run does in each phase."""
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
    }
    | {part.label: part.means for part in (*PARTS.values(), NOT_TOLD)}
)
"""What each word of a run's views means."""


def time_label(kind: PartKind) -> str:
    """Return the name of what a run's time went into."""
    part = PARTS.get(kind)
    return WHOSE_NOBODY[kind] if part is None else part.label
