"""Benchmarks of a run's replicas: tasks of lm_eval (https://github.com/EleutherAI/lm-evaluation-harness).

The rule kept here: tasks are loaded before a checkpoint is read, so that a name that is wrong and data that cannot be
read are found first; each error names its task.
"""

import difflib
import importlib.util
import json
import logging
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from epochal.runtime.hub import HUB_FETCHED_BEFORE
from epochal.runtime.permissions import Permissions
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError, ExtraMissing, InvalidInput, ModelUnavailable
from epochal.state.messages.evaluation_reports import MAX_EVALUATION_NAME_CHARS, Benchmark
from epochal.state.model.tensors import Float32Array, TensorLayout
from epochal.state.wire import Sha256, sha256_hex
from epochal.tools.checkpoints.model_of_run import model_of_run
from epochal.tools.checkpoints.readable_run import RunView
from epochal.tools.sample.text_tokens import TextOptions, TextTokens, text_tokens_of
from epochal.trainers.continuation import ContinuingLearner
from epochal.trainers.learner import Learner
from epochal.trainers.torch.torch_options import TorchOptions

MAX_NAMES_SHOWN = 5
BOOTSTRAPS = 1000
"""Samples, drawn again, of which the standard error of a figure without a formula, such as a perplexity, is made."""
_ENDINGS = (".yaml", ".yml")
_NO_FILTER = "none"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """Which tasks are computed, and how.

    Attributes:
        permissions: what the run's documents may use of this machine.
        tasks: names that lm_eval knows (tasks, groups, tags), and paths of task files.
        shots: solved examples before each question; None as each task has it.
        samples: maximum number of questions of a task, from the first one on; None for all.
        text: how text becomes tokens.
        torch: how a model of torch computes; None for the defaults.
    """

    permissions: Permissions
    tasks: tuple[str, ...]
    shots: int | None = None
    samples: int | None = None
    text: TextOptions = field(default_factory=TextOptions)
    torch: TorchOptions | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """One figure of one task.

    Attributes:
        task: its name, or that of a group, as evaluations may be called.
        samples: number of questions.
    """

    task: str
    samples: int
    figure: Benchmark


class BenchmarkComputation:
    """Computes the figures of the same tasks for one replica after the other. `opened_benchmarks` makes it."""

    def __init__(
        self,
        learner: Learner,
        tokens: TextTokens,
        layout: TensorLayout,
        options: BenchmarkOptions,
        tasks: "LoadedTasks",
    ) -> None:
        self.layout = layout
        self._learner = learner
        self._tokens = tokens
        self._options = options
        self._tasks = tasks

    def load(self, parameters: Mapping[str, Float32Array]) -> None:
        """Copy a replica's parameters into the learner. Raise `TrainerFailed` if there is no memory for them."""
        self._learner.load(parameters)

    async def scores(self, worker: Worker, max_length: int) -> list[Score]:
        """Return the figures of the replica that is loaded.

        Args:
            worker: in which the learner computes.
            max_length: number of tokens that the model reads.

        Raises:
            TrainerFailed: a log-likelihood is not finite, or the device failed.
            InvalidInput: a task cannot be computed; the message has lm_eval's reason.
        """
        abandoned = threading.Event()
        try:
            return await worker.run(partial(self._scores, max_length, abandoned))
        finally:
            abandoned.set()

    def _scores(self, max_length: int, abandoned: threading.Event) -> list[Score]:
        import lm_eval

        from epochal.tools.evaluate.harness_model import ReplicaModel

        def proceed() -> None:
            if abandoned.is_set():
                raise _Abandoned

        model = ReplicaModel(self._learner, self._tokens, max_length, proceed)
        options = self._options
        try:
            with _quiet():
                found: Any = lm_eval.simple_evaluate(
                    model,
                    tasks=self._tasks.loaded,
                    num_fewshot=options.shots,
                    limit=options.samples,
                    bootstrap_iters=BOOTSTRAPS,
                    log_samples=False,
                    task_manager=self._tasks.manager,
                )
        except (EpochalError, MemoryError, _Abandoned):
            raise
        except Exception as error:  # a task's own code
            raise InvalidInput(f"--tasks {','.join(options.tasks)}: {_reason(error)}") from error
        return scores_of(found)


def scores_of(found: Mapping[str, Any]) -> list[Score]:
    """Return the figures in what `lm_eval.simple_evaluate` returned, in its order; strings are no figures."""
    scores = []
    for task, figures in found["results"].items():
        samples = _samples_of(task, found)
        for key, value in figures.items():
            metric, _, kept_by = key.partition(",")
            if metric.endswith("_stderr") or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not samples or metric in ("alias", "sample_len", "sample_count"):
                continue
            error = figures.get(f"{metric}_stderr,{kept_by}")
            stderr = float(error) if isinstance(error, int | float) and error >= 0 else None
            better = found.get("higher_is_better", {}).get(task, {}).get(metric)
            name = metric if kept_by in ("", _NO_FILTER) else f"{metric}-{kept_by}"
            scores.append(Score(name_of(task), samples, Benchmark(name_of(name), float(value), better, stderr)))
    return scores


def _samples_of(task: str, found: Mapping[str, Any]) -> int:
    """Return the number of questions of a task, or of all tasks of a group."""
    if task in found["n-samples"]:
        return int(found["n-samples"][task]["effective"])
    return sum(_samples_of(one, found) for one in found.get("group_subtasks", {}).get(task, ()))


