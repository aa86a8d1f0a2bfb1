"""The tutorials: what a page says is what happens, on two machines that are two folders."""

import re
from pathlib import Path

from tests.support.heavy import need_module, need_program
from tests.support.ports import free_port
from tests.support.tutorial import Tutorial, steps_of

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
PAGE = PAGES / "first-model.md"
OWN_TEXT = PAGES / "your-own-text.md"
EXECUTED = (PAGE, OWN_TEXT)
"""Pages whose steps the tests below execute."""
KNOWS_NOTHING = 6.24
"""Loss of a model that gives each of 512 tokens the same probability, in nats."""

BYTES_KNOW_NOTHING = 5.55
"""The same of a model that gives each of 256 bytes the same probability."""


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
    assert printed.count("the run is finished with replica 16") == 2
    assert "all checks passed" in printed
    loss = re.search(r"first-model, replica 16: loss ([0-9.]+) nats per token", printed)
    assert loss is not None
    assert float(loss[1]) < KNOWS_NOTHING - 1
    assert "\nThe statement" in f"\n{printed}", "transformers generated nothing from the prompt"
    assert (tmp_path / "A" / "model" / "model.safetensors").exists()


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
