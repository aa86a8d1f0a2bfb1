"""A row as the values of one point in time, for trackers that draw curves over rounds.

Rows that represent several rounds become means of each round, so that a curve continues where older rounds were merged;
the point is at the last round's number.
"""

from epochal.state.messages.history_rows import RoundFigures


def place_of(row: RoundFigures) -> int:
    """Return the number of the last round of a row: the point's place on the axis."""
    return row.next_number - 1


def scalars_of(row: RoundFigures) -> dict[str, float]:
    """Return the values of a row by their names, each with its unit; a round without a loss has none."""
    rounds, seconds = row.rounds, row.train_s + row.witness_s
    found: dict[str, float] = {} if row.loss is None else {"loss/train_nats_per_token": row.loss}
    return found | {
        "schedule/learning_rate": row.learning_rate,
        "progress/step": float(row.step),
        "progress/epoch": float(row.epoch),
        "progress/tokens_total": float(row.tokens_total),
        "progress/version": float(row.version),
        "speed/tokens_per_s": row.tokens / seconds if seconds > 0 else 0.0,
        "speed/tokens_per_round": row.tokens / rounds,
        "time/round_train_s": row.train_s / rounds,
        "time/round_witness_s": row.witness_s / rounds,
        "members/all": float(row.members),
        "members/ready": float(row.ready),
        "members/in_round": float(row.clients),
        "results/per_round": row.results / rounds,
        "results/bytes_per_round": row.result_bytes / rounds,
        "data/applied_batches_per_round": row.applied_batches / rounds,
        "data/lost_batches_per_round": row.lost_batches / rounds,
        "data/carried_batches": float(row.carried_batches),
        "data/quarantined_batches": float(row.quarantined_batches),
        "rounds_in_point": float(rounds),
    }
