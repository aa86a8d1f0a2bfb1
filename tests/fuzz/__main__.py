"""Run atheris on every decoder for a bounded time: `python -m tests.fuzz --seconds 60` (`make fuzz`).

Each module here with a `fuzz_one(data: bytes)` is a target, and gets an equal part of the time in a process of its own.
What atheris learns is kept in `.fuzz/TARGET`, and a string of bytes that breaks a decoder in `.fuzz/TARGET-…`.
"""

import argparse
import importlib
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import tests.fuzz

KEPT = Path(".fuzz")
INSTRUMENTED = ("epochal", "tests")
"""Packages whose branches guide atheris, which knows packages by their first name alone."""
MAX_MEMORY_MB = 1024
MAX_INPUT_BYTES = 8192
MAX_ONE_S = 10
"""Longest time for one string of bytes; a longer one is a finding."""
GRACE_S = 120


def targets() -> list[str]:
    """Names of the modules that have a `fuzz_one`."""
    found = [module.name for module in pkgutil.iter_modules(tests.fuzz.__path__) if module.name != "__main__"]
    return [name for name in found if hasattr(importlib.import_module(f"tests.fuzz.{name}"), "fuzz_one")]


def _fuzz(target: str, seconds: int) -> None:
    """Fuzz one target in this process, which atheris ends."""
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        module = importlib.import_module(f"tests.fuzz.{target}")
    corpus = KEPT / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(getattr(module, "SEEDS", ())):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={seconds}", f"-timeout={MAX_ONE_S}", f"-rss_limit_mb={MAX_MEMORY_MB}"]
    options = [*limits, f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={KEPT / target}-", "-print_final_stats=1"]
    atheris.Setup([target, *options, str(corpus)], module.fuzz_one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="in all (default: 60)")
    parser.add_argument("--only", metavar="TARGET", help="one of the targets")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.in_this_process:
        _fuzz(asked.only, asked.seconds)
        return 0
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed (it has wheels for Linux and some versions of Python): nothing was fuzzed")
        return 1
    names = [asked.only] if asked.only else targets()
    seconds = max(1, asked.seconds // len(names))
    broken: list[str] = []
    for name in names:
        print(f"{name}: {seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--in-this-process", "--only", name, "--seconds", str(seconds)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds + GRACE_S)
            output, is_broken = ended.stdout + ended.stderr, ended.returncode != 0
        except subprocess.TimeoutExpired as stuck:
            output, is_broken = str(stuck), True
        facts = [line for line in output.splitlines() if line.startswith("stat::number_of_executed_units")]
        print("\n".join(output.splitlines()[-40:] if is_broken else facts), flush=True)
        broken += [name] if is_broken else []
    print(f"broken: {', '.join(broken)}; see {KEPT}/" if broken else f"{len(names)} decoders held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
