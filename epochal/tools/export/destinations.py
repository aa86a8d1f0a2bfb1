"""The destination of an exported folder: a repository on the Hugging Face Hub; and the names of folders by step."""

from pathlib import Path

from epochal.runtime.hub import HUB_RETRIES, hub, hub_error, hub_failures, repeated
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidInput
from epochal.trainers.sources.folder_source import INDEX_FILE, TOKENIZER_FILES, WEIGHTS_SUFFIX

ALLOWED = "hf://ORGANIZATION/NAME"
STEP_PREFIX = "step-"


class HubDestination:
    """A repository on the Hugging Face Hub; one that does not exist is created, private. An upload is one commit.

    Args:
        repo_id: `ORGANIZATION/NAME`.
        retry_policy: how often a Hub that does not answer is asked again.
    """

    def __init__(self, repo_id: str, retry_policy: RetryPolicy = HUB_RETRIES) -> None:
        hub()
        self.place = f"hf://{repo_id}"
        self._repo_id = repo_id
        self._retry_policy = retry_policy

    def upload(self, folder: Path, step: int) -> str:
        """Upload a folder that is complete, in place of an earlier one, and return the URL of the upload. It blocks.

        Raises:
            InvalidInput: the Hub refuses.
            ModelUnavailable: it does not answer now.
        """

        def commit() -> None:
            api = hub().HfApi()
            try:
                api.create_repo(self._repo_id, private=True, exist_ok=True)
                api.upload_folder(
                    repo_id=self._repo_id,
                    folder_path=folder,
                    commit_message=f"Step {step}",
                    delete_patterns=[f"*{WEIGHTS_SUFFIX}", INDEX_FILE, *TOKENIZER_FILES],
                )
            except hub_failures() as error:
                raise hub_error(error, self.place) from error

        repeated(commit, self._retry_policy)
        return self.place


def parse_destination(text: str) -> HubDestination:
    """Return the destination that `--to` names.

    Raises:
        InvalidInput: it names none, or the library that uploads is not installed.
    """
    scheme, separator, repo_id = text.partition("://")
    organization, _, name = repo_id.partition("/")
    if not separator or scheme != "hf" or not organization or not name or "/" in name:
        raise InvalidInput(f"--to {text!r} is no destination; allowed: {ALLOWED}")
    return HubDestination(repo_id)


def step_name(step: int) -> str:
    """Return the name of a step's folder: names sort as steps do, up to a billion steps."""
    return f"{STEP_PREFIX}{step:09d}"


def step_in(name: str) -> int | None:
    """Return the step of a folder's name; None for other folders."""
    digits = name.removeprefix(STEP_PREFIX)
    is_step = name.startswith(STEP_PREFIX) and digits.isascii() and digits.isdigit()
    return int(digits) if is_step else None
