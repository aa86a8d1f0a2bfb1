"""Rounds that have ended, made up for tests of what is said of them."""

from dataclasses import replace
from typing import Any

from epochal.state.messages.history_rows import ClientFigures, RoundDetail, RoundFigures
from tests.support.drive.machine_driver import client

FIGURES = RoundFigures(
    0, 1, 0, 1, 0, 5, 10.0, 12.0, 1.5, 0.5, 1, 2.0, 8, 3.0, 0.1, 16, 16, 3, 3, 3, 3, 4, 4, 0, 0, 0, 300
)  # fmt: skip


def figures_of_client(number: int, **fields: Any) -> ClientFigures:
    """A client that trained for 4 s of 5 and says so, changed by `fields`."""
    known: dict[str, Any] = {
        "client_id": client(number), "batches": 2, "witness": True, "fate": "applied", "detail": "",
        "committed_s": 4.5, "delivered_s": 5.0, "attested_s": 5.5, "result_bytes": 1_000_000, "train_s": 4.0,
        "fetching_s": 0.0, "decoding_s": 0.0, "packing_s": 0.0, "tokens": 8, "loss": 2.0, "document_s": 0.1,
        "idle_s": 0.0, "replica_s": 0.2, "data_s": 0.0, "encode_s": 0.2, "upload_s": 0.4, "check_s": 0.1,
        "attest_s": 0.05, "download_s": 0.3, "merge_s": 0.1, "uploaded_bytes": 1_000_000,
        "downloaded_bytes": 2_000_000,
    }  # fmt: skip
    return ClientFigures(**(known | fields))


def detail_of(number: int, *clients: ClientFigures, **fields: Any) -> RoundDetail:
    """Round `number`, which began when the one before it ended, changed by `fields`."""
    train_s, witness_s = float(fields.pop("train_s", 5.0)), float(fields.pop("witness_s", 0.5))
    reason, away_s = fields.pop("reason", "3 of 3 witnesses attested"), fields.pop("away_s", 0.0)
    started_s = float(fields.pop("started_s", 100.0 + number * (train_s + witness_s)))
    figures = replace(
        FIGURES,
        number=number,
        step=number + 1,
        started_s=started_s,
        ended_s=started_s + train_s + witness_s,
        train_s=train_s,
        witness_s=witness_s,
        clients=len(clients),
    )
    return RoundDetail(replace(figures, **fields), reason, clients, away_s)
