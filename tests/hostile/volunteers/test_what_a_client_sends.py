"""The messages of a client say what the page on a volunteer's machine says that an operator can learn, and no more."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.permissions import Permissions
from epochal.state.errors import EpochalError
from epochal.state.messages.requests import REPORT_PATHS, ChallengeRequest, FailureReport, JoinRequest
from epochal.state.messages.round_times import TimesReport
from epochal.trainers.first_parameters import model_layout
from tests.hostile.volunteers.test_malicious_coordinator import POLICY, STATE, _first_model
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.watched_client import take_part
from tests.support.servers.malicious_coordinator import LIAR_HOST, Lie, MaliciousCoordinator, lying

PAGE = Path(__file__).parents[3] / "docs" / "volunteer-safety.md"
HONEST = Lie("StateFile", ("run_id",), "test-run")
BLOB = re.compile(r"^/v1/blobs/[0-9a-f]{64}$")
LEARNT = {
    "key": "public_key nonce signature host instance invitation joins invitation_sha256",
    "name that you choose": "name",
    "trainer, codecs": "trainer codecs batches_per_round",
    "version": "software protocol",
    "description of the data": (
        "data_fingerprint kind token_size_bytes sequence_length sample_count shuffle file_count total_bytes files "
        "identified_by content sources"
    ),
    "batches": "step attempt received tokens sample_tokens ahead_samples dropped_samples",
    "losses, gradient norms": "loss gradient_norm",
    "sizes and times": (
        "idle_ms replica_ms encode_ms upload_ms attest_ms download_ms merge_ms uploaded_bytes downloaded_bytes train_s "
        "fetching_s decoding_s packing_s size_bytes parts"
    ),
    "digests": "replica_digest result_sha256 blob_sha256 sha256",
    "moments that are asked for": "states begin end",
    "memory and use of the GPU": "memory_bytes memory_total_bytes utilisation",
}
"""Fields of messages, by the words of the page."""
HOLDERS = frozenset({"capabilities", "dataset", "metrics", "data", "work", "before", "gpu", "times"})
"""Fields that hold others."""


async def conversation(lie: Lie, folder: Path) -> tuple[MaliciousCoordinator, str]:
    """Let a client take part in a run; return the server that was asked, and the message of the client's end."""
    (folder / "spool").mkdir()
    ended = ""
    options = ServeOptions(str(folder / "run"), Endpoint(port=0), genesis=Genesis(model_layout, _first_model))
    async with serving(state_file(**STATE), options) as running, lying(running.url, lie) as (url, liar):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BOUND_S):
                try:
                    await take_part(url, folder / "spool", Permissions.of_volunteer(networks=[LIAR_HOST]), POLICY)
                except EpochalError as error:
                    ended = str(error)
    return liar, ended


def fields_of(kind: Any) -> Iterator[str]:
    """Yield the names of all fields of a message, and of the messages within it."""
    if is_dataclass(kind):
        for field in fields(kind):
            yield field.name
            yield from fields_of(field.type)
    elif hasattr(kind, "_fields"):
        yield from kind._fields
    for inner in get_args(kind)[: 1 if get_origin(kind) is Annotated else None]:
        yield from fields_of(inner)


def test_messages_of_a_client_say_what_the_page_says() -> None:
    messages = {*REPORT_PATHS, JoinRequest, ChallengeRequest} - {FailureReport}
    sent = {name for message in messages for name in fields_of(message)}
    assert sent - HOLDERS == {name for names in LEARNT.values() for name in names.split()}
    learnt = " ".join(PAGE.read_text(encoding="utf-8").partition("## What the operator can learn")[2].split())
    sentence = learnt.partition("<!--")[0]
    assert [words for words in LEARNT if words not in sentence] == []


def test_client_that_leaves_says_that_alone() -> None:
    """Its withdrawal has no body (the next test), and the report before it has the times of its last round."""
    assert [field.name for field in fields(TimesReport)] == ["times"]


async def test_client_that_is_not_allowed_says_no_reason(tmp_path: Path) -> None:
    lie = Lie("StateFile", ("model", "LLM", "data_location"), {"Local": "/home/somebody/tokens"})
    liar, ended = await conversation(lie, tmp_path)
    assert "the run names /home/somebody/tokens" in ended
    assert [body for method, path, body in liar.asked if (method, path[-11:]) == ("DELETE", "/clients/me")] == [b""]
    assert not [body for _, _, body in liar.asked if b"allow" in body or b"/home" in body]
    assert not [path for _, path, _ in liar.asked if path.endswith("/failures")]


async def test_client_moves_each_blob_once(tmp_path: Path) -> None:
    liar, ended = await conversation(HONEST, tmp_path)
    assert ended == ""
    moved = Counter((method, path) for method, path, _ in liar.asked if BLOB.match(path))
    assert moved
    assert set(moved.values()) == {1}
    sent = [path for method, path in moved if method != "GET"]
    assert len(sent) <= state_file(**STATE).config.total_steps + 1, "a result a round, and a checkpoint"
