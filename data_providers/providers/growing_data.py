"""The provider of a run's data that may grow: it follows the run's generations, and reads appended files in place.

A provider over files that has them all delivers every generation (`state/generations.py`): the older ones have its
first files. So does a provider that was opened before the files were appended, once it is opened again. What other
providers deliver, such as a data server, is one of the generations as a whole, with all before it.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from typing import Any

from epochal.data_providers.description import describe_order, description_of
from epochal.data_providers.order import DataOrder
from epochal.data_providers.protocol import DataProvider, SourceUnavailable, TokenBatch, expecting
from epochal.runtime.retry import RetryPolicy
from epochal.state.dataset_descriptions import DatasetDescription
from epochal.state.errors import DataError, InternalError, InvalidInput
from epochal.state.generations import DataGeneration, Generations
from epochal.state.intervals import DataIds

FIRST_LOOK_S, MAX_LOOK_S = 1.0, 30.0
"""The first and the longest wait before the data are opened again to see whether the appended files have arrived. Each
time up to 64 MiB of local files with a manifest are compared with it."""
MAX_PREFIX_ENTRIES = 1_000_000
"""Bounds the search for the run's data among the first files of larger ones: files of all that were tried."""

log = logging.getLogger(__name__)

Reopen = Callable[[], Awaitable[DataProvider]]
Look = Callable[[DataProvider, int], Awaitable[Sequence[str]]]
"""Return in words why the run cannot be trained on the files of a provider after the first so many."""


def order_of(provider: DataProvider) -> DataOrder[Any] | None:
    """Return the order of a provider over files, or None."""
    found = getattr(provider, "order", None)
    return found if isinstance(found, DataOrder) else None


def found_among(provider: DataProvider, fingerprint: str) -> DataGeneration | None:
    """Return the dataset with this fingerprint as the first files of a provider's, or all of them; None if it is not.

    A fingerprint over names and sizes is found too where the contents are known. Blocks: it hashes names.
    """
    order = order_of(provider)
    if order is None:
        return None
    tried = 0
    for file_count in range(len(order.files), 0, -1):
        tried += file_count
        if tried > MAX_PREFIX_ENTRIES and file_count < len(order.files):
            return None
        if order.is_of_first(file_count, fingerprint):
            return DataGeneration(0, fingerprint, order.first_files(file_count).sequence_count, file_count)
    return None


