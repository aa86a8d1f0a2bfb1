"""Checks of this machine alone: Python, packages and extras, GPU, memory, disk, arithmetic, a test merge."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from epochal import __version__
from epochal.state.errors import EpochalError
from epochal.state.merging import OuterStep, merge, verify_arithmetic
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.text.amounts import shown_bytes
from epochal.state.text.visible import visible
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, decode_update, update_bytes

PACKAGE = "epochal"
PROGRAM_S = 60.0
"""Maximum time of a program that is asked for the GPU; torch may take long to be imported."""
TORCH_ADVICE = "`python -c 'import torch'` says why; mend or reinstall it"
LEAST_DISK_BYTES = 2 * 1024**3
MERGED_PARAMETERS = 1 << 20
MERGED_DIGEST = "dc139319ef6c0fabbcae5c980642ec2fa4fc5ec486fb0402e978e5bc8b8d9348"
"""Digest of the replica that the test merge gives on every machine that may train."""
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)")
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")
_DEVELOPERS = frozenset({"dev", "bench", "docs"})
_ASK_TORCH = """
import json, torch
devices = [
    [torch.cuda.get_device_name(n), *torch.cuda.mem_get_info(n), torch.cuda.is_bf16_supported()]
    for n in range(torch.cuda.device_count())
] if torch.cuda.is_available() else []
print(json.dumps({"torch": torch.__version__, "devices": devices, "mps": torch.backends.mps.is_available()}))
"""


Verdict = Literal["ok", "note", "problem"]
"""A note names what is missing for some runs; a problem keeps the machine from training."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check.

    Attributes:
        name: of the thing.
        found: as it is, in words and numbers.
        advice: what to do; "" where nothing is to be done.
        kind: what `epochal explain` takes, where it explains more; "" where it does not.
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as it was found.

    Attributes:
        extras: the extras of the package that are installed.
        memory_bytes: memory that programs can still take; None if that is not known.
        gpu_bytes: memory that is free on the largest GPU; None without one that torch can use.
        spool: folder of a client's temporary files.
        spool_bytes: room on its disk.
        findings: in the order in which they are shown.
    """

    extras: frozenset[str]
    memory_bytes: int | None
    gpu_bytes: int | None
    spool: Path
    spool_bytes: int
    findings: tuple[Finding, ...]


def look_at_machine(spool: Path) -> Machine:
    """Return what is found of this machine. Takes some seconds, most of them torch's import."""
    installed, missing = extras()
    memory = available_memory()
    gpu_bytes, gpu = _gpu("torch" in installed)
    disk_bytes = shutil.disk_usage(spool).free
    findings = (_python(), _extras(installed, missing), gpu, _memory(memory), _disk(spool, disk_bytes), merge_finding())
    return Machine(frozenset(installed), memory, gpu_bytes, spool, disk_bytes, findings)


def _python() -> Finding:
    where = f"{platform.system()} {platform.machine()}"
    return Finding("Python", "ok", f"Python {platform.python_version()} on {where}, Epochal {__version__}")


def _requirements() -> Iterator[tuple[str, str | None]]:
    """Yield each distribution that the package may need, and the extra that it belongs to; None for no extra."""
    try:
        lines = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        name, extra = _REQUIREMENT.match(line), _EXTRA.search(line)
        if name is not None:
            yield name[1], None if extra is None else extra[1]


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def extras() -> tuple[list[str], list[str]]:
    """Return the extras of the package that are installed whole, and those that are not."""
    by_extra: dict[str, list[str]] = {}
    for name, extra in _requirements():
        if extra is not None and extra not in _DEVELOPERS:
            by_extra.setdefault(extra, []).append(name)
    installed = [extra for extra, names in by_extra.items() if all(_version_of(name) for name in names)]
    return sorted(installed), sorted(by_extra.keys() - installed)


def _extras(installed: list[str], missing: list[str]) -> Finding:
    found = f"installed: {', '.join(installed) or 'none'}; not installed: {', '.join(missing) or 'none'}"
    advice = f"a run that needs one says so: pip install '{PACKAGE}[NAME]'" if missing else ""
    return Finding("Extras", "ok", found, advice)


