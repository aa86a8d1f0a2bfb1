"""`prepare`: from sources of text to a folder of shards from which a run starts.

The rules kept here: documents are taken in the order of the sources, so nothing depends on the number of workers; until
everything is done, everything lies in the folder's `.preparing`, and no reader takes it for data.
"""

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from epochal.data_providers.locations import parse_location
from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.sources.hub_dataset import HUB_SCHEME
from epochal.runtime.side_by_side import core_count
from epochal.state.config.file_urls import named_path
from epochal.state.errors import EpochalError, InvalidInput
from epochal.tools.prepare.chats import MARKED_TOKEN_BYTES, ChatEncoder, ChatOptions, template_of
from epochal.tools.prepare.counts import MAX_NAMED, PrepareCounts
from epochal.tools.prepare.encoding_pool import encoded
from epochal.tools.prepare.packed_rows import check_are_records, packed_into_rows, samples_folder
from epochal.tools.prepare.portions import EncodedPortion, Portion, Position
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.publishing import TRAIN, VALIDATION, Finished, Preparation, publish, published
from epochal.tools.prepare.reading import portions
from epochal.tools.prepare.resume_state import DoneSoFar
from epochal.tools.prepare.shards import ShardWriter
from epochal.tools.prepare.sources import Sources, change_since
from epochal.tools.prepare.text_tokenizer import NamedTokenizer, find_tokenizer
from epochal.tools.prepare.texts import DIGEST_BYTES
from epochal.tools.prepare.work_folder import WORKING, changes, other_options, working_folder

COMMIT_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class PrepareProgress:
    """The progress of a preparation.

    Attributes:
        read_bytes, total_bytes: of the sources, as they are stored.
        documents, tokens: number of those that were kept.
        packed: number of the documents that were packed into rows, once all were read; of conversations only.
    """

    read_bytes: int
    total_bytes: int
    documents: int
    tokens: int
    packed: int = 0


Show = Callable[[PrepareProgress], None]


def prepare(
    sources: Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    options: PrepareOptions | None = None,
    show: Callable[[PrepareProgress], None] | None = None,
) -> Preparation:
    """Turn text into shards of tokens with a manifest, and write the files of a run that trains on them. Blocks.

    It goes on where an earlier call with the same arguments was interrupted, whatever interrupted it, and does nothing
    if that one was complete: then the sources must have the same names and sizes. The shards and the manifest are the
    same bytes however many workers there are and however often it was interrupted.

    Args:
        sources: paths of files and folders, URLs of files, and files or folders of buckets (`s3://bucket/folder`), in
            the order in which they are read.
        tokenizer: `"bytes"`, a `tokenizer.json` or the folder that holds one, or a name on the Hugging Face Hub.
        out: the folder to write. It is empty, does not exist, or holds a preparation of the same.
        options: see `PrepareOptions`.
        show: called with the progress every now and then, in this thread.

    Raises:
        InvalidInput: a source, a document or an option is wrong, an extra is missing, or the folder holds something
            else; the message names the place. The user's fault. Nothing is published.
        DataError: a server or bucket does not answer, or refuses; the same call continues later.
        EpochalError: the disk is full, or a worker was killed; the same call continues later.
    """
    options = options or PrepareOptions()
    if not sources:
        raise InvalidInput("there is no source; name a file, a folder or a URL")
    try:
        parse_location(f"tcp://{options.data_address}")
    except InvalidInput as error:
        raise InvalidInput(f"--data-address {options.data_address!r}; allowed: host:port") from error
    found = find_tokenizer(str(tokenizer), options.end_token)
    places, folder = [named_path(str(place), "source") for place in sources], Path(out)
    content = {"sources": places, "tokenizer": found.identity.to_plain(), **options.content()}
    chat = None
    if options.chat:
        chat = ChatOptions(*template_of(options.template, found), options.learn)
        ChatEncoder(chat, found)  # raises if the template cannot be used, before a process is started
        content["template"] = {"name": chat.template_name, "sha256": hashlib.sha256(chat.template.encode()).hexdigest()}
    show = show or _show_nothing
    with working_folder(folder, content) as working:
        if working is None:
            return _complete_before(folder, places, options)
        made = _made(places, content, found, options, chat, working, show)
        left = publish(made, folder, working, found, options.data_address)
    shutil.rmtree(folder / WORKING, ignore_errors=True)
    return published(folder, tuple(left))


