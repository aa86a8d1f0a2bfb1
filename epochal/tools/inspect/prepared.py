"""The record of `epochal prepare` in a folder: the token that ends a document, and the tokenizer that decodes."""

import json
from dataclasses import dataclass
from pathlib import Path

from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.tools.prepare.publishing import PREPARATION, TOKENIZER_FOLDER, TRAIN
from epochal.tools.prepare.text_tokenizer import TOKENIZER_FILE, TokenizerIdentity


@dataclass(frozen=True, slots=True)
class PreparedData:
    """The tokens of prepared data. `tokenizer` is the file that decodes them; None for bytes, or where it is gone."""

    end_id: int
    tokenizer: Path | None


def prepared_data(path: Path) -> PreparedData | None:
    """Return how a folder's data were prepared, or a file's in it; None if its manifest does not say so."""
    for folder in (path, path / TRAIN) if path.is_dir() else (path.parent,):
        try:
            content = json.loads((folder / MANIFEST_NAME).read_bytes())[PREPARATION]["content"]
            identity = TokenizerIdentity(**content["tokenizer"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        file = folder.parent / TOKENIZER_FOLDER / TOKENIZER_FILE
        return PreparedData(identity.end_id, file if file.is_file() else None)
    return None
