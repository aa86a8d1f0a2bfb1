"""The tutorials: what a page says is what happens, on two machines that are two folders."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.drive.tutorial import Tutorial, steps_of
from tests.support.heavy import need_module, need_program
from tests.support.servers.ports import free_port

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
PAGE = PAGES / "first-model.md"
OWN_TEXT = PAGES / "your-own-text.md"
START = PAGES.parent / "start.md"
OWN_DATA, OWN_MODEL, FINE_TUNING, ADAPTERS, JOIN, OPERATING = (
    PAGES / f"{name}.md" for name in ("your-own-data", "your-own-model", "fine-tuning", "adapters", "join", "operating")
)
TALKING = PAGES.parent / "talking.md"
EXECUTED = {START, PAGE, OWN_TEXT, OWN_DATA, OWN_MODEL, FINE_TUNING, ADAPTERS, JOIN, OPERATING, TALKING}
"""Pages whose steps the tests below execute."""
LOSS_TOLERANCE = 0.3
"""By how much the loss of the first model may differ from the page's: who trains which batch is not the same twice."""

BYTES_KNOW_NOTHING = 5.55
"""The same of a model that gives each of 256 bytes the same probability."""


GUESSES_A_DIGIT = 2.30
"""The same of one who guesses among ten digits."""


@pytest.mark.nightly
async def test_first_model_does_what_the_page_says(tmp_path: Path) -> None:
    for module in ("torch", "transformers"):
        need_module(module)
    need_program("openssl")
    here = {
        "machine-a.example": "localhost",
        "0.0.0.0": "127.0.0.1",
        "8000": str(free_port()),
        "39405": str(free_port()),
    }
    async with Tutorial.open(tmp_path) as tutorial:
        for step in steps_of(PAGE, here):
            await tutorial.take(step)
        await tutorial.interrupt()
    printed = "".join(tutorial.printed)
    finished = re.findall(r"the run is finished with replica ([0-9]+)", printed)
    assert len(finished) == 2
    assert len(set(finished)) == 1
    assert "all checks passed" in printed
    loss = re.search(r"first-model, replica [0-9]+: loss ([0-9.]+) nats per token", printed)
    expected = re.search(r"in nats per token: about ([0-9.]+) with", PAGE.read_text(encoding="utf-8"))
    assert loss is not None
    assert expected is not None
    assert float(loss[1]) == pytest.approx(float(expected[1]), abs=LOSS_TOLERANCE)
    assert "\nThe statement" in f"\n{printed}", "transformers generated nothing from the prompt"
    assert (tmp_path / "A" / "model" / "model.safetensors").exists()


@pytest.mark.nightly
async def test_your_own_text_does_what_the_page_says(tmp_path: Path) -> None:
    for module in ("tokenizers", "torch", "transformers"):
        need_module(module)
    here = {"8000": str(free_port()), "39405": str(free_port())}
    async with Tutorial.open(tmp_path) as tutorial:
        for step in steps_of(OWN_TEXT, here):
            await tutorial.take(step)
        await tutorial.interrupt()
    printed = "".join(tutorial.printed)
    assert "all checks passed" in printed
    loss = re.search(r"my-text, replica [0-9]+: loss ([0-9.]+) nats per token", printed)
    assert loss is not None
    assert float(loss[1]) < BYTES_KNOW_NOTHING - 1
    assert "my-tokens/state.toml is valid, and my-tokens/data.toml fits it" in printed


def free_ports_for(page: Path) -> dict[str, str]:
    """Return a free port for each one that the page names."""
    text = page.read_text(encoding="utf-8")
    return {port: str(free_port()) for port in ("8000", "8001", "39405") if port in text}


async def executed(page: Path, folder: Path, replaced: Mapping[str, str]) -> str:
    """Execute a page's steps on free ports, and return what was printed."""
    async with Tutorial.open(folder) as tutorial:
        for step in steps_of(page, {**replaced, **free_ports_for(page)}):
            await tutorial.take(step)
        await tutorial.interrupt()
    return "".join(tutorial.printed)


