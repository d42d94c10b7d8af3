"""How each family of Hugging Face configs names what `Model` needs.

A family is the set of `model_type`s that share key names. Everything that differs between two
families is a field of `Family`; a key that a config must have and lacks is an `InputError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from models.errors import InputError

Config = Mapping[str, object]
AttentionKind = Literal["mla", "gqa", "mqa_latent"]
Scoring = Literal["sigmoid", "softmax", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True)
class Family:
    """Key names and defaults of one family.

    `scoring` is the router's score function where the config does not say. `norm_topk_prob` likewise.
    """

    attention: AttentionKind
    experts_key: str
    scoring: Scoring
    norm_topk_prob: bool = True


_DEEPSEEK = Family("mla", "n_routed_experts", "sigmoid")
FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": Family("mla", "n_routed_experts", "softmax", norm_topk_prob=False),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "deepseek_ref": Family("mqa_latent", "n_routed_experts", "sqrtsoftplus"),
    "deepseek_v4": Family("mqa_latent", "n_routed_experts", "sqrtsoftplus"),
    "kimi_k2": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK,
    "glm4_moe": Family("gqa", "n_routed_experts", "sigmoid"),
    "qwen3_moe": Family("gqa", "num_experts", "softmax"),
    "mimo_v2_flash": Family("gqa", "n_routed_experts", "sigmoid"),
}


@dataclass(frozen=True, slots=True)
class Reader:
    """Typed access to one config; every refusal names `source` and the key."""

    config: Config
    source: str

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """The whole number at `key`; absent or null gives `default`, or an error without one."""
        value = self.config.get(key)
        if value is None:
            if default is None:
                raise InputError(self.source, key, None, f"a whole number >= {least}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(self.source, key, value, f"a whole number >= {least}")
        return value

    def number(self, key: str, default: float) -> float:
        """The positive number at `key`; absent or null gives `default`."""
        value = self.config.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
            raise InputError(self.source, key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """The boolean at `key`; absent or null gives `default`."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(self.source, key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """The string at `key`; absent or null gives `default`."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise InputError(self.source, key, value, "a string")
        return value
