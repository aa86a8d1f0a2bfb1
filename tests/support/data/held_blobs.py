"""A coordinator's blobs without a coordinator."""

from collections import Counter

from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.errors import Refused
from epochal.state.messages.requests import Report, ResultCommitment, Standing
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, sha256_hex


class HeldBlobs:
    """The requests of blobs and results over a dictionary.

    Attributes:
        blobs: the answer to each digest, right or wrong.
        asked: how often each blob was fetched.
        manifests: those of checkpoints, by digest.
        reports: those that were received.
        takes_deliveries: whether bytes that come with a commitment are kept.
    """

    def __init__(self, *blobs: bytes) -> None:
        self.blobs = {sha256_hex(data): data for data in blobs}
        self.asked: Counter[Sha256] = Counter()
        self.manifests: dict[Sha256, CheckpointManifest] = {}
        self.reports: list[Report] = []
        self.takes_deliveries = True

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        if sha256 not in self.manifests:
            raise Refused(Refusal.NOT_FOUND, f"no manifest {sha256}")
        return self.manifests[sha256]

    async def report(self, report: Report) -> Standing:
        self.reports.append(report)
        return self._standing(report)

    async def send_result(self, commitment: ResultCommitment, data: bytes) -> Standing:
        self.reports.append(commitment)
        if self.takes_deliveries:
            self.blobs[Sha256(commitment.result_sha256)] = data
        return self._standing(commitment)

    def _standing(self, report: Report) -> Standing:
        assert isinstance(report, ResultCommitment)
        sha256 = report.result_sha256
        return Standing(
            ClientId("ab" * 16),
            True,
            True,
            report.step,
            report.attempt,
            sha256,
            sha256 in self.blobs,
            None,
            False,
            False,
        )

    async def put_blob(self, sha256: Sha256, file: SentBytes) -> None:
        self.blobs[sha256] = file.to_bytes()

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        self.asked[sha256] += 1
        if sha256 not in self.blobs:
            raise Refused(Refusal.NOT_FOUND, f"no blob {sha256}")
        file.append(self.blobs[sha256][file.size_bytes :])
