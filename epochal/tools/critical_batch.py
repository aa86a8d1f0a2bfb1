"""How many tokens one step of all clients together may have: the critical batch size.

Zhang and others, *How Does Critical Batch Size Scale in Pre-training?* (ICLR 2025, arXiv:2410.21676), define it as the
batch with which the same loss takes a fifth more steps than batches in proportion would. Their fit for models of 85 M
to 1.2 B parameters, each trained with `TOKENS_A_PARAMETER` tokens, is 93.20 samples of 512 tokens times the number of
parameters in millions to the power of 0.47. It follows the number of tokens and hardly the size, as they, and Bergsma
and others (arXiv:2505.13738), found; so it is used here for other ratios of tokens to parameters, too. Outside of these
sizes it is an extrapolation.
"""

import math

from epochal.state.config.state_file import StateFile
from epochal.state.round_model import RunSizes

TOKENS_A_PARAMETER = 20
"""Hoffmann and others, *Training Compute-Optimal Large Language Models* (2022)."""
MORE_STEPS = 0.2
"""Part of the steps by which the same loss takes more of them at the critical batch size."""
NEAR = 0.8
"""Part of the critical batch size from which it is told what that costs."""
SAMPLES, SAMPLE_TOKENS, POWER = 93.20, 512, 0.47


def critical_batch_tokens(parameter_count: int, total_tokens: int | None = None) -> int:
    """Return the tokens of a step of all clients together, from which larger ones learn markedly less from each token.

    Args:
        parameter_count: of the model.
        total_tokens: of the run; None for `TOKENS_A_PARAMETER` of each parameter.
    """
    tokens = total_tokens or TOKENS_A_PARAMETER * parameter_count
    return max(1, round(SAMPLE_TOKENS * SAMPLES * math.pow(tokens / TOKENS_A_PARAMETER / 1e6, POWER)))


def price_of_batch(state: StateFile, sizes: RunSizes) -> str:
    """Return what a run's local steps of many tokens cost, as a sentence's end; "" below about the critical batch."""
    tokens = state.config.global_batch_size_end * sizes.tokens_per_batch
    total = state.config.total_steps * tokens
    part = tokens / state.merge.local_steps / critical_batch_tokens(sizes.parameter_count, total)
    text = (
        f"a local step of all clients is {part:.2g} x the critical batch of a run of {total:,} tokens, at which a loss"
    )
    return f"; {text} takes {100 * MORE_STEPS:.0f} % more of them" if part >= NEAR else ""
