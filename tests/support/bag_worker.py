"""A mesh's worker that knows `bag_of_bytes`; a process of its own, in which a test can register nothing."""

import asyncio

from tests.support.bag_of_bytes import ARCHITECTURE, ENTRY
from trainers.architectures import ARCHITECTURES
from trainers.mesh.worker import main

if __name__ == "__main__":
    ARCHITECTURES[ARCHITECTURE] = ENTRY
    asyncio.run(main())
