"""The names under which repositories keep tensors that `transformers` holds in another way: experts, mostly.

Many Hugging Face repositories keep each expert's matrices (`….experts.0.gate_proj.weight`, `….experts.0.up_proj.weight`
and so on), some under other names (`….block_sparse_moe.experts.0.w1.weight`). `transformers` from version 5 on holds
`….experts.gate_up_proj`, of shape (experts, 2 · width, hidden), and `….experts.down_proj`, (experts, hidden, width). In
both, the numbers have the same order in memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_OF_ALL = re.compile(r"(?P<layer>.+\.experts)\.(?P<kind>gate_up_proj|down_proj)")

NamedShape = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Naming:
    """The names in the repositories of a kind of model.

    Attributes:
        matrices: names of each expert's gate, up and down matrix; None where one tensor has those of all experts.
        renamed: parts of a parameter's name, each with the part that represents it in files.
    """

    matrices: tuple[str, str, str] | None
    renamed: tuple[tuple[str, str], ...] = ()

    def stored(self, name: str, shape: Sequence[int]) -> list[NamedShape]:
        """Return names and shapes of the stored tensors of a parameter, in the order of its numbers."""
        for now, then in self.renamed:
            name = name.replace(now, then)
        found = _OF_ALL.fullmatch(name)
        if found is None or len(shape) != 3 or self.matrices is None:
            return [(name, tuple(shape))]
        count, rows, columns = shape
        gate, up, down = self.matrices
        if found["kind"] == "down_proj":
            return [(f"{found['layer']}.{expert}.{down}.weight", (rows, columns)) for expert in range(count)]
        return [
            (f"{found['layer']}.{expert}.{kind}.weight", (rows // 2, columns))
            for expert in range(count)
            for kind in (gate, up)
        ]


_EACH = Naming(("gate_proj", "up_proj", "down_proj"))
_EACH_NUMBERED = Naming(("w1", "w3", "w2"))
_MIXTRAL = Naming(("w1", "w3", "w2"), ((".mlp.", ".block_sparse_moe."),))
_PHIMOE = Naming(("w1", "w3", "w2"), ((".mlp.router.", ".block_sparse_moe.gate."), (".mlp.", ".block_sparse_moe.")))
_GRANITE = Naming(
    None,
    (
        (".experts.gate_up_proj", ".input_linear.weight"),
        (".experts.down_proj", ".output_linear.weight"),
        (".router.weight", ".router.layer.weight"),
    ),
)
_KINDS = {
    "afmoe deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5_moe exaone_moe flex_olmo glm4_moe glm4_moe_lite jamba "
    "olmoe qwen2_moe qwen3_moe qwen3_next solar_open": _EACH,
    "lfm2_moe": _EACH_NUMBERED,
    "minimax minimax_m2 mixtral": _MIXTRAL,
    "phimoe": _PHIMOE,
    "granitemoe granitemoehybrid granitemoeshared": _GRANITE,
}
NAMINGS = {kind: naming for kinds, naming in _KINDS.items() for kind in kinds.split()}
"""The naming of each `model_type` whose repositories do not keep tensors as `transformers` holds them."""


def stored_forms(name: str, shape: Sequence[int]) -> Iterator[list[NamedShape]]:
    """Yield every other way in which files may keep a parameter, whatever the kind of its model.

    The last is that of a model without its head: `h.0.…` in place of `transformer.h.0.…`.
    """
    for naming in dict.fromkeys(NAMINGS.values()):
        form = naming.stored(name, shape)
        if form != [(name, tuple(shape))]:
            yield form
    if "." in name:
        yield [(name.partition(".")[2], tuple(shape))]
