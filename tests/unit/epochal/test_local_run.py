"""The runs of `epochal up`: which trainer trains which, and what their losses must do."""

import sys

import pytest
import tomli_w

from epochal.state.config.model_table import Architecture
from epochal.state.config.state_file import parse_state
from epochal.state.errors import InvalidInput
from epochal.tools.testnet.demos import EMBEDDED_DEMO, LLAMA_DEMO, THREADS_VARIABLE, Demo, demo_of
from epochal.tools.testnet.local_run import ends_of_losses, evaluation_problems, loss_problems
from tests.support.heavy import need_module


@pytest.mark.parametrize(
    ("demo", "architecture"), [(EMBEDDED_DEMO, Architecture.EPOCHAL_NGRAM), (LLAMA_DEMO, Architecture.HF_LLAMA)]
)
def test_state_file_of_each_demo_is_valid(demo: Demo, architecture: Architecture) -> None:
    state = parse_state(tomli_w.dumps(demo.tables()), demo.state_name)
    assert state.model.LLM.spec.architecture is architecture
    assert state.model.LLM.spec.is_complete


def test_schedule_of_each_demo_ends_with_its_rounds() -> None:
    for demo in (EMBEDDED_DEMO, LLAMA_DEMO):
        state = parse_state(tomli_w.dumps(demo.tables()), demo.state_name)
        steps = state.config.total_steps * state.merge.local_steps
        assert getattr(state.model.LLM.lr_schedule, "total_steps", None) == steps


def test_torch_trains_the_llama_and_others_the_embedded_model() -> None:
    need_module("torch")
    need_module("transformers")
    assert [demo_of(name) for name in ("torch", "numpy", "null")] == [LLAMA_DEMO, EMBEDDED_DEMO, EMBEDDED_DEMO]


def test_torch_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match=r"needs torch and transformers: pip install 'epochal\[torch\]'"):
        demo_of("torch")


def test_trainer_that_needs_a_service_is_refused() -> None:
    with pytest.raises(InvalidInput, match="starts no training service for --trainer remote; allowed: numpy, torch"):
        demo_of("remote")


def test_clients_of_torch_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert LLAMA_DEMO.client_environment(3) == {THREADS_VARIABLE: "2"}
    assert LLAMA_DEMO.client_environment(20) == {THREADS_VARIABLE: "1"}
    assert EMBEDDED_DEMO.client_environment(3) == {}


def test_ends_of_losses_do_not_overlap() -> None:
    assert ends_of_losses([5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0]) == (4.0, 1.0)
    assert ends_of_losses([5.0, 4.0, 2.0]) == (5.0, 2.0)
    assert ends_of_losses([]) == (None, None)


@pytest.mark.parametrize(
    ("first", "last", "unigram_entropy", "problem"),
    [
        (5.5, 2.0, 3.2, ""),
        (5.5, 3.0, 3.2, "not well below the unigram entropy 3.200"),
        (5.5, 3.0, None, ""),
        (3.0, 5.5, None, "the loss rose from 3.000 to 5.500"),
        (None, None, 3.2, "no loss was reported"),
    ],
)
def test_loss_must_get_well_below_the_unigram_entropy(
    first: float | None, last: float | None, unigram_entropy: float | None, problem: str
) -> None:
    found = loss_problems(first, last, unigram_entropy)
    assert len(found) == (problem != "")
    assert problem in "".join(found)


@pytest.mark.parametrize(
    ("losses", "problem"),
    [([5.5, 6.0, 2.0], ""), ([5.5], ""), ([], "no checkpoint was evaluated"), ([2.0, 5.5], "rose from 2.000 to 5.500")],
)
def test_held_out_loss_must_fall(losses: list[float], problem: str) -> None:
    found = evaluation_problems(losses)
    assert len(found) == (problem != "")
    assert problem in "".join(found)
