"""The files of a new run, with the figures that the planner proposes."""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.data_providers.open_data import OpenOptions, open_described, open_location, run_data
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_file import DataConfig, parse_data_config
from epochal.state.config.state_file import StateFile, parse_state
from epochal.state.errors import EpochalError, InternalError
from epochal.state.round_model import ClientGroup
from epochal.state.text.visible import visible
from epochal.tools.init.proposal import MOST_LOSS, TRAINING_PART, Proposal, proposed
from epochal.tools.init.run_text import NewRun, data_text, state_text
from epochal.tools.plan.plans import PlanOptions

DRAFT = "the draft of state.toml"
OPEN_TIMEOUT_S = 20.0
"""Seconds within which the data must be open for their fingerprint to be known."""
UNPINNED = """\
# data_fingerprint = "…"                # `epochal data inspect` shows it. Not known here: {reason}
"""


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a new run.

    Attributes:
        state: the text of `state.toml`.
        data: the text of `data.toml`; None for a run without a data server.
        proposal: the figures in the first, and the plan with them.
        unpinned: why the first does not pin the fingerprint of the data; "" if it does.
    """

    state: str
    data: str | None
    proposal: Proposal
    unpinned: str


_DRAFT: Mapping[str, Mapping[str, float]] = {
    "config": {
        "warmup_time": 60,
        "cooldown_time": 60,
        "epoch_time": 3600,
        "max_round_train_time": 60,
        "round_witness_time": 10,
        "min_clients": 1,
        "init_min_clients": 1,
        "global_batch_size_start": 8,
        "global_batch_size_end": 8,
        "total_steps": 100,
        "checkpoint_every": 3,
        "client_timeout_s": 30,
    },
    "merge": {"local_steps": 8},
    "blobs": {},
}
"""Figures with which the planner begins; it replaces them."""


def files_of(
    run: NewRun,
    groups: Sequence[ClientGroup],
    options: PlanOptions,
    token_size: int,
    *,
    total_tokens: int | None = None,
    local_steps: int | None = None,
    others: Sequence[NewRun] = (),
) -> Written:
    """Return the files of a run, with timers and sizes that hold for these clients.

    Args:
        run: what it is to be.
        groups: its clients.
        options: of the plan: links and costs.
        token_size: bytes of a token of the data server's files.
        total_tokens: to be trained in all; None for a hundred rounds.
        local_steps: of a round; None for those that lose little.
        others: with other codecs and optimizers. As long as clients train less than `TRAINING_PART` of the time, one of
            them is taken with which they train more, if the loss is little.

    Raises:
        InvalidInput: the planner cannot plan with these clients, or a value is not allowed.
        Unsupported: the model cannot be laid out with what is installed here.
    """
    data = (
        None
        if run.data.folder is None
        else data_text(str(run.data.folder.resolve()), token_size, run.seq_len, secrets.token_bytes(32))
    )
    pin, unpinned = _pin(parse_state(state_text(run, _DRAFT), DRAFT), data)

    def proposal_of(run: NewRun) -> Proposal:
        draft = parse_state(state_text(run, _DRAFT, pin), DRAFT)
        return proposed(draft, groups, options, total_tokens=total_tokens, local_steps=local_steps)

    proposal = proposal_of(run)
    for other in others:
        if proposal.plan.training_part >= TRAINING_PART:
            break
        found = proposal_of(other)
        is_little = found.plan.loss is not None and found.plan.loss <= MOST_LOSS
        if is_little and found.plan.training_part > proposal.plan.training_part:
            run, proposal = other, found
    figures: dict[str, dict[str, Any]] = {
        "config": {**_DRAFT["config"], **proposal.config},
        "merge": proposal.merge,
        "blobs": proposal.blobs,
    }
    text = state_text(run, figures, pin)
    _check_is(parse_state(text, "state.toml"), proposal.state)
    return Written(text, data, proposal, unpinned)


def _pin(state: StateFile, data: str | None) -> tuple[str, str]:
    """Return the line that pins the data, or a comment in its place; and why they are not pinned, "" if they are."""
    try:
        served = None if data is None else parse_data_config(data, "data.toml")
        return f'data_fingerprint = "{asyncio.run(_fingerprint_of(state, served))}"\n', ""
    except (EpochalError, TimeoutError) as error:
        reason = visible(str(error)) or f"they did not answer within {OPEN_TIMEOUT_S:g} s"
        return UNPINNED.format(reason=reason), reason


async def _fingerprint_of(state: StateFile, served: DataConfig | None) -> str:
    """Return the fingerprint of a run's data: of its data server's, or of those that its clients open themselves."""
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        opening = (
            open_location(*run_data(state), OpenOptions(state.run_id, None, OWNERS))
            if served is None
            else open_described(served, Path())
        )
        async with contextlib.aclosing(await opening) as provider:
            return provider.fingerprint


def _check_is(found: StateFile, wanted: StateFile) -> None:
    for table in ("config", "merge", "blobs"):
        if getattr(found, table) != getattr(wanted, table):
            raise InternalError(f"the written [{table}] is not the one that was planned")
