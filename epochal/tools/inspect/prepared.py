"""The record of `epochal prepare` in a folder: the tokenizer that decodes its tokens."""

import json
from pathlib import Path

from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.tools.prepare.publishing import PREPARATION, TOKENIZER_FOLDER, TRAIN
from epochal.tools.prepare.text_tokenizer import TOKENIZER_FILE, TokenizerIdentity


def prepared_tokenizer(path: Path) -> Path | None:
    """Return the file that decodes a folder's tokens, or a file's in it; None for bytes, or if none is known."""
    for folder in (path, path / TRAIN) if path.is_dir() else (path.parent,):
        try:
            content = json.loads((folder / MANIFEST_NAME).read_bytes())[PREPARATION]["content"]
            TokenizerIdentity(**content["tokenizer"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        file = folder.parent / TOKENIZER_FOLDER / TOKENIZER_FILE
        return file if file.is_file() else None
    return None
