"""A round as people read it: its step, and which try it is where an earlier one applied nothing."""

from epochal.state.documents import tries_before
from epochal.state.text.amounts import counted

_ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


def shown_step(step: int, attempt: int) -> str:
    """Return "step 14", or "step 14, second try"; `attempt` numbers the tries, from a branch's first on."""
    attempt = tries_before(attempt)
    if not attempt:
        return f"step {step}"
    return f"step {step}, {_ORDINALS[attempt - 1] + ' try' if attempt <= len(_ORDINALS) else f'try {attempt + 1}'}"


def shown_progress(step: int, total_steps: int) -> str:
    """Return how many steps are done, where `step` is the one under way: "13 of 40 steps done"."""
    return f"{min(step - 1, total_steps):,} of {counted(total_steps, 'step')} done"