class FollowingDataProvider:
    """A `DataProvider` over another one, which it closes, of data that may grow while a run continues.

    Args:
        provider: as it was opened first.
        reopen: opens it again, with the files that are there then.
        look: inspects appended files before they are taken; None to take them unseen.
        serves: whether they are a data server's, for messages.

    Attributes:
        fingerprint: of the newest of the run's data that are here; of the provider's own, if they are not the run's.
        description: of the same data.
    """

    def __init__(
        self, provider: DataProvider, reopen: Reopen, look: Look | None = None, *, serves: bool = False
    ) -> None:
        self._inner = provider
        self._reopen = reopen
        self._look = look
        self._serves = serves
        self._generations: Generations = ()
        self._run_fingerprint: str | None = None
        self._held: Generations = ()
        self._users: dict[DataProvider, int] = {}
        self._looking = asyncio.Lock()
        self._closed = False
        self._said = ""
        self.fingerprint = provider.fingerprint
        self.description: DatasetDescription | None = description_of(provider)

    @property
    def inner(self) -> DataProvider:
        """The provider as it was opened last."""
        return self._inner

    @property
    def sequence_count(self) -> int | None:
        return self._held[-1].sample_count if self._held else self._inner.sequence_count

    @property
    def is_at_hand(self) -> bool:
        """Whether the provider's samples are there as soon as they are asked for."""
        return bool(getattr(self._inner, "is_at_hand", False))

    @property
    def is_behind(self) -> bool:
        """Whether the run's data have grown, and the appended files are not here yet."""
        return bool(self._held) and len(self._held) < len(self._generations)

    def serves(self, fingerprint: str | None) -> bool:
        """Whether data with this fingerprint are among those that are here."""
        return fingerprint == self.fingerprint or fingerprint in {found.fingerprint for found in self._held}

    def check_reaches(self, fingerprint: str | None) -> None:
        """Raise `InvalidInput` if the run's data have grown to this fingerprint, and appended files are not here.

        A client without them would be refused once it is ready, after it has fetched and replayed what the run did.

        Args:
            fingerprint: of the data that the run's next round needs.
        """
        grown = next((found for found in self._generations if found.fingerprint == fingerprint), None)
        if grown is None or not self.is_behind or self.serves(fingerprint):
            return
        raise InvalidInput(
            f"the run's data have grown: from data index {grown.first_data_index} on, which its next round may reach, "
            f"they are {grown.sample_count} samples in {grown.file_count} files with fingerprint {grown.fingerprint}, "
            f"and {self._held[-1].file_count} of the files are here: add the others and start the client again"
        )

    async def follow(self, generations: Generations, run_fingerprint: str | None) -> bool:
        """Take over the run's data as they are now; return whether this provider's fingerprint is another one since.

        Args:
            generations: of data that have grown; empty if they have not.
            run_fingerprint: of the data on which the run is agreed; None if it is not.
        """
        if (generations, run_fingerprint) == (self._generations, self._run_fingerprint):
            return False
        before = self.fingerprint
        self._generations, self._run_fingerprint = generations, run_fingerprint
        await self._take(self._inner)
        return self.fingerprint != before

    async def look_again(self) -> None:
        """Open the data again if they are behind; keep them as they are if that brings nothing that fits the run."""
        if not self.is_behind or self._closed:
            return
        async with self._looking:
            if not self.is_behind or self._closed:
                return
            try:
                opened = await self._reopen()
            except (DataError, InvalidInput, OSError) as error:
                self._warn("appended_data_not_opened", str(error))
                return
            try:
                is_more = await self._brings_more(opened)
            except BaseException:
                await opened.aclose()
                raise
            if not is_more:
                await opened.aclose()
                return
            await self._take(opened)
            replaced, self._inner = self._inner, opened
            log.info("data_have_grown", extra={"fingerprint": self.fingerprint, "files": self._held[-1].file_count})
            if not self._users.get(replaced):
                await replaced.aclose()

    async def _brings_more(self, opened: DataProvider) -> bool:
        """Whether a provider has more of the run's data than are here, on which the run can be trained."""
        if len(await self._held_by(opened, self._generations)) <= len(self._held):
            return False
        if self._look is None:
            return True
        try:
            problems = await self._look(opened, self._held[-1].file_count)
        except (DataError, InvalidInput, OSError) as error:
            self._warn("appended_data_not_opened", str(error))
            return False
        if problems:
            self._warn(
                "appended_data_refused", f"the run cannot be trained on the appended data: {'; '.join(problems)}"
            )
        return not problems

    def _warn(self, event: str, reason: str) -> None:
        """Log a warning, unless it is the last one again."""
        if reason != self._said:
            self._said = reason
            log.warning(event, extra={"reason": reason})

    async def catch_up(self, policy: RetryPolicy) -> None:
        """Open the data again and again until the appended files are here; warn meanwhile."""
        patient = replace(policy, first_delay_s=FIRST_LOOK_S, max_delay_s=MAX_LOOK_S)
        backoff = replace(patient, bound_s=math.inf, attempts=math.inf).begin()
        said = False
        await self.look_again()
        while self.is_behind:
            behind = SourceUnavailable(self._behind_in_words())
            if not said:
                log.warning("data_are_behind", extra={"reason": behind.message})
                said = True
            await backoff.wait(behind)
            await self.look_again()

    def _behind_in_words(self) -> str:
        """Return which files are missing, for the person who can bring them."""
        missing, count = self._generations[len(self._held)], self._held[-1].file_count
        if self._serves:
            lack = f"this data server has {count} of them: add the others to its folder, or it cannot serve them"
        elif order_of(self._inner) is None:
            lack = (
                f"the data server has {count} of them: the others are to be added where it runs, and this client "
                "cannot train from there on before that"
            )
        else:
            lack = f"this client has {count} of them: add the others to its data, or it cannot train from there on"
        return (
            f"the run's data have grown: from data index {missing.first_data_index} on they are "
            f"{missing.sample_count} samples in {missing.file_count} files, and {lack}"
        )

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`.

        Also raises `SourceUnavailable` for those of a generation whose files are not here.
        """
        if self._closed:
            raise InternalError("get_samples after aclose")
        self._check_here(data_ids)
        provider = self._inner
        self._users[provider] = self._users.get(provider, 0) + 1
        try:
            return await provider.get_samples(data_ids)
        finally:
            self._users[provider] -= 1
            if not self._users[provider]:
                del self._users[provider]
                if provider is not self._inner and not self._closed:
                    await provider.aclose()

    def expecting(self, data_ids: Sequence[DataIds], samples_per_request: int) -> AbstractContextManager[None]:
        """Let the provider read ahead within the context, as `Expecting.expecting`."""
        return expecting(self._inner, data_ids, samples_per_request)

    def _check_here(self, data_ids: DataIds) -> None:
        if not self.is_behind:
            return
        missing = self._generations[len(self._held)]
        if data_ids.end >= missing.first_data_index:
            raise SourceUnavailable(
                f"data index {max(missing.first_data_index, data_ids.start)} is of data that have grown to "
                f"{missing.sample_count} samples in {missing.file_count} files; the appended files are not here yet"
            )

    async def aclose(self) -> None:
        """Close the provider, and one before it that still answers."""
        self._closed = True
        async with AsyncExitStack() as closing:
            for provider in {id(found): found for found in (self._inner, *self._users)}.values():
                closing.push_async_callback(provider.aclose)

    async def _take(self, provider: DataProvider) -> None:
        """Note which of the run's data a provider delivers."""
        order = order_of(provider)
        if order is None:
            self._held = await self._held_by(provider, self._generations)
            self.fingerprint, self.description = provider.fingerprint, description_of(provider)
            expect = getattr(provider, "expect_one_of", None)
            if expect is not None and self._held:
                expect([found.fingerprint for found in self._generations])
            return
        generations = self._generations
        if not generations and self._run_fingerprint not in (None, provider.fingerprint):
            # These files may be more than the run's so far, or the run's may be known by name and size alone.
            found = await asyncio.to_thread(found_among, provider, self._run_fingerprint)
            generations = () if found is None else (found,)
        self._held = held = await self._held_by(provider, generations)
        self.fingerprint = held[-1].fingerprint if held else provider.fingerprint
        described = description_of(provider)
        if held and described is not None and held[-1].file_count < len(order.files):
            part = await asyncio.to_thread(order.first_files, held[-1].file_count)
            described = replace(
                describe_order(described.kind, part),
                token_size_bytes=described.token_size_bytes,
                sequence_length=described.sequence_length,
            )
        self.description = described

    async def _held_by(self, provider: DataProvider, generations: Generations) -> Generations:
        """Return which of these generations a provider delivers, which from then on follows them."""
        order = order_of(provider)
        if order is not None:
            return generations[: await asyncio.to_thread(order.follow, generations)]
        fingerprints = [found.fingerprint for found in generations]
        return generations[
            : fingerprints.index(provider.fingerprint) + 1 if provider.fingerprint in fingerprints else 0
        ]
