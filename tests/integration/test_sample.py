"""`epochal sample` on a real run: at its coordinator, and from its store, as text, as a chat and over HTTP."""

import json
from pathlib import Path

from tests.support.drive.processes import prepared_run

LIKELIEST = ("--temperature", "0", "--max-tokens", "12")


async def test_checkpoint_of_a_served_run_answers_its_operator(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        await run.start_coordinator()
        asked = ("sample", run.url, "--prompt", "def ", *LIKELIEST)
        ran = await run.command_here(*asked, "--json", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(0, "replica 0 answers")
        found = json.loads(ran.out)
        assert (found["step"], found["prompt_tokens"], found["tokens"]) == (0, 4, 12)
        wrong = await run.command_here(*asked, EPOCHAL_ADMIN_TOKEN="nope")
        wrong.expect(2, "is not the admin token of this run's coordinator")
        stored = await run.command_here("sample", str(run.run_dir), "--prompt", "def ", *LIKELIEST, "--json")
        stored.expect(0)
        assert json.loads(stored.out) == found


async def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        store = ("sample", str(run.run_dir))
        cases = {
            ("--prompt", "a", "--chat"): "give one of --prompt, --chat and --serve",
            ("--prompt", "a", "--step", "1", "--follow"): "--follow takes newer checkpoints; leave --step out",
            ("--prompt", "a", "--top-p", "0"): "top_p 0; allowed: above 0, up to 1",
        }
        for words, named in cases.items():
            (await run.command_here(*store, *words)).expect(2, named)
