"""The commit of a repository from which a model's config was read, and the code that the config names, pinned to it.

Both stay in the run's model document under transformers' own keys, so that every machine opens the same code, and an
export copies the tokenizer of the same commit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

REPOSITORY_KEY, COMMIT_KEY = "_name_or_path", "_commit_hash"
CODE_KEY, CODE_COMMIT_KEY = "auto_map", "code_revision"
MODEL_CLASSES = ("AutoConfig", "AutoModelForCausalLM")
"""The classes of `auto_map` of which a model is made."""
_OF = "--"
"""Stands between a repository and a class in it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A commit of a repository on the Hub."""

    repo_id: str
    commit: str

    def __str__(self) -> str:
        return f"hf://{self.repo_id}@{self.commit}"


def with_origin(config: Mapping[str, Any], origin: Origin | None, commit_of: Callable[[str, str], str]) -> Any:
    """Return a config as it goes into a run's model document.

    Args:
        config: as it was read.
        origin: where it was read; None for a place that only this machine can name.
        commit_of: returns the commit of a repository that holds a file of this name.
    """
    found = {key: value for key, value in config.items() if key != COMMIT_KEY}
    if origin is not None:
        found |= {REPOSITORY_KEY: origin.repo_id, COMMIT_KEY: origin.commit}
    code = config.get(CODE_KEY)
    if not isinstance(code, dict):
        return found
    if origin is not None:
        code = {name: _in_repository(value, origin.repo_id) for name, value in code.items()}
        found[CODE_KEY] = code
    references = [str(code.get(name, "")) for name in MODEL_CLASSES]
    repositories = {reference.partition(_OF)[0] if _OF in reference else "" for reference in references}
    if len(repositories) == 1 and "" not in repositories and (origin is not None or CODE_COMMIT_KEY not in found):
        (repo_id,) = repositories
        module = references[-1].partition(_OF)[2].partition(".")[0]
        if origin is not None and repo_id == origin.repo_id:
            found[CODE_COMMIT_KEY] = origin.commit
        else:
            found[CODE_COMMIT_KEY] = commit_of(repo_id, f"{module}.py")
    return found


def origin_of(hf: Mapping[str, Any] | None) -> Origin | None:
    """Return the commit from which a model document's config was read; None if it does not say one."""
    repo_id, commit = (hf or {}).get(REPOSITORY_KEY), (hf or {}).get(COMMIT_KEY)
    is_known = isinstance(repo_id, str) and isinstance(commit, str) and repo_id and commit
    return Origin(str(repo_id), str(commit)) if is_known else None


def _in_repository(reference: Any, repo_id: str) -> Any:
    """Return a class's reference, or a list of them, with the name of the repository."""
    if isinstance(reference, list):
        return [_in_repository(one, repo_id) for one in reference]
    return f"{repo_id}{_OF}{reference}" if isinstance(reference, str) and _OF not in reference else reference
