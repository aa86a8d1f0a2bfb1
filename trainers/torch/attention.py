"""Attention for rows that are padded on the right, through transformers' own implementation.

transformers inspects the values of a mask, or positions, to find out whether rows are padded or packed; on a GPU
each inspection waits for the device. The rows of `NextTokenLoss` are never packed, and their padding is on the right,
which a causal model does not attend to. An attention under a name of its own declares this once.
"""

from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

RIGHT_PADDED_SDPA = "epochal_sdpa"
"""Name of `scaled_dot_product_attention` for rows padded on the right."""


def register_attention() -> None:
    """Make `RIGHT_PADDED_SDPA` known to transformers."""
    AttentionInterface.register(RIGHT_PADDED_SDPA, sdpa_attention_forward)
    AttentionMaskInterface.register(RIGHT_PADDED_SDPA, right_padded_mask)


def right_padded_mask(*arguments: Any, **named: Any) -> Any:
    """Return transformers' mask without its padding; None for plain causal attention, which torch masks by itself."""
    named["attention_mask"] = None
    is_causal = named.get("mask_function") is causal_mask_function and named.get("q_length") == named.get("kv_length")
    if is_causal and named.get("allow_is_causal_skip", True) and named.get("local_size") is None:
        return None
    return sdpa_mask(*arguments, **named)
