"""The members of a large run, as the coordinator's route answers: made up, always the same, without any run."""

import random
from typing import Any

from epochal.state.messages.member_rows import MEMBER_FIGURES


def many_members(count: int) -> dict[str, Any]:
    """Return an answer of `GET …/members` with that many members."""
    chance = random.Random(15)
    rows = [_row(chance, number) for number in range(count)]
    columns = {name: [row[name] for row in rows] for name in MEMBER_FIGURES}
    gone: dict[str, list[Any]] = {name: [] for name in MEMBER_FIGURES}
    page = {"run_id": "test-run", "lineage": "a", "version": 1, "at_s": 1.7e9, "rounds": 3}
    return page | {"members": columns, "gone": gone}


def _row(chance: random.Random, number: int) -> dict[str, Any]:
    is_new = chance.random() < 0.02
    return {
        "client_id": f"{chance.getrandbits(128):032x}",
        "name": f"lab-{number}" if number % 3 else "",
        "software": f"0.9.{number % 3}",
        "trainer": chance.choice(("torch", "numpy")),
        "ready": not is_new,
        "in_roster": number % 2 == 0,
        "ahead_step": 7 if number % 4 == 0 else None,
        "share": chance.randrange(1, 9),
        "part": 0.001,
        "factor": 0.5 if number % 50 == 3 else None,
        "claim": 8,
        "missed": 0,
        "last_miss": "",
        "rest_s": 30.0 if number % 50 == 1 else None,
        "silent_s": round(chance.uniform(0, 20), 3),
        "joined_s": 1.7e9,
        "left": "",
        "applied": chance.randrange(5000),
        "lost": chance.randrange(40),
        "tokens": chance.randrange(10**9),
        "tokens_per_s": None if is_new else round(chance.uniform(100, 1e5), 1),
        "last_loss": None if is_new else chance.uniform(2.5, 4),
        "data_wait": None if is_new else round(chance.random() ** 3, 3),
        "data_wait_s": round(chance.uniform(0, 1e4), 3),
        "train_s": round(chance.uniform(1, 60), 3),
        "result_bytes": chance.randrange(10**10),
        "uploaded_bytes": chance.randrange(10**10),
        "downloaded_bytes": chance.randrange(10**11),
        "gpu_memory_bytes": chance.randrange(80 * 10**9),
        "gpu_memory_total_bytes": 80 * 10**9,
        "gpu_utilisation": round(chance.random(), 3),
    }
