"""Draw a dataset of digits: `python make_digits.py FOLDER` writes its training and validation splits as parquet files.

A digit is drawn 3 by 5 pixels large at a random place of an image of 8 by 8, in a random shade, under noise.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

SIZES = {"train": 4096, "validation": 512}
WIDTH, HEIGHT, SIDE = 3, 5, 8
IGNORED_LABEL = -100
GLYPHS = """
    ### .#. ### ### #.# ### ### ### ### ###
    #.# ##. ..# ..# #.# #.. #.. ..# #.# #.#
    #.# .#. ### ### ### ### ### ..# ### ###
    #.# .#. #.. ..# ..# ..# #.# ..# #.# ..#
    ### ### ### ### ..# ### ### ..# ### ###
"""


def glyphs() -> np.ndarray:
    """Return the ten digits as an array (digit, row, column) of 0 and 1."""
    lines = [line.split() for line in GLYPHS.strip().splitlines()]
    return np.array([[[pixel == "#" for pixel in line[digit]] for line in lines] for digit in range(10)])


def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return images (count, 64) with pixels from 0 to 255, and their digits."""
    digits = rng.integers(10, size=count)
    images = rng.integers(0, 60, (count, SIDE, SIDE))
    for image, glyph in zip(images, glyphs()[digits], strict=True):
        row, column = rng.integers(SIDE - HEIGHT + 1), rng.integers(SIDE - WIDTH + 1)
        image[row : row + HEIGHT, column : column + WIDTH] += glyph * rng.integers(100, 196)
    return images.reshape(count, -1), digits


def write(folder: Path, split: str, rng: np.random.Generator) -> None:
    """Write one split: an image per row, of which only the last place has a label."""
    images, digits = draw(SIZES[split], rng)
    labels = np.full_like(images, IGNORED_LABEL)
    labels[:, -1] = digits
    table = pyarrow.table({"inputs": images.tolist(), "labels": labels.tolist()})
    pyarrow.parquet.write_table(table, folder / f"{split}.parquet", row_group_size=1024)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for name in SIZES:
        write(target, name, generator)
