"""The pictures of the run's page in the documentation, from those that the browser's test takes.

`python -m docs.screenshots FOLDER` writes them into `docs/`, each with few colours, so that they stay small. `make
screenshots` takes them first.
"""

import sys
from pathlib import Path

from PIL import Image

PICTURES = {
    "dashboard-run.png": "run-1280.png",
    "dashboard-round.png": "round-whole.png",
    "dashboard-operate.png": "operate-1280.png",
    "dashboard-members-360.png": "members-360.png",
}
"""Name of each picture's source, by its own."""
COLOURS = 255


def main(arguments: list[str]) -> int:
    """Write the pictures; return the exit code."""
    taken, docs = Path(arguments[0]), Path(__file__).parent
    for name, source in PICTURES.items():
        with Image.open(taken / source) as picture:
            picture.convert("RGB").quantize(COLOURS).save(docs / name, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
