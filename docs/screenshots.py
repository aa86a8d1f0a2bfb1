"""The pictures of the run's page in the documentation, from those that the browser's test takes.

`python -m docs.screenshots FOLDER [NAME]` writes them into `docs/`, each with few colours, so that they stay small;
with a name, only those of all widths, under that name. `make screenshots` takes them first.
"""

import sys
from pathlib import Path

from PIL import Image

PICTURES = {
    "dashboard-run.png": "run-light-1280.png",
    "dashboard-round.png": "round.png",
    "dashboard-operate.png": "operate.png",
    "dashboard-members-360.png": "members.png",
}
"""Name of each picture's source, by its own."""
WIDTHS = (360, 768, 1280)
SCHEMES = ("light", "dark")
TOGETHER = "dashboard-after"
"""Name of the pictures of the run's page at each width: one for each scheme."""
SCALE = 0.4
GAP = 12
GROUND = (128, 136, 144)
COLOURS = 255
FEW_COLOURS = 128


def together(taken: Path, scheme: str) -> Image.Image:
    """Return the run's page at each width, side by side and made smaller."""
    found = [Image.open(taken / f"run-{scheme}-{width}.png").convert("RGB") for width in WIDTHS]
    smaller = [one.resize((round(one.width * SCALE), round(one.height * SCALE))) for one in found]
    width = sum(one.width + GAP for one in smaller) + GAP
    whole = Image.new("RGB", (width, smaller[0].height + 2 * GAP), GROUND)
    left = GAP
    for one in smaller:
        whole.paste(one, (left, GAP))
        left += one.width + GAP
    return whole


def keep(picture: Image.Image, path: Path, colours: int) -> None:
    """Write a picture with so many colours."""
    quantized = picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    quantized.save(path, optimize=True)


def main(arguments: list[str]) -> int:
    """Write the pictures; return the exit code."""
    taken, docs = Path(arguments[0]), Path(__file__).parent
    name = arguments[1] if len(arguments) > 1 else TOGETHER
    for scheme in SCHEMES:
        keep(together(taken, scheme), docs / f"{name}-{scheme}.png", FEW_COLOURS)
    for own, source in PICTURES.items() if name == TOGETHER else ():
        with Image.open(taken / source) as picture:
            keep(picture, docs / own, COLOURS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
