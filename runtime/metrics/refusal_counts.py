"""Counts of the requests that a service has refused since it began, by kind, and by sender with a valid token."""

from collections import Counter, OrderedDict

from epochal.state.refusals import Refusal

MAX_COUNTED_SENDERS = 4_096
"""Maximum number of senders of which refusals are counted: those that were refused last."""
SENDER_IN_SCOPE = "epochal.sender"
"""Key in the ASGI scope of the member whose token a request has."""


class RefusalCounts:
    """Counts of refused requests. All calls come from the event loop's thread."""

    def __init__(self) -> None:
        self.by_kind: Counter[str] = Counter()
        self._by_sender: OrderedDict[str, Counter[str]] = OrderedDict()

    def add(self, kind: Refusal, sender: str | None) -> None:
        """Count a refused request; `sender` is None for one without a valid token."""
        self.by_kind[kind.value] += 1
        if sender is None:
            return
        self._by_sender.setdefault(sender, Counter())[kind.value] += 1
        self._by_sender.move_to_end(sender)
        if len(self._by_sender) > MAX_COUNTED_SENDERS:
            self._by_sender.popitem(last=False)

    def of_sender(self, sender: str) -> Counter[str]:
        """Return how many of a sender's requests were refused, by kind."""
        return Counter(self._by_sender.get(sender, {}))
