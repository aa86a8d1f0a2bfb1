"""`README.md` of a published run: what lies there, and the commands with which anybody checks it."""

_STEP = """\
5. Was the work done? Train some results again, drawn at random, with the run's data, which its state file names
   (`--data` names a copy; a model of torch needs `--trainer torch`, and perhaps `--device`); each distance is shown
   beside the tolerance:

   ```text
   epochal audit --recompute --retrain 20 .
   ```"""
"""The step that trains results again."""


def first_line(run_id: str) -> str:
    """Return the page's first line, by which a folder is known as a publication of this run."""
    return f"# The run {run_id}, to be checked by anybody"


def published_page(run_id: str, coordinator_key: str, version: str, unrepeatable: str) -> str:
    """Return the page.

    Args:
        run_id: the run.
        coordinator_key: its coordinator's raw Ed25519 public key, hex.
        version: of Epochal, which published it.
        unrepeatable: the lines of its state file for which nobody can train its results again; "" if anybody can.
    """
    trained = f"Nobody can train its results again to see whether the work was done: {unrepeatable}."
    trained = trained if unrepeatable else _STEP
    return f"""{first_line(run_id)}

This folder holds all that a check of this training run needs: its journal with every attestation (`run.sqlite`; a
proof in the place of its beginning if it was compacted), its state file, its last checkpoints, and the updates and
results since the older of them (`blobs/`, by SHA-256). `manifest.json` names every file with its size and SHA-256, and
the versions of Epochal, Python, numpy and the rules by which the journal replays. It is signed with the coordinator's
key, `{coordinator_key}`: compare that with the key that a member of the run knows.

No secret is here, and nobody has to be asked. Fetch the folder, open a shell in it, and install what published it,
Epochal {version}: in a copy of its repository, `pip install .` (`pip install '.[torch]'` to train a model of torch).

1. Are the files whole? (On macOS: `shasum -a 256 -c SHA256SUMS`.)

   ```bash
   sha256sum -c SHA256SUMS
   ```

2. Was each batch applied exactly once, does the journal replay to what was published, did quorums attest each replica,
   and is the manifest signed by the run's coordinator?

   ```bash
   epochal audit .
   ```

3. Do the kept results yield the updates and the replicas that were attested, bit for bit?

   ```bash
   epochal audit --recompute .
   ```

4. What happened in the run, round by round and member by member?

   ```bash
   epochal report . --out report.html
   ```

{trained}

Each command ends with exit code 0 if nothing is wrong, and names what is wrong otherwise. What this proves, and what it
cannot, is on the page "Checking a run" of Epochal's documentation.
"""