def _complete_before(folder: Path, places: Sequence[str], options: PrepareOptions) -> Preparation:
    """Return a preparation that is complete already, unless its sources have changed in name or size since."""
    made = replace(published(folder), was_complete=True)
    hub = f"{HUB_SCHEME}://"  # whose datasets would be downloaded for it
    before = {name: size for name, size in made.counts["files"].items() if not name.startswith(hub)}
    listed = [place for place in places if not place.startswith(hub)]
    with contextlib.suppress(SourceUnavailable):  # what a server holds is not known now
        if change := change_since(before, Sources.of(listed, options.text_suffixes, folder).files):
            way_out = f"name another folder, or remove {' and '.join(f'{folder}/{split}' for split in made.shards)}"
            raise InvalidInput(f"{folder} holds a complete preparation, and {change}; {way_out}", path=str(folder))
    return made


def _made(
    places: Sequence[str], content: dict[str, Any], tokenizer: NamedTokenizer, options: PrepareOptions,
    chat: ChatOptions | None, working: Path, show: Show,
) -> Finished:  # fmt: skip
    """Encode everything that is left; return what is to be published."""
    with contextlib.closing(DoneSoFar.open(working)) as ledger:
        if earlier := ledger.fact("made"):  # only its publishing was interrupted
            if changed := changes(earlier["content"], content):
                raise InvalidInput(other_options(changed))
            return Finished(**earlier)
        sources = Sources.of(places, options.text_suffixes, working.parent)
        if chat is not None:
            check_are_records(sources)
        job = _Job(options, tokenizer, chat, sources, ledger, working, show)
        try:
            job.begin(content)
            job.encode()
            made = Finished(content, job.counts(), job.entries())
            if chat is not None:
                made = packed_into_rows(made, working, options, job.show_packed)
        finally:
            job.close()
        made.check()
        ledger.note("made", asdict(made))
        ledger.commit()
        return made


def _show_nothing(_: PrepareProgress) -> None: ...


