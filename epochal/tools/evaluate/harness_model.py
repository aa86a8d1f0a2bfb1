"""A replica as lm_eval sees a model: log-likelihoods and continuations, computed by the run's own learner.

A text becomes tokens as the run's data did. Contexts are cut at their beginning to `max_seq_len`, the length on which
the model is trained.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL
from epochal.runtime.long_work import LongWork, long_work
from epochal.state.errors import Unsupported
from epochal.tools.sample.stop_text import StopText
from epochal.tools.sample.text_tokens import TextTokens
from epochal.trainers.continuation import MAX_TOKENS, ChoiceOptions, ContinuingLearner, TokenChoice
from epochal.trainers.learner import Learner

DEFAULT_ANSWER_TOKENS = 256
Pair = tuple[list[int], list[int]]


class ReplicaModel(TemplateLM):  # type: ignore[misc]
    """The replica that a learner holds.

    Args:
        learner: a `ContinuingLearner` that is loaded; called from the thread in which lm_eval runs.
        tokens: how text becomes tokens.
        max_length: number of tokens that the model reads.
        proceed: called between computations; it raises to abandon them.
    """

    def __init__(self, learner: Learner, tokens: TextTokens, max_length: int, proceed: Callable[[], None]) -> None:
        super().__init__()
        self._learner = learner
        self._tokens = tokens
        self._max_length = max_length
        self._proceed = proceed

    @property
    def eot_token_id(self) -> int:
        return min(self._tokens.ends)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        del add_special_tokens  # the run's data have those of the tokenizer between documents only
        return self._tokens.encode(string) if string else []

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, "_Greedy"]]:
        with long_work("computing log-likelihoods", len(requests), "requests") as work:
            return [self._scored(context, wanted, work) for _, context, wanted in requests]

    def _scored(self, context: list[int], wanted: list[int], work: LongWork) -> tuple[float, "_Greedy"]:
        found = self._log_likelihood(context, wanted)
        work.reach(work.done + 1)
        return found, _Greedy(lambda: self._is_greedy(context, wanted))

    def _log_likelihood(self, context: list[int], wanted: list[int]) -> float:
        """Return the logarithm of the probability of the tokens that are wanted after a context."""
        self._proceed()
        tokens = np.array([*context, *wanted][-self._max_length :], np.uint32)
        labels = tokens.astype(np.int64)
        labels[: max(0, tokens.size - len(wanted))] = IGNORED_LABEL
        return -self._learner.evaluate([Example(tokens, labels)]).finite_nats()

    def _is_greedy(self, context: list[int], wanted: list[int]) -> bool:
        """Whether the model, which takes the likeliest token always, would continue a context in this way."""
        sequence = _continuing(self._learner).continuation()
        after = (context[-max(1, self._max_length - len(wanted)) :], *([token] for token in wanted[:-1]))
        return all(int(sequence.logits(new).argmax()) == token for new, token in zip(after, wanted, strict=True))

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        del disable_tqdm
        return [self._rolling(request.args[0]) for request in requests]

    def _rolling(self, text: str) -> float:
        windows = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self._max_length - 1, 1)
        return sum(self._log_likelihood(*make_disjoint_window(window)) for window in windows)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        del disable_tqdm
        with long_work("answering", len(requests), "requests") as work:
            found = []
            for request in requests:
                found.append(self._answer(*request.args))
                work.reach(work.done + 1)
            return found

    def _answer(self, context: str, options: dict[str, Any]) -> str:
        """Return what continues a context, as a task's `generation_kwargs` ask for it."""
        until = options.get("until") or []
        limit = min(int(options.get("max_gen_toks", DEFAULT_ANSWER_TOKENS)), MAX_TOKENS, self._max_length - 1)
        temperature = float(options.get("temperature", 1.0)) if options.get("do_sample") else 0.0
        choice = TokenChoice(ChoiceOptions(limit, temperature, float(options.get("top_p", 1.0)), seed=0))
        sequence, reader = _continuing(self._learner).continuation(), self._tokens.reader()
        stop = StopText([until] if isinstance(until, str) else [one for one in until if one])
        text, new = "", self._tokens.encode(context)[-(self._max_length - limit) :]
        for _ in range(limit):
            self._proceed()
            token = choice.of(sequence.logits(new)[: self._tokens.vocabulary])
            if token in self._tokens.ends:
                break
            text, new = text + stop.add(reader.add(token)), [token]
            if stop.is_reached:
                return text
        return text + stop.add(reader.end()) + stop.end()


class _Greedy:
    """Computes whether a continuation is the likeliest one when a task asks for it: most never do."""

    def __init__(self, compute: Callable[[], bool]) -> None:
        self._compute = compute

    def __bool__(self) -> bool:
        return self._compute()

    def __int__(self) -> int:
        return int(self._compute())


def _continuing(learner: Learner) -> ContinuingLearner:
    if not isinstance(learner, ContinuingLearner):
        raise Unsupported("evaluate", ())
    return learner
