"""The commit of a repository from which a model's config was read.

It stays in the run's model document under transformers' own keys, so that an export copies the tokenizer of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REPOSITORY_KEY, COMMIT_KEY = "_name_or_path", "_commit_hash"
CODE_KEY = "auto_map"
"""Names a model's own code, which is not run."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A commit of a repository on the Hub."""

    repo_id: str
    commit: str

    def __str__(self) -> str:
        return f"hf://{self.repo_id}@{self.commit}"


def with_origin(config: Mapping[str, Any], origin: Origin | None) -> dict[str, Any]:
    """Return a config as it goes into a run's model document.

    Args:
        config: as it was read.
        origin: where it was read; None for a place that only this machine can name.
    """
    found = {key: value for key, value in config.items() if key != COMMIT_KEY}
    return found if origin is None else found | {REPOSITORY_KEY: origin.repo_id, COMMIT_KEY: origin.commit}


def origin_of(hf: Mapping[str, Any] | None) -> Origin | None:
    """Return the commit from which a model document's config was read; None if it does not say one."""
    repo_id, commit = (hf or {}).get(REPOSITORY_KEY), (hf or {}).get(COMMIT_KEY)
    is_known = isinstance(repo_id, str) and isinstance(commit, str) and repo_id and commit
    return Origin(str(repo_id), str(commit)) if is_known else None