def name_of(task: str) -> str:
    """Return the name that a task's evaluations have: what names do not allow becomes a hyphen."""
    return _NOT_IN_NAMES.sub("-", task).strip("-._")[:MAX_EVALUATION_NAME_CHARS] or "task"


def opened_benchmarks(
    view: RunView, options: BenchmarkOptions, tasks: "LoadedTasks"
) -> tuple[BenchmarkComputation, str]:
    """Open model and tokenizer. Return the computation, and a line on the tokenizer's source, or "".

    Args:
        view: the run.
        options: which tasks, and how.
        tasks: as `load_tasks` returned them.

    Raises:
        InvalidInput: the model predicts no tokens that are known here, or there is no tokenizer.
        ModelUnavailable: the tokenizer, or an adapter's base, cannot be read now.
        Unsupported: this version does not compute the architecture, or not with what is installed.
    """
    model = model_of_run(view.spec, options.torch, options.permissions)
    learner = model.learner()
    if not isinstance(learner, ContinuingLearner):
        raise InvalidInput(
            f"--tasks needs a model that predicts text; the run's, {view.spec.architecture.value}, does not"
        )
    base = None if options.torch is None else options.torch.base
    tokens, said = text_tokens_of(view, options.text, base, model.vocabulary or 0)
    layout = TensorLayout(tuple(sorted(model.shapes.items())))
    return BenchmarkComputation(learner, tokens, layout, options, tasks), said


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """Tasks with their data.

    Attributes:
        manager: lm_eval's, which knows their names.
        loaded: lm_eval's tasks and groups.
        names: those of the evaluations that they make.
        fingerprint: SHA-256 of all that decides their figures and can be named.
    """

    manager: Any
    loaded: list[Any]
    names: list[str]
    fingerprint: Sha256


def load_tasks(options: BenchmarkOptions) -> LoadedTasks:
    """Load tasks and their data.

    Raises:
        ExtraMissing: lm_eval is not installed.
        InvalidInput: there is no such task, or it is wrong.
        ModelUnavailable: its data are on the Hub, which cannot be read now.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ExtraMissing("--tasks needs lm_eval: pip install 'epochal[eval]'")
    with _quiet():
        import lm_eval
        from lm_eval.tasks import TaskManager

        names = [name for name in options.tasks if not name.endswith(_ENDINGS)]
        manager = TaskManager(include_defaults=bool(names))  # it reads all its task files, thousands
        for name in options.tasks:
            _check_name(name, manager.all_tasks)
        found: list[Any] = [_loaded(manager, name) for name in options.tasks]
    tasks = {name: task for one in found for name, task in one["tasks"].items()}
    inner = {child for one in found for children in one["group_map"].values() for child in children}
    groups = {name: group for one in found for name, group in one["groups"].items() if name not in inner}
    alone = [task for name, task in tasks.items() if name not in inner]
    configs = {name: task.dump_config() for name, task in tasks.items()}
    deciding = [lm_eval.__version__, configs, options.shots, options.samples]
    text = json.dumps(deciding, sort_keys=True, default=lambda one: getattr(one, "__qualname__", type(one).__name__))
    return LoadedTasks(manager, [*groups.values(), *alone], [name_of(one) for one in tasks], sha256_hex(text.encode()))


def _check_name(name: str, known: Sequence[str]) -> None:
    if name in known:
        return
    if name.endswith(_ENDINGS):
        if not Path(name).is_file():
            raise InvalidInput(f"--tasks {name}: there is no such file")
        return
    near = difflib.get_close_matches(name, known, MAX_NAMES_SHOWN)
    allowed = f"{', '.join(near)}, or another task of lm_eval" if near else "a task of lm_eval"
    raise InvalidInput(f"--tasks {name}: there is no such task; allowed: {allowed}, or a task file, NAME.yaml")


def _loaded(manager: Any, name: str) -> Any:
    """Return a task, or the tasks of a group, with their data."""
    try:
        return manager.load([name])
    except (ConnectionError, TimeoutError) as error:
        raise ModelUnavailable(_on_the_hub(name, error)) from error
    except OSError as error:
        if error.errno is not None:
            raise InvalidInput(f"task {name}: {error}") from error
        raise InvalidInput(_on_the_hub(name, error)) from error
    except Exception as error:  # whatever a task file, or its code, makes of itself
        raise InvalidInput(f"task {name} cannot be loaded: {_reason(error)}") from error


def _on_the_hub(name: str, error: BaseException) -> str:
    return (
        f"task {name}: its data, on the Hugging Face Hub, cannot be read: {_reason(error)}; let this machine reach the "
        f"Hub (HF_ENDPOINT names a mirror, HF_TOKEN an account that may read them), {HUB_FETCHED_BEFORE}, or name a "
        "task file whose data are on this machine"
    )


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _quiet(warnings.catch_warnings):  # noqa: N801 - a context
    """Keeps lm_eval's own lines and warnings of its libraries from the terminal."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        for name in ("lm_eval", "datasets"):
            logging.getLogger(name).setLevel(logging.ERROR)
        return entered


class _Abandoned(Exception):
    """Raised to stop arithmetic whose caller has left; never reaches a caller."""
