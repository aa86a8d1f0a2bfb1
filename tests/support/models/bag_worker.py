"""A mesh's worker that knows `bag_of_bytes`; a process of its own, in which a test can register nothing."""

import asyncio

from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.mesh.worker import main
from tests.support.models.bag_of_bytes import ARCHITECTURE, ENTRY

if __name__ == "__main__":
    ARCHITECTURES[ARCHITECTURE] = ENTRY
    asyncio.run(main())