@pytest.mark.nightly
async def test_start_does_what_the_page_says(tmp_path: Path) -> None:
    short = {"epochal up --run-dir first-run": "epochal up --run-dir first-run --rounds 4 --trainer null"}
    printed = await executed(START, tmp_path, short)
    assert "my-run/state.toml is valid" in printed
    assert (tmp_path / "A" / "first-run" / "report.html").exists()
    assert printed.startswith("watch the run in a browser: http://")
    assert "was killed without warning" in printed


@pytest.mark.nightly
async def test_own_data_does_what_the_page_says(tmp_path: Path) -> None:
    printed = await executed(OWN_DATA, tmp_path, {})
    assert "my-data/state.toml is valid, and my-data/data.toml fits it" in printed
    assert re.search(r"the run is finished with replica [0-9]+", printed)
    assert (tmp_path / "A" / "report.html").exists()


@pytest.mark.nightly
async def test_own_model_does_what_the_page_says(tmp_path: Path) -> None:
    need_module("torch")
    printed = await executed(OWN_MODEL, tmp_path, {})
    loss = re.search(r"digits, replica 6: loss ([0-9.e-]+) nats per target", printed)
    assert loss is not None
    assert float(loss[1]) < GUESSES_A_DIGIT / 2


@pytest.mark.nightly
async def test_fine_tuning_does_what_the_page_says(tmp_path: Path) -> None:
    need_module("pyarrow")
    printed = await executed(FINE_TUNING, tmp_path, {})
    assert "learnt" in printed
    loss = re.search(r"talks, replica [0-9]+: loss ([0-9.]+) nats", printed)
    assert loss is not None
    assert float(loss[1]) < BYTES_KNOW_NOTHING - 1
    assert (tmp_path / "A" / "answers" / "model.safetensors").exists()


@pytest.mark.nightly
async def test_adapters_does_what_the_page_says(tmp_path: Path) -> None:
    for module in ("torch", "transformers", "peft", "pyarrow"):
        need_module(module)
    printed = await executed(ADAPTERS, tmp_path, {})
    assert "in nf4, which each reads itself" in printed
    finished = re.findall(r"the run is finished with replica ([0-9]+)", printed)
    assert len(finished) == 3
    assert len(set(finished)) == 1
    loss = re.search(r"talks, replica [0-9]+: loss ([0-9.]+) nats", printed)
    assert loss is not None
    assert float(loss[1]) < BYTES_KNOW_NOTHING - 1
    difference = re.search(r"the largest difference between the two is ([0-9.]+)", printed)
    assert difference is not None
    assert float(difference[1]) < 0.001


@pytest.mark.nightly
async def test_talking_does_what_the_page_says(tmp_path: Path) -> None:
    need_module("jinja2")
    need_program("curl")
    short = {"epochal up --run-dir first-run": "epochal up --run-dir first-run --rounds 4", "8200": str(free_port())}
    printed = await executed(TALKING, tmp_path, short)
    assert '"object":"text_completion"' in printed
    assert '"finish_reason":"length"' in printed
    assert "data: [DONE]" in printed
    assert "(replica 4, 60 tokens)" in printed


@pytest.mark.nightly
async def test_joining_does_what_the_page_says(tmp_path: Path) -> None:
    printed = await executed(JOIN, tmp_path, {})
    assert "admits 1 client, until" in printed
    assert "my lab" in printed
    assert printed.count("withdrawn with replica") == 2


@pytest.mark.nightly
async def test_operating_does_what_the_page_says(tmp_path: Path) -> None:
    printed = await executed(OPERATING, tmp_path, {})
    assert "max_round_train_time" in printed
    assert "the run will end after step 90000" in printed
    assert "the run will not end early" in printed
    assert len((tmp_path / "A" / "month.jsonl").read_text().splitlines()) > 0
    assert "withdrawn with replica" in printed
