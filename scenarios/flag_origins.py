"""Which word of a launch command, or which option beside it, a scenario's key came from: errors about a
scenario that nobody has seen name that word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scenarios.errors import KeyPath
from scenarios.flags import FROM_FLAGS, FlagTable, Launch

CAP_ENV = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
# By key the words that decide it, the first that is given before the others.
_WORDS: Mapping[KeyPath, tuple[str, ...]] = {
    ("hardware",): ("--hardware",),
    ("model",): ("--model-path",),
    ("parallel",): ("--tp-size",),
    ("parallel", "attention_tp"): ("--dp-size",),
    ("parallel", "attention_dp"): ("--dp-size",),
    ("phase",): ("--phase", "--disaggregation-mode"),
    ("phase", "decode", "batch_per_rank"): ("--batch", "--max-running-requests"),
    ("phase", "decode", "kv_tokens"): ("--tokens",),
    ("phase", "prefill", "tokens_per_rank"): ("--batch", "--chunked-prefill-size"),
    ("phase", "prefill", "sequence_tokens"): ("--tokens",),
    ("speculative", "draft_tokens"): ("--speculative-num-draft-tokens",),
    ("a2a", "backend"): ("--moe-a2a-backend",),
    ("a2a", "mode"): ("--deepep-mode",),
    ("a2a", "max_dispatch_tokens_per_rank"): (CAP_ENV,),
    ("a2a", "num_sms"): ("--deepep-config",),
    ("quantization", "weights"): ("--quantization", "--model-path"),
    ("quantization", "dispatch"): ("--deepep-dispatcher-output-dtype",),
    ("quantization", "kv_cache"): ("--kv-cache-dtype",),
    ("routing", "redundant_experts"): ("--ep-num-redundant-experts",),
    ("routing", "eplb"): ("--enable-eplb",),
    ("shared_experts", "waterfill"): ("--enable-waterfill",),
    ("runtime", "moe_runner"): ("--moe-runner-backend",),
    ("runtime", "launch"): ("--disable-cuda-graph",),
    ("runtime", "tbo_token_distribution_threshold"): ("--tbo-token-distribution-threshold",),
    ("runtime", "mem_fraction_static"): ("--mem-fraction-static",),
    ("runtime", "max_total_tokens"): ("--max-total-tokens",),
}


def flag_origins(
    launch: Launch, table: FlagTable, options: Mapping[str, Any]
) -> dict[KeyPath, str]:
    """Where each key came from, for `Document.origins`; `options` are those given beside the command, None
    for one that was not."""
    spelled = {entry.name: flag for flag, entry in table.flags.items()}
    command = {spelled[name]: value for name, value in launch.values.items()} | dict(launch.env)
    found: dict[KeyPath, str] = {(): FROM_FLAGS}
    for path, words in _WORDS.items():
        told = (*_told(words, options, ""), *_told(words, command, f"{FROM_FLAGS}: "))
        prefix = "" if words[0] in options else f"{FROM_FLAGS}: "
        found[path] = next(iter(told), f"{prefix}{words[0]} (not given)")
    for name, value in launch.env.items():
        found["runtime", "env", name] = f"{FROM_FLAGS}: {name}={value}"
    return found


def _told(words: tuple[str, ...], given: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for word in words:
        value = given.get(word)
        if isinstance(value, (bool, dict)):  # a switch, or a document of its own
            yield f"{prefix}{word}"
        elif value is not None:
            yield (
                f"{prefix}{word} {value:g}"
                if isinstance(value, float)
                else f"{prefix}{word} {value}"
            )
