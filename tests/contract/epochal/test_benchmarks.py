"""Benchmarks of a run's checkpoints through lm_eval itself, with a task made of the standard library's sources."""

import ast
import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.runtime.permissions import OWNERS
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.state.messages.evaluation_reports import Evaluation, EvaluationReport
from epochal.state.model.replica import Replica, first_replica
from epochal.tools.evaluate.benchmarks import BenchmarkOptions, load_tasks, name_of, scores_of
from epochal.tools.evaluate.evaluator import BenchmarkedReplica, Evaluator, EvaluatorOptions, Figure
from epochal.trainers.architectures import open_model
from tests.support.data.states import state_file
from tests.support.drive.listed_run import ListedRun
from tests.support.heavy import need_module
from tests.support.models.tiny_llama import LLAMA_SPEC, LLAMA_STATE, plain_llama

QUESTIONS = 12
PATIENT = RetryPolicy(first_delay_s=0.0, max_delay_s=0.0, bound_s=60.0)
TASK = """
task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
test_split: test
output_type: {kind}
doc_to_text: "{{{{beginning}}}}"
doc_to_target: {target}
{rest}
metric_list:
{metrics}
metadata:
  version: 1
"""
CHOICE = {"kind": "multiple_choice", "target": "answer", "rest": 'doc_to_choice: "{{endings}}"'}


@pytest.fixture(autouse=True)
def lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("lm_eval")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))


