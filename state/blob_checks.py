"""Checks of results that arrived in an object store, as a pure function of their bytes.

A coordinator and a checker carry out the same one, so that it does not matter who checks.
"""

from typing import Protocol

from epochal.state.errors import InternalError, InvalidDocument, InvalidResult
from epochal.state.messages.blob_messages import (
    MAX_RULE_CHARS,
    OTHER_BYTES,
    CheckVerdict,
    ExpectedResult,
    ParameterNames,
)
from epochal.state.messages.requests import MAX_MESSAGE_CHARS
from epochal.state.model.tensors import Readable, TensorLayout
from epochal.state.results import ResultHeader, check_result
from epochal.state.wire import Sha256


class HashedReadable(Readable, Protocol):
    """Bytes that are read in parts, and their digest."""

    def sha256(self) -> Sha256:
        """Return the digest of all bytes."""
        ...


def names_of(layout: TensorLayout) -> ParameterNames:
    """Return names and shapes as a document."""
    return ParameterNames(tuple(name for name, _ in layout.entries), tuple(shape for _, shape in layout.entries))


def layout_of(document: ParameterNames) -> TensorLayout:
    """Return the layout that a document describes. Raise `InvalidDocument` unless it is valid."""
    if len(document.names) != len(document.shapes):
        raise InvalidDocument(f"{len(document.names)} names of parameters, and {len(document.shapes)} shapes")
    try:
        return TensorLayout(tuple(zip(document.names, document.shapes, strict=True)))
    except InternalError as error:
        raise InvalidDocument(f"names and shapes that are no model's: {error.message}") from error


def verdict_on(expected: ExpectedResult, layout: TensorLayout, data: Readable) -> CheckVerdict:
    """Return the verdict on a result whose digest was compared, in constant memory besides its header.

    Args:
        expected: what it must be.
        layout: names and shapes of the run's parameters.
        data: its bytes.
    """
    wanted = ResultHeader(
        run_id=expected.run_id,
        step=expected.commitment.step,
        attempt=expected.commitment.attempt,
        client_id=expected.client_id,
        work_sha256=expected.work_sha256,
        replica_digest="" if expected.start is None else expected.start.replica_digest,
        codec=expected.codec,
        start="" if expected.start is None else expected.start.result_sha256,
    )
    try:
        header, norm = check_result(data, wanted, layout, expected.max_abs)
    except InvalidResult as error:
        return CheckVerdict(rule=error.rule[:MAX_RULE_CHARS], message=str(error)[:MAX_MESSAGE_CHARS])
    return CheckVerdict(header.replica_digest, norm)


def verdict_on_arrival(expected: ExpectedResult, layout: TensorLayout, data: HashedReadable) -> CheckVerdict:
    """Return the verdict on a result that arrived, as `verdict_on`; its bytes are hashed as they are read."""
    found, sha256 = verdict_on(expected, layout, data), data.sha256()
    if sha256 == expected.sha256:
        return found
    message = f"the blob hashes to {sha256}; {expected.sha256} was announced"
    return CheckVerdict(rule=OTHER_BYTES, message=message)
