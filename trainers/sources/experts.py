"""Experts' matrices (mixtures of experts): one tensor for each in files, one for all of a layer in newer models.

Hugging Face repositories keep `….experts.0.gate_proj.weight`, `….experts.0.up_proj.weight` and so on. `transformers`
from version 5 on holds `….experts.gate_up_proj`, of shape (experts, 2 · width, hidden), and
`….experts.down_proj`, (experts, hidden, width). In both, the numbers have the same order in memory.
"""

import re
from collections.abc import Sequence

PER_EXPERT_MODEL_TYPES = frozenset(
    {"deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "glm4_moe", "olmoe", "qwen2_moe", "qwen3_moe"}
)
"""Values of `model_type` whose repositories keep each expert's matrices on their own."""
_OF_ALL = re.compile(r"(?P<layer>.+\.experts)\.(?P<kind>gate_up_proj|down_proj)")

NamedShape = tuple[str, tuple[int, ...]]


def per_expert(name: str, shape: Sequence[int]) -> list[NamedShape]:
    """Return names and shapes of the matrices in a tensor of all experts, in their order; none for another tensor."""
    found = _OF_ALL.fullmatch(name)
    if found is None or len(shape) != 3:
        return []
    count, rows, columns = shape
    if found["kind"] == "down_proj":
        return [(f"{found['layer']}.{expert}.down_proj.weight", (rows, columns)) for expert in range(count)]
    return [
        (f"{found['layer']}.{expert}.{kind}_proj.weight", (rows // 2, columns))
        for expert in range(count)
        for kind in ("gate", "up")
    ]