def statements() -> Iterator[str]:
    """The first lines of functions of the standard library."""
    tree = ast.parse(Path(textwrap.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
            yield from (ast.unparse(one).splitlines()[0][:40] for one in node.body[1:3])


def task_file(
    folder: Path, task: str = "endings", metrics: tuple[str, ...] = ("acc", "acc_norm"), **fields: str
) -> str:
    """Write a task, and return its path: which of three lines ends with what the library has there."""
    lines = sorted({line for line in statements() if len(line) > 12})[: QUESTIONS + 2]
    with (folder / f"{task}.jsonl").open("w") as file:
        for number, line in enumerate(lines[:QUESTIONS]):
            endings = [lines[number + place][8:] for place in range(3)]
            file.write(json.dumps({"beginning": line[:8], "endings": endings, "answer": 0, "line": line[8:]}) + "\n")
    shown = "\n".join(f"  - metric: {metric}\n    higher_is_better: true" for metric in metrics)
    fields = CHOICE | fields
    text = TASK.format(task=task, questions=folder / f"{task}.jsonl", metrics=shown, **fields)
    (folder / f"{task}.yaml").write_text(text)
    return str(folder / f"{task}.yaml")


def ngram_run(*steps: int) -> ListedRun:
    state = state_file(model__LLM__ngram={"context": 2, "embedding": 4, "hidden": 8}, model__LLM__max_seq_len=64)
    return run_of(state, state.model.LLM.spec, *steps)


def run_of(state: StateFile, spec: ModelSpec, *steps: int) -> ListedRun:
    model = open_model(spec)
    views: list[list[Replica]] = [[first_replica(step, model.initial_parameters(bytes([step]) * 32))] for step in steps]
    return ListedRun(*views, spec=spec, state=state)


class Desk:
    """What a run's coordinator got, and a person was shown."""

    def __init__(self, run: ListedRun, *tasks: str, **options: Any) -> None:
        self.run = run
        self.reported: list[EvaluationReport] = []
        self.shown: list[Figure] = []
        self.said: list[str] = []
        choices = EvaluatorOptions(None, self.record, self.shown.append, self.said.append)
        self.evaluator = Evaluator(run, BenchmarkOptions(OWNERS, tasks, **options), choices)

    async def record(self, report: EvaluationReport) -> None:
        self.reported.append(report)

    def values(self) -> dict[tuple[int, str, str], float]:
        return {(one.step, one.name, one.benchmark.metric): one.benchmark.value for one in self.shown_figures()}

    def shown_figures(self) -> list[BenchmarkedReplica]:
        return [one for one in self.shown if isinstance(one, BenchmarkedReplica)]


async def test_each_checkpoint_of_a_followed_run_gets_its_figures(tmp_path: Path) -> None:
    task = task_file(tmp_path)
    desk = Desk(ngram_run(1, 2), task)
    async with desk.evaluator as evaluator:
        await evaluator.follow(PATIENT)
    assert list(desk.values()) == [(step, "endings", metric) for step in (1, 2) for metric in ("acc", "acc_norm")]
    for shown, report in zip(desk.shown_figures(), desk.reported, strict=True):
        assert report.benchmark == shown.benchmark
        assert (report.loss, report.tokens, report.samples, shown.recorded) == (None, None, QUESTIONS, True)
        p = shown.benchmark.value
        assert shown.benchmark.stderr == pytest.approx((p * (1 - p) / (QUESTIONS - 1)) ** 0.5)
        assert shown.benchmark.higher_is_better is True
    again = Desk(ngram_run(1, 2), task)
    again.run.history = tuple(Evaluation.of(report, 1.0) for report in desk.reported if report.step == 1)
    async with again.evaluator as evaluator:
        await evaluator.follow(PATIENT)
    assert {step for step, *_ in again.values()} == {2}
    assert "test-run, replica 1: recorded already" in again.said


async def test_figures_are_those_of_log_likelihoods_by_transformers_alone(tmp_path: Path) -> None:
    need_module("torch")
    need_module("transformers")
    import torch

    run = run_of(state_file(**LLAMA_STATE, model__LLM__max_seq_len=128), LLAMA_SPEC, 3)
    greedy = {"kind": "loglikelihood", "target": '"{{line}}"', "rest": ""}
    tasks = task_file(tmp_path), task_file(tmp_path, "lines", ("perplexity", "acc"), **greedy)
    desk = Desk(run, *tasks)
    async with desk.evaluator as evaluator:
        await evaluator.once(None)
    module = plain_llama(open_model(LLAMA_SPEC).initial_parameters(bytes([3]) * 32)).eval()

    def scored(context: str, wanted: str) -> float:
        ids = torch.tensor([list((context + wanted).encode())])
        with torch.no_grad():
            chances = module(input_ids=ids).logits[0, :-1].log_softmax(-1)
        found = chances.gather(1, ids[0, 1:, None])[len(context.encode()) - 1 :]
        return float(found.sum())

    questions = [json.loads(line) for line in (tmp_path / "endings.jsonl").read_text().splitlines()]
    scores = [[scored(one["beginning"], ending) for ending in one["endings"]] for one in questions]
    right = [int(np.argmax(row)) == 0 for row in scores]
    nats = [scored(one["beginning"], one["line"]) for one in questions]
    values = desk.values()
    assert values[3, "endings", "acc"] == pytest.approx(np.mean(right))
    assert values[3, "lines", "perplexity"] == pytest.approx(np.exp(-np.mean(nats)), rel=1e-4)
    assert values[3, "lines", "acc"] == 0.0


async def test_answers_are_generated_and_long_texts_are_read_in_windows(tmp_path: Path) -> None:
    rest = "generation_kwargs:\n  until: ['\\n']\n  max_gen_toks: 4"
    answers = {"kind": "generate_until", "target": '"{{line}}"', "rest": rest}
    rolling = {"kind": "loglikelihood_rolling", "target": '"{{line * 9}}"', "rest": ""}
    tasks = (
        task_file(tmp_path, "answers", ("exact_match",), **answers),
        task_file(tmp_path, "texts", ("byte_perplexity",), **rolling),
    )
    desk = Desk(ngram_run(1), *tasks, samples=3, shots=0)
    async with desk.evaluator as evaluator:
        await evaluator.once(None)
    values = desk.values()
    assert values[1, "answers", "exact_match"] == 0.0
    assert values[1, "texts", "byte_perplexity"] == pytest.approx(256, rel=0.3)
    assert {one.samples for one in desk.shown_figures()} == {3}


@pytest.mark.nightly  # lm_eval reads all its task files
def test_a_task_that_lm_eval_does_not_know_is_refused_with_near_names() -> None:
    with pytest.raises(InvalidInput, match=r"--tasks helaswag: there is no such task; allowed: .*hellaswag"):
        load_tasks(BenchmarkOptions(OWNERS, ("helaswag",)))


def test_a_task_file_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"--tasks gone\.yaml: there is no such file"):
        load_tasks(BenchmarkOptions(OWNERS, ("gone.yaml",)))


def test_a_task_file_that_is_wrong_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text("task: odd\noutput_type: guess\n")
    with pytest.raises(InvalidInput, match=r"task .*odd\.yaml cannot be loaded: "):
        load_tasks(BenchmarkOptions(OWNERS, (str(tmp_path / "odd.yaml"),)))


def test_without_the_hub_a_task_that_needs_it_says_so(tmp_path: Path) -> None:
    remote = TASK.replace("dataset_path: json", "dataset_path: some/questions").replace("dataset_kwargs:", "ignored:")
    fields = CHOICE | {"task": "remote", "questions": "-", "metrics": "  - metric: acc"}
    (tmp_path / "remote.yaml").write_text(remote.format(**fields).replace("ignored:\n  data_files:\n    test: -\n", ""))
    program = """if True:
        import sys
        from epochal.runtime.permissions import OWNERS
        from epochal.tools.evaluate.benchmarks import BenchmarkOptions, ModelUnavailable, load_tasks
        try:
            load_tasks(BenchmarkOptions(OWNERS, (sys.argv[1],)))
        except ModelUnavailable as error:
            print(error.message)
    """
    path = str(tmp_path / "remote.yaml")
    environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "PATH": ""}
    command = [sys.executable, "-c", program, path]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.startswith(f"task {path}: its data, on the Hugging Face Hub, cannot be read: "), ran.stderr
    assert "HF_HUB_OFFLINE=1, or name a task file whose data are on this machine" in ran.stdout


def test_without_lm_eval_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"pip install 'epochal\[eval\]'"):
        load_tasks(BenchmarkOptions(OWNERS, ("arc_easy",)))


def test_group_has_the_questions_of_its_tasks_and_filters_are_named() -> None:
    found = {
        "results": {
            "both": {"alias": "both", "acc,none": 0.5, "acc_stderr,none": "N/A"},
            "one/x": {"alias": "one", "exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": 0.125},
        },
        "n-samples": {"one/x": {"original": 9, "effective": 4}, "two": {"original": 6, "effective": 6}},
        "group_subtasks": {"both": ["one/x", "two"]},
        "higher_is_better": {"both": {"acc": None}, "one/x": {"exact_match": True}},
    }
    both, one = scores_of(found)
    assert (both.task, both.samples, both.figure.value, both.figure.stderr) == ("both", 10, 0.5, None)
    assert (one.task, one.samples, one.figure.metric) == ("one-x", 4, "exact_match-strict-match")
    assert (one.figure.stderr, one.figure.higher_is_better) == (0.125, True)
    assert name_of("!!") == "task"
