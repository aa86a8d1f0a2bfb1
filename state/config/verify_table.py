"""`[verify]`: how many results are computed again, and what makes a run's work unrepeatable (docs/verification.md)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from epochal.state.config.schema import Path, Section

MAX_WITHIN = 64
STATES_BEYOND = 2
"""Inner states that a client keeps beside those of the rounds within which they may be asked for."""
MAX_REPEATABLE_STEPS = 100
"""Number of local steps up to which two machines that do the same work stay closer than honest work and other work."""
MAX_BF16_STEPS = 30
"""Number of local steps up to which they do so in bf16."""


class VerifyConfig(Section):
    """`[verify]`: results that verifiers (`epochal verifier`) look into. Epochal's addition; no such table: none.

    Attributes:
        by: what a verifier does: it computes a result again, or, where that cannot be, only scores it by whether a part
            of it lowers the loss on held-out data.
        percent: part of the results of members that are proven; Psyche's `config.verification_percent` is read as it.
        within: number of rounds after which a result is no longer waited for.
    """

    by: Literal["replays", "scores"] = "replays"
    percent: Annotated[int, Field(ge=1, le=100)] = 5
    within: Annotated[int, Field(ge=1, le=MAX_WITHIN)] = 8

    @property
    def rounds_on_probation(self) -> int:
        """The applied rounds after which a client has its full share: ⌈(1 − p) ÷ p⌉, p the part that is replayed.

        So much work is lost by who is convicted, as one round that is not replayed can gain. It is one at least: where
        each result is replayed, some wait for it, and who has earned nothing must not have as much as others.
        """
        return max(1, -((self.percent - 100) // self.percent))


def with_psyches_percent(tree: Any) -> Any:
    """Return a state file's values with Psyche's `config.verification_percent` as `verify.percent` if it is above 0."""
    config = tree.get("config") if isinstance(tree, Mapping) else None
    percent = config.get("verification_percent") if isinstance(config, Mapping) else None
    table = (tree.get("verify") or {}) if isinstance(tree, Mapping) else None
    if type(percent) is not int or not 1 <= percent <= 100 or not isinstance(table, Mapping):
        return tree
    return {**tree, "verify": {"percent": percent, **table}}


def agrees_with_psyches(percent: int, table: Mapping[str, Any] | None) -> bool:
    """Whether a `[verify]` table says the same as Psyche's line, if there are both."""
    return not percent or table is None or table.get("percent", percent) == percent


def dropouts(table: Mapping[str, Any], place: Path) -> Iterator[tuple[Path, Any]]:
    """Yield place and value of every dropout above 0 in a model's free table, at any depth."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from dropouts(value, (*place, key))
        elif "drop" in str(key).lower() and isinstance(value, int | float) and value > 0:
            yield (*place, key), value
