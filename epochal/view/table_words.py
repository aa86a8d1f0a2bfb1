"""What the words of Epochal's tables mean, in one sentence each, for those who see them for the first time."""

from collections.abc import Mapping
from types import MappingProxyType

from epochal.state.messages.requests import DataDecision

COUNTED_FOR_LESS = "it was longer than usual, or more of the merge than one member may be"

STATUS: Mapping[str, str] = MappingProxyType(
    {
        "phase": "what the run does now, and for how long at most",
        "epoch": "rounds from one warm-up to the next cooldown; each ends in a checkpoint",
        "rounds": "in each, every client trains on a part of the data, and the results are merged into the one model",
        "clients": "machines that are ready, of those that have joined",
        "tokens": "pieces of text that the model was trained on",
        "loss": "how badly the model predicts the next token, in nats (1 nat is 1.44 bits); lower is better",
        "evaluation": "loss of the model after that many rounds (its replica), on held-out text: nobody trains on it",
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
"""Words of `epochal.view.status_panel`."""

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
        "compacted_segments": "old parts of the journal that a proof stands for",
        "record_chain": "hash over all records of the journal",
        "replica_chain": "hash over all results that were merged, with the replicas before",
        "applied": "batches whose results were merged, each counted once",
        "torn_bytes": "an incomplete last record, of which nobody was told",
        "damaged_bytes": "a damaged last record, of which somebody may have been told",
        "blobs": "results and checkpoints that the run needs, all of them read",
        "wrong_blobs": "those that are missing or damaged; must be 0",
        "recomputed": "which rounds were computed again, and why not all",
        "made_at": "when the copy was begun",
        "step": "the round that the copy ends with",
        "journal_records": "records that were copied",
        "blob_bytes": "their size",
    }
)
"""Fields of `epochal.tools.testnet.local_report.Report`, of an audit's report and of a backup's."""

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
"""What decided which data a run trains on."""