class _Job:
    """One preparation under way."""

    def __init__(
        self, options: PrepareOptions, tokenizer: NamedTokenizer, chat: ChatOptions | None, sources: Sources,
        ledger: DoneSoFar, working: Path, show: Show,
    ) -> None:  # fmt: skip
        self._options = options
        self._tokenizer = tokenizer
        self._chat = chat
        self._sources = sources
        self._ledger = ledger
        self._working = working
        self._show = show
        self._threshold = int(options.held_out * 2**64)
        size = tokenizer.identity.token_size if chat is None else MARKED_TOKEN_BYTES
        self._size = size
        shards = working if chat is None else samples_folder(working)
        identity = replace(tokenizer.identity, token_size=size)
        self._writers = {
            split: ShardWriter(shards / split, ledger, options.tokens_of_a_shard, identity)
            for split in (TRAIN, VALIDATION)
        }
        self._counts = PrepareCounts(**(ledger.fact("counts") or {}))
        self._position = Position(**(ledger.fact("position") or {}))

    def begin(self, content: dict[str, Any]) -> None:
        """Note what is prepared, or refuse to resume something else."""
        files = [[file.name, file.size_bytes, file.version] for file in self._sources.files]
        before = self._ledger.fact("content")
        if before is not None and self._position != Position():  # before the first document everything may still change
            if changed := changes(before, content):
                raise InvalidInput(other_options(changed))
            begun = self._position.file + bool(self._position.row)
            if change := _first_change(self._ledger.fact("files")[:begun], files):
                raise InvalidInput(f"{change}. --restart discards it and starts over")
        self._ledger.note("content", content)
        self._ledger.note("files", files)
        self._ledger.commit()

    def encode(self) -> None:
        """Encode every document that was not encoded yet. What was taken before an interruption is kept."""
        committed_s = time.monotonic()
        workers = self._options.workers or core_count()
        self._show(self._progress())
        read = portions(self._sources, self._options, self._position)
        is_whole = True  # false while a portion is taken, which is never committed in part
        with contextlib.closing(encoded(read, workers, self._options, self._tokenizer, self._chat)) as answers:
            try:
                for portion, tokens in answers:
                    is_whole = False
                    self._take(portion, tokens)
                    self._position = portion.after
                    if time.monotonic() - committed_s >= COMMIT_EVERY_S:
                        self._commit()
                        committed_s = time.monotonic()
                    is_whole = True
                    self._show(self._progress())
            except BaseException:
                if is_whole:
                    with contextlib.suppress(EpochalError):  # the error under way says more
                        self._commit()
                raise
        self._commit()

    def show_packed(self, count: int) -> None:
        """Show the number of conversations that were packed into rows."""
        self._show(replace(self._progress(), packed=count))

    def counts(self) -> dict[str, Any]:
        """Return the counts for the manifest."""
        return asdict(self._counts) | {
            "files": {file.name: file.size_bytes for file in self._sources.files},
            "not_read": self._sources.skipped_count,
        }

    def entries(self) -> dict[str, dict[str, dict[str, Any]]]:
        """End the shards; return the manifest's entries of each split that has any."""
        found = {split: writer.finish() for split, writer in self._writers.items()}
        return {split: entries for split, entries in found.items() if entries}

    def close(self) -> None:
        """Close the open shards."""
        for writer in self._writers.values():
            writer.close()

    def _take(self, portion: Portion, encoded: EncodedPortion) -> None:
        """Write the documents of a portion that are kept."""
        counts = self._counts
        for message in [*encoded.bad, *filter(None, [portion.bad])]:
            if not self._options.skip_bad:
                self._commit()  # with --skip-bad it continues from here
                raise InvalidInput(
                    f"{message}. Nothing was written; --skip-bad leaves such documents out and lists them"
                )
            counts.bad += 1
            if len(counts.named) < MAX_NAMED:
                counts.named.append(message)
        counts.empty += encoded.empty
        counts.text_bytes += encoded.text_bytes
        if not (self._options.dedup or self._threshold):
            counts.train_documents += len(encoded.lengths)
            counts.train_tokens += len(encoded.tokens) // self._size
            self._writers[TRAIN].write(memoryview(encoded.tokens))
            return
        self._choose(encoded)

    def _choose(self, encoded: EncodedPortion) -> None:
        """Write each document to its split, but for repeats."""
        counts, tokens = self._counts, memoryview(encoded.tokens)
        parts: dict[str, list[memoryview]] = {TRAIN: [], VALIDATION: []}
        begin = 0
        for number, length in enumerate(encoded.lengths):
            digest = encoded.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
            end = begin + length * self._size
            if self._options.dedup and not self._ledger.is_new(digest):
                counts.duplicates += 1
            elif int.from_bytes(digest[:8], "big") < self._threshold:
                counts.validation_documents += 1
                counts.validation_tokens += length
                parts[VALIDATION].append(tokens[begin:end])
            else:
                counts.train_documents += 1
                counts.train_tokens += length
                parts[TRAIN].append(tokens[begin:end])
            begin = end
        for split, found in parts.items():
            self._writers[split].write(memoryview(b"".join(found)))

    def _commit(self) -> None:
        for writer in self._writers.values():
            writer.sync()
        self._ledger.note("counts", asdict(self._counts))
        self._ledger.note("position", asdict(self._position))
        self._ledger.commit()

    def _progress(self) -> PrepareProgress:
        counts, total = self._counts, self._sources.size_bytes
        return PrepareProgress(self._position.read_bytes, total, counts.documents, counts.tokens)


def _first_change(begun: list[list[Any]], now: list[list[Any]]) -> str:
    """Return in words the first change of the files that were begun; "" if they are as they were."""
    for number, (name, size, version) in enumerate(begun):
        found = now[number] if number < len(now) else [None, 0, ""]
        if found != [name, size, version]:
            how = "changed" if found[0] == name else "is no longer at its place among the sources"
            return f"{name} {how} since the unfinished preparation in this folder began"
    return ""
