"""A model in a repository on the Hugging Face Hub, through `huggingface_hub`: its cache, its tokens, its endpoint.

`huggingface_hub` is an extra (`epochal[hub]`). It reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE.
The rules kept here: all files are of one commit, that of the first one; a Hub that does not answer is asked again for a
bounded time, and then the cache is used if it has the file; every refusal has a message of its own. Who may not show
the token reads nothing of the cache unasked (without HF_HUB_OFFLINE): it may hold private repositories.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from epochal.runtime.connections.bandwidth import refuse_if_limited
from epochal.runtime.hub import HUB_FETCHED_BEFORE, HUB_RETRIES, hub, hub_error, hub_failures, repeated
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.adapter_table import BaseFile
from epochal.state.errors import InvalidInput, ModelUnavailable
from epochal.trainers.sources.folder_source import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE
from epochal.trainers.sources.local_model import LocalFile
from epochal.trainers.sources.origin import Origin

_COMMIT_DIGITS, _SHA256_DIGITS = 40, 64


class HubFolder:
    """A `ModelFolder` over a repository on the Hub, whose files are downloaded into the Hub's cache.

    Args:
        repo_id: `ORGANIZATION/NAME`.
        revision: branch, tag or commit; None for the main branch.
        retry_policy: how often a Hub that does not answer is asked again.
        with_token: whether the Hub is shown this machine's token, if it has one.
    """

    def __init__(
        self, repo_id: str, revision: str | None, retry_policy: RetryPolicy = HUB_RETRIES, *, with_token: bool = True
    ) -> None:
        self._token = None if with_token else False
        self._name = f"hf://{repo_id}" + (f"@{revision}" if revision else "")
        self._repo_id = repo_id
        self._revision = revision
        self._retry_policy = retry_policy

    @property
    def place(self) -> str:
        return self._name + (" in the Hub's cache (HF_HUB_OFFLINE is set)" if hub().constants.HF_HUB_OFFLINE else "")

    def origin(self) -> Origin | None:
        return Origin(self._repo_id, self._revision or "") if self._is_pinned() else None

    def open(self, name: str) -> LocalFile | None:
        path = repeated(lambda: self._path_of(name), self._retry_policy)
        if path is None:
            return None
        file = LocalFile(path)
        file.place = f"{self._name}/{name}"
        return file

    def names(self) -> Sequence[str]:
        with suppress(*hub_failures()):
            return list(hub().HfApi(token=self._token).list_repo_files(self._repo_id, revision=self._revision))
        return []

    def identify(self, name: str) -> BaseFile | None:
        """Return size and digest of a file, by what the Hub says of a large one, which is not downloaded for that."""
        if not hub().constants.HF_HUB_OFFLINE:
            with suppress(*hub_failures()):
                url = hub().hf_hub_url(self._repo_id, name, revision=self._revision)
                found = hub().get_hf_file_metadata(url, token=self._token)
                if found.size is not None and len(found.etag or "") == _SHA256_DIGITS:
                    return BaseFile(size_bytes=found.size, sha256=found.etag)
        file = self.open(name)
        return None if file is None else file.identify()

    def is_cached(self, name: str) -> bool:
        """Return whether the file is in the Hub's cache."""
        return self._cached(name) is not None

    def _path_of(self, name: str) -> Path | None:
        """Return the file's path in the cache, downloaded if it is not there; None if the repository lacks it."""
        cached = self._cached(name)
        if hub().constants.HF_HUB_OFFLINE:
            self._pin_to_cache(name)
            return self._cached(name)
        if self._token is False:
            cached = None
        if cached is not None and self._is_pinned():
            return cached
        try:
            return self._downloaded(name)
        except hub_failures() as error:
            failure = hub_error(error, f"{self._name}/{name}")
            if isinstance(failure, ModelUnavailable) and cached is not None:
                return self._pinned_to(cached)
            if isinstance(failure, ModelUnavailable) and self._is_known_to_lack(name):
                return None
            raise failure from error

    def _downloaded(self, name: str) -> Path | None:
        library = hub()
        refuse_if_limited(f"{self._name}: the Hub's library", HUB_FETCHED_BEFORE)
        try:
            url = library.hf_hub_url(self._repo_id, name, revision=self._revision)
            library.get_hf_file_metadata(url, token=self._token, timeout=library.constants.HF_HUB_ETAG_TIMEOUT)
        except library.errors.EntryNotFoundError:
            with suppress(*hub_failures()):  # the library notes in its cache that there is no such file
                library.hf_hub_download(self._repo_id, name, revision=self._revision, token=self._token)
            return None
        # by the name of the branch, which the cache keeps for when the Hub does not answer
        found = library.hf_hub_download(self._repo_id, name, revision=self._revision, token=self._token)
        return self._pinned_to(Path(found))

    def _is_pinned(self) -> bool:
        revision = self._revision or ""
        return len(revision) == _COMMIT_DIGITS and all(digit in "0123456789abcdef" for digit in revision)

    def _cached(self, name: str) -> Path | None:
        found = self._cache_entry(name)
        return Path(found) if isinstance(found, str) else None

    def _is_known_to_lack(self, name: str) -> bool:
        """Return whether the cache knows that the repository has no such file."""
        found = self._cache_entry(name)
        return found is not None and not isinstance(found, str)

    def _cache_entry(self, name: str) -> object:
        """Return the path of the file in the cache as a string; a mark if the repository has none; None if unknown."""
        library = hub()
        try:
            return library.try_to_load_from_cache(self._repo_id, name, revision=self._revision)
        except library.errors.HFValidationError as error:
            raise hub_error(error, self._name) from error

    def _pin_to_cache(self, name: str) -> None:
        """Keep to the commit whose files are in the cache. Raise `InvalidInput` if the cache has none."""
        for kept in (CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, name):
            if (found := self._cached(kept)) is not None:
                self._pinned_to(found)
                return
        raise InvalidInput(
            f"{self._name} is not in the Hub's cache, {hub().constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set; unset "
            "it, or download the repository into the cache",
            place=self._name,
        )

    def _pinned_to(self, path: Path) -> Path:
        """Keep to the commit of a file in the cache, `…/snapshots/COMMIT/NAME`, for the files after it."""
        self._revision = path.parent.name
        return path
