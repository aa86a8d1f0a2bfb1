"""A coordinator's blobs without a coordinator."""

from collections import Counter

from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, sha256_hex


class HeldBlobs:
    """`BlobRequests` over a dictionary.

    Attributes:
        blobs: the answer to each digest, right or wrong.
        asked: how often each blob was fetched.
        manifests: those of checkpoints, by digest.
    """

    def __init__(self, *blobs: bytes) -> None:
        self.blobs = {sha256_hex(data): data for data in blobs}
        self.asked: Counter[Sha256] = Counter()
        self.manifests: dict[Sha256, CheckpointManifest] = {}

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        if sha256 not in self.manifests:
            raise Refused(Refusal.NOT_FOUND, f"no manifest {sha256}")
        return self.manifests[sha256]

    async def put_blob(self, sha256: Sha256, file: SentBytes) -> None:
        self.blobs[sha256] = file.to_bytes()

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        self.asked[sha256] += 1
        if sha256 not in self.blobs:
            raise Refused(Refusal.NOT_FOUND, f"no blob {sha256}")
        file.append(self.blobs[sha256][file.size_bytes :])