def _gpu(has_torch: bool) -> tuple[int | None, Finding]:
    """Return the free memory of the largest GPU that torch can use, and what was found."""
    if has_torch:
        return _gpu_of_torch()
    listed = _output([shutil.which("nvidia-smi") or "", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    if listed:
        names = "; ".join(visible(line.strip()) for line in listed.splitlines()[:8])
        return None, Finding("GPU", "note", names, f"to train on it: pip install '{PACKAGE}[torch]'", "extra-missing")
    return None, Finding("GPU", "note", "none found", "the embedded model needs none; large models need one")


def _gpu_of_torch() -> tuple[int | None, Finding]:
    answer = _output([sys.executable, "-c", _ASK_TORCH])
    try:
        told = json.loads(answer or "")
    except ValueError:
        found = "torch is installed and cannot be imported"
        return None, Finding("GPU", "problem", found, TORCH_ADVICE, "extra-missing")
    devices = told["devices"]
    if not devices:
        if told["mps"]:
            return None, Finding("GPU", "ok", f"Apple GPU (mps), torch {told['torch']}")
        return None, Finding("GPU", "note", f"torch {told['torch']} finds none", "clients train on the processor")
    shown = "; ".join(
        f"{visible(name)}, {shown_bytes(free)} of {shown_bytes(total)} free{'' if has_bf16 else ', no bf16'}"
        for name, free, total, has_bf16 in devices
    )
    return max(free for _, free, _, _ in devices), Finding("GPU", "ok", f"{shown}, torch {told['torch']}")


def _output(command: list[str]) -> str | None:
    """Return the output of a program; None if it is missing, fails, or takes too long."""
    if not command[0]:
        return None
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout if ran.returncode == 0 else None


def available_memory() -> int | None:
    """Return the memory that programs can still take, in bytes; None where the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"^MemAvailable:\s+(\d+) kB", file.read(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _memory(available: int | None) -> Finding:
    if available is None:
        return Finding("Memory", "note", "this system does not report how much is free")
    return Finding("Memory", "ok", f"{shown_bytes(available)} free, {os.cpu_count() or 1} processors")


def _disk(spool: Path, free_bytes: int) -> Finding:
    found = f"{shown_bytes(free_bytes)} free in {spool}, for a client's temporary files"
    if free_bytes < LEAST_DISK_BYTES:
        advice = "make room, or name a folder on another disk with --spool"
        return Finding("Disk", "note", found, advice, "spool-full")
    return Finding("Disk", "ok", found)


def merge_finding() -> Finding:
    """Merge results that are the same everywhere, and compare the replica with what every machine must get."""
    try:
        verify_arithmetic()
        began_s = time.monotonic()
        digest = merged_digest()
        took_s = time.monotonic() - began_s
    except EpochalError as error:
        advice = "another program in this process, or the processor's settings, changed how numbers are rounded"
        return Finding("Test merge", "problem", error.message, advice, "unsound-arithmetic")
    if digest != MERGED_DIGEST:
        found = f"the merged replica has digest {digest[:16]}…, and must have {MERGED_DIGEST[:16]}…"
        advice = "this machine's arithmetic differs: do not train on it; please report it"
        return Finding("Test merge", "problem", found, advice, "unsound-arithmetic")
    rate = MERGED_PARAMETERS / max(took_s, 1e-9) / 1e6
    return Finding("Test merge", "ok", f"bit-identical; {rate:.0f} million parameters a second, digest included")


def merged_digest() -> str:
    """Return the digest of a replica after a merge of three results, computed from integers alone."""
    numbers = np.arange(MERGED_PARAMETERS, dtype=np.uint32)

    def values(seed: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        mixed = (numbers * np.uint32(2654435761) + np.uint32(seed)) >> np.uint32(9)
        return {"w": (mixed.astype(np.float32) / np.float32(2**23) - np.float32(0.5)).reshape(1024, -1)}

    start = Replica(0, values(1), values(2))
    header, rule = UpdateHeader("doctor", 1, "", "int4"), UpdateRule("int4")
    results = [(Weight(count), values(seed)) for count, seed in ((3, 5), (1, 7), (2, 11))]
    update = decode_update(update_bytes(header, rule, start.layout, results), header, start.layout)
    return replica_digest(merge(start, update, OuterStep(0.7, 0.8)))
