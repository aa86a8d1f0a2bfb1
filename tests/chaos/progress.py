"""How a chaos run goes on: the applied rounds that its coordinator logs, and the longest time without one."""

import asyncio
import json
import time
from pathlib import Path

PERIOD_S = 0.1


class Progress:
    """Follows the log of the coordinator, through its restarts. Times are of this process's monotonic clock."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0
        self.rounds = 0
        self.longest_gap_s = 0.0
        self._last_s: float | None = None
        self._advance = asyncio.Event()

    async def follow(self) -> None:
        """Read what is logged, until cancelled."""
        while True:
            for event in self._news():
                if event.get("event") == "outcome_decided" and event.get("applied_results"):
                    self._advanced()
            await asyncio.sleep(PERIOD_S)

    async def wait_for_rounds(self, count: int) -> float:
        """Return the seconds until `count` further rounds were applied."""
        started_s, wanted = time.monotonic(), self.rounds + count
        while self.rounds < wanted:
            self._advance.clear()
            await self._advance.wait()
        return time.monotonic() - started_s

    def _advanced(self) -> None:
        now_s = time.monotonic()
        if self._last_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.rounds += 1
        self._advance.set()

    def _news(self) -> list[dict[str, object]]:
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            file.seek(self._position)
            body = file.read()
        whole = body[: body.rfind(b"\n") + 1]
        self._position += len(whole)
        lines = []
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a killed process's last line may be cut
            if isinstance(event, dict):
                lines.append(event)
        return lines
