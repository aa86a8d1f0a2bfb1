"""`epochal prepare`: tokens per second of processor time beside the bare library, and its memory for 1 GB of text.

The tokenizer is a byte-level BPE of 8,192 tokens, trained on a part of the text: the sources of Python's library.
Memory is the sum of the peaks of all processes, each as the system reports it (`VmHWM`): at least what they had.
"""

import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure

VOCABULARY = 8192
TRAINED_ON = 200
BATCH = 1000
"""Number of texts that the bare library encodes at a time."""
SOURCE_CHARS = 10_000_000
"""Size of the text that is encoded by both."""
LARGE_BYTES = 1_000_000_000
WORKERS = 2
MIB = 1024**2
_ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
_BARE = """
import json, sys, time
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
texts = [json.loads(line)["text"] for line in open(sys.argv[2], encoding="utf-8")]
begin_s, tokens = time.process_time(), 0
for first in range(0, len(texts), int(sys.argv[3])):
    encoded = tokenizer.encode_batch(texts[first : first + int(sys.argv[3])], add_special_tokens=False)
    tokens += sum(len(one.ids) for one in encoded)
print(tokens / (time.process_time() - begin_s))
"""
_BY_DATASETS = """
import hashlib, sys, time
import datasets, numpy, tokenizers

def encoded(batch):
    found = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
    digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in batch["text"]]
    return {"tokens": [numpy.array([*one.ids, 0], "<u2").tobytes() for one in found], "digest": digests}

if __name__ == "__main__":
    datasets.disable_progress_bars()
    begin_s, tokens = time.perf_counter(), 0
    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
    texts = datasets.load_dataset("json", data_files=[sys.argv[2]], split="train", cache_dir=sys.argv[3])
    kinds = datasets.Features({"tokens": datasets.Value("binary"), "digest": datasets.Value("binary")})
    options = {"batch_size": 100, "num_proc": int(sys.argv[4]), "remove_columns": ["text"], "features": kinds}
    with open(sys.argv[3] + "/shard.bin", "wb") as file:
        for row in texts.map(encoded, batched=True, **options):
            tokens += file.write(row["tokens"]) // 2
    print(tokens / (time.perf_counter() - begin_s))
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one run of the command took: processor time and wall time, peak memory, and the tokens that it made."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    tokens: int


def standard_library() -> Iterator[str]:
    """Yield sources of Python's standard library, of about `SOURCE_CHARS` together."""
    left = SOURCE_CHARS
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/*.py"), *folder.glob("*/*/*.py")]):
        if "site-packages" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="replace")
            left -= len(text)
            if text.strip() and left > 0:
                yield text


def measure(folder: Path) -> list[Figure]:
    """Measure the speed beside the bare library, and the memory for 1 GB of text as bytes."""
    source = _source(folder)
    name = f"text prepared with a tokenizer of {VOCABULARY:,}: tokens per processor second"
    if importlib.util.find_spec("tokenizers") is None:
        missing = "not installed: pip install 'epochal[prepare]'"
        return [Figure(name, None, "tokens/s", ">= 0.85 x", None, missing), *_large(folder, source, "bytes")]
    tokenizer = _tokenizer(folder)
    made = _prepare(source, str(tokenizer), folder / "tokens")
    figures = _beside_datasets(made, tokenizer, source, folder)
    return [
        *figures,
        Figure(name, made.tokens / made.cpu_s, "tokens/s", ">= 0.85 x", _bare(tokenizer, source), _BASELINE),
        Figure("its peak memory", made.peak_bytes / MIB, "MiB", "bounded", digits=0),
        *_large(folder, source, "bytes"),
    ]


def _beside_datasets(made: Prepared, tokenizer: Path, source: Path, folder: Path) -> list[Figure]:
    """Return the speed beside `map` of Hugging Face's `datasets`, which writes one file of the same tokens."""
    if importlib.util.find_spec("datasets") is None:
        return []
    (folder / "cache").mkdir()
    arguments = [sys.executable, "-c", _BY_DATASETS, str(tokenizer), str(source), str(folder / "cache"), str(WORKERS)]
    environment = os.environ | _ONE_CORE | {"HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True)
    name = f"the same text, {WORKERS} workers: tokens per second, from start to end"
    beside = f"`datasets`: `load_dataset` and `map` with {WORKERS} processes, without its start"
    return [Figure(name, made.tokens / made.wall_s, "tokens/s", ">= 0.5 x", float(ran.stdout), beside)]


_BASELINE = "`encode_batch` of `tokenizers`, one thread"


def measure_memory(folder: Path) -> list[Figure]:
    """Measure the memory for 1 GB of text with the tokenizer, which takes minutes."""
    source = _source(folder)
    return _large(folder, source, str(_tokenizer(folder)))


def _large(folder: Path, source: Path, tokenizer: str) -> list[Figure]:
    """Prepare 1 GB: the source, again and again."""
    large = folder / "large.jsonl"
    text = source.read_bytes()
    with large.open("wb") as file:
        for _ in range(-(-LARGE_BYTES // len(text))):
            file.write(text)
    size = large.stat().st_size
    made = _prepare(large, tokenizer, folder / "large")
    large.unlink()
    what = "as bytes" if tokenizer == "bytes" else f"with a tokenizer of {VOCABULARY:,}"
    name = f"a file of {size / 1e9:.2f} GB prepared {what}, {WORKERS} workers"
    peak, baseline = made.peak_bytes / MIB, size / MIB
    return [
        Figure(name, size / 1e6 / made.wall_s, "MB/s", digits=1),
        Figure("its peak memory", peak, "MiB", "bounded", baseline, "the file's size"),
    ]


def _source(folder: Path) -> Path:
    path = folder / "text.jsonl"
    lines = (json.dumps({"text": text}) + "\n" for text in standard_library())
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _tokenizer(folder: Path) -> Path:
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    texts = [text for number, text in enumerate(standard_library()) if number < TRAINED_ON]
    trained.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False)
    path = folder / "tokenizer.json"
    trained.save(str(path))
    return path


def _bare(tokenizer: Path, source: Path) -> float:
    arguments = [sys.executable, "-c", _BARE, str(tokenizer), str(source), str(BATCH)]
    ran = subprocess.run(arguments, env=os.environ | _ONE_CORE, check=True, capture_output=True, text=True)
    return float(ran.stdout)


def _prepare(source: Path, tokenizer: str, out: Path) -> Prepared:
    """Run the command, and remove what it wrote."""
    arguments = [sys.executable, "-m", "epochal", "prepare", str(source), "--tokenizer", tokenizer, "--out", str(out)]
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen([*arguments, "--workers", str(WORKERS)], stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for member in _family(process.pid):
            peaks[member] = _peak_bytes(member) or peaks.get(member, 0)
        time.sleep(0.05)
    wall_s, after = time.perf_counter() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0
    manifest = json.loads((out / "train" / "epochal-manifest.json").read_bytes())
    for path in (out / "train").iterdir():
        path.unlink()
    tokens = sum(entry["tokens"] for entry in manifest["files"].values())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Prepared(cpu_s, wall_s, sum(peaks.values()), tokens)


def _family(process: int) -> Iterator[int]:
    """Yield a process and those that it started, as Linux knows them."""
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _peak_bytes(process: int) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
