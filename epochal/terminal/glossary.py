"""The words of a run's view, each with its meaning, as the page in a browser has them."""

from collections.abc import Mapping
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.text import Text

from epochal.terminal.pages import facts

KEYS = (
    ("1 to 7, Tab", "pages; ? this one; q or Ctrl-C leaves"),
    ("↑ ↓", "scroll the page, or choose a member"),
    ("← →", "back in time by a round and forward; PgUp and PgDn by a tenth; Home to the beginning; n returns to now"),
    ("run", "l logarithmic axis of the loss; s smoothed loss"),
    ("round", "[ older round, ] newer round"),
    ("members", "o sorts by the next column, r reverses, / filters, Enter opens a member's own page, Esc goes back"),
    ("operate", "a letter begins an action; y or n answers its question; Esc does nothing; k forgets the token"),
)
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
            "Remaining steps times the mean time from one of the last rounds to the next, with those that were not "
            "applied and what lies between epochs, without pauses."
        ),
        "tokens": "Pieces of text that the model was trained on and whose results were applied.",
        "tokens/s": (
            "Tokens that were applied in the last rounds, divided by the time from the first one's start to "
            "the last one's end."
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
            "The batches that no result has covered yet, such as those of a client that left: they are in a "
            "later round."
        ),
        "under way": "The batches of the round that is trained on now.",
        "quarantined": "The batches on which several clients failed: they left the run, with the reason.",
        "checkpoint": (
            "The whole model as a file, which the coordinator has checked: from there a new member, or a "
            "restart, goes on."
        ),
        "document": "Waiting for the run document that begins the round.",
        "data": "Waiting for training data: fetching, decoding and packing it.",
        "training": "Computing on the data.",
        "encoding": "Making the result small enough to send.",
        "upload": "Sending the result.",
        "check": "The coordinator, or a checker, checks the result.",
        "attestation": "Waiting for the witnesses to say which results came in time.",
        "download": "Receiving the other clients' results.",
        "replica": "Getting the model of this round ready: fetching and merging the results of the round before.",
        "merge": "Averaging all results into the model.",
        "witness": "A client that was elected to say which results came in time.",
        "attempt": "The number of earlier tries at the same step.",
        "median": "Half of the values are smaller, half are larger.",
    }
)


def help_page() -> RenderableType:
    """Return the keys, and what the words mean."""
    return Group(Text("Keys", style="bold"), facts(iter(KEYS)), Text(), Text("Words", style="bold"),
                 facts(iter(WORDS.items())))  # fmt: skip
