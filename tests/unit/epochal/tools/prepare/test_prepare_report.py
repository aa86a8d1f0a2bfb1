"""What `epochal prepare` says of a held-out part that tells little."""

from pathlib import Path

import pytest

from epochal.commands.data.prepare import doubtful_validation
from epochal.tools.prepare.publishing import Preparation
from epochal.tools.prepare.text_tokenizer import TokenizerIdentity

BYTES = TokenizerIdentity("bytes", "", 256, "", 0, 2)


@pytest.mark.parametrize(
    ("train", "held_out", "said"),
    [
        (95_000, 5_000, ""),
        (95_000, 0, ""),
        (
            9_900,
            100,
            "held out: 10 samples, 1.0% of the tokens (--validation asks for 5.0% of the documents): the loss on",
        ),
        (990_000, 10_000, "held out: 1,000 samples, 1.0% of the tokens"),
        (80_000, 20_000, "held out: 2,000 samples, 20.0% of the tokens"),
        (95, 5, ""),
    ],
)
def test_share_far_from_what_was_asked_for_is_named(train: int, held_out: int, said: str) -> None:
    content = {"validation": "1/20", "chat": False, "seq_len": 10}
    shards = {"train": {"a": train}, "validation": {"a": held_out}}
    found = doubtful_validation(Preparation(Path("x"), content, BYTES, {}, shards, {}))
    assert found.startswith(said)
    assert bool(found) == bool(said)
