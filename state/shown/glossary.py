"""The names of what is shown of a run: the parts of a client's round, ends of its work, phases.

The rule kept here: the page in a browser, the terminal, the plots and the reports take their words from these tables,
and from the glossary (`epochal.runtime.glossary`), so that one thing has one name wherever it is seen; and the parts of
a round their colours and patterns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from epochal.state.messages.history_rows import ClientFate
from epochal.state.messages.requests import DataDecision
from epochal.state.phase_names import RunState


@dataclass(frozen=True, slots=True)
class PartWords:
    """A part of a client's time in a round, as it is shown.

    Attributes:
        letter: represents it where there is room for nothing else.
        label: its name.
        means: what the client does in it.
        colour: its ground, as a hexadecimal number of red, green and blue, bright enough for black letters.
        hatch: lines on that ground, in the language of matplotlib's `hatch`, so that parts differ without colours.
    """

    letter: str
    label: str
    means: str
    colour: str
    hatch: str


PARTS: Mapping[str, PartWords] = MappingProxyType(
    {
        "document": PartWords(
            "W", "waiting for the document", "Waiting for the run document that begins the round.", "#c9d3df", ""
        ),
        "replica": PartWords(
            "R",
            "getting the model ready",
            "Getting the model of this round ready: waiting for the last update, fetching and applying it.",
            "#b9dcd6",
            "-",
        ),
        "data": PartWords("D", "data", "Waiting for training data: fetching, decoding and packing it.", "#f2d7a6", "|"),
        "train": PartWords("T", "training", "Computing on the data.", "#a9cdf5", "\\"),
        "encode": PartWords("E", "encoding", "Making the result small enough to send.", "#d9c6f0", "/"),
        "upload": PartWords("U", "upload", "Sending the result.", "#f6b9a2", "--"),
        "check": PartWords("C", "check", "The coordinator, or a checker, checks the result.", "#e9e3a0", "||"),
        "attest": PartWords(
            "A", "attestation", "Waiting until the witnesses attest which results came in time.", "#c4e3b0", "x"
        ),
        "download": PartWords("L", "download", "Receiving the update of the round before.", "#f3bfd8", "+"),
        "merge": PartWords("M", "merge", "Applying the update to the model.", "#b5d7e9", ".."),
    }
)
"""The parts of a client's round in their order, by the name that their seconds have in `ClientFigures` (`train_s`)."""
NOT_REPORTED = PartWords(
    "?", "not reported", "Time of which the client reports nothing, or nothing yet.", "#e6e6e6", "."
)
"""Time of a client that is in none of the parts."""
WHOSE_NOBODY: Mapping[str, str] = MappingProxyType(
    {
        "missing": "results that never came",
        "empty": "rounds of which nothing was applied",
        "between": "between epochs",
        "pause": "paused by an operator",
        "outage": "outages of the coordinator",
        "unknown": NOT_REPORTED.label,
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
        RunState.FINISHED: "the run is finished",
        RunState.PAUSED: "an operator has paused the run",
    }
)
"""The activity of a run in each phase."""

DECIDED: Mapping[DataDecision, str] = MappingProxyType(
    {
        "state file": "decided by the state file",
        "operator": "decided by the operator",
        "first round": "decided by the first round that was applied",
        "turn of its members": "decided by the first round that is applied; it is the turn of these data",
        "nobody yet": "not decided yet",
    }
)
"""The sources of the decision on a run's data."""
