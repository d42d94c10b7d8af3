"""From an SGLang launch command to a scenario file, with everything that had to be assumed written down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.config import library_models, load_model
from models.deployment import Model
from models.stored_format import FP4_EXPERTS, stored_weights
from scenarios.document import Document, parse_document
from scenarios.errors import KeyPath, ScenarioError
from scenarios.flag_origins import CAP_ENV, flag_origins
from scenarios.flags import FROM_FLAGS, FlagTable, Launch, load_flags, parse_launch

_FP8 = ("fp8", "w8a8_fp8")
_FP4 = ("modelopt_fp4", "nvfp4", "fp4")


@dataclass(frozen=True)
class Assumptions:
    """What no launch command says: the machine, the phase where the server does both, the batch per rank
    (None: as many as may run) and the tokens of a sequence."""

    hardware: str
    phase: str | None = None
    batch_per_rank: int | None = None
    sequence_tokens: int | None = None

    def options(self) -> dict[str, Any]:
        """The same by the names of the command line's options."""
        return {
            "--hardware": self.hardware,
            "--phase": self.phase,
            "--batch": self.batch_per_rank,
            "--tokens": self.sequence_tokens,
        }


@dataclass(frozen=True)
class Written:
    """A scenario's YAML text, the words of the command that it could not use, and what each key of it
    came from."""

    text: str
    unused: tuple[str, ...]
    origins: Mapping[KeyPath, str]

    @property
    def document(self) -> Document:
        """The text as data, whose errors name flags."""
        return replace(parse_document(self.text, FROM_FLAGS), origins=self.origins)


def scenario_from_flags(
    command: str, assumptions: Assumptions, *, version: str = "0.5.23"
) -> Written:
    """The scenario of a launch command. ScenarioError for a command that contradicts itself, or a model
    that is in no library and no folder."""
    table = load_flags(version)
    launch = parse_launch(command, table)
    assumed: list[str] = []
    model_name, model = _model(launch)
    ranks = _ranks(launch, table)
    title = f"{model.name} from a launch command, EP{ranks['ep']}"
    lines = [
        f"name: {_scalar(title)}",
        f"model: {_scalar(model_name)}",
        f"hardware: {_scalar(assumptions.hardware)}",
        f"parallel: {_flow(ranks)}",
        *_phase(launch, ranks, assumptions, assumed),
        f"a2a: {_flow(_a2a(launch, assumed))}",
        f"quantization: {_flow(_formats(launch, model, assumed))}",
        f"routing: {_flow(_routing(launch, assumed))}",
        f"shared_experts: {_flow(_shared(launch))}",
        f"runtime: {_flow(_runtime(launch, table, version, assumed))}",
        f"schedules: [{', '.join(_schedules(launch))}]",
    ]
    head = [f"# Assumed: {line}" for line in assumed]
    head += [f"# Not used: {word}" for word in launch.unused]
    origins = flag_origins(launch, table, assumptions.options())
    return Written("\n".join([*head, *lines]) + "\n", launch.unused, origins)


def _model(launch: Launch) -> tuple[str, Model]:
    path = launch.values.get("model")
    if path is None:
        raise ScenarioError("is missing", where=FROM_FLAGS, key="--model-path")
    config = Path(path) / "config.json"
    if config.is_file():
        return str(config), load_model(str(config))
    word = Path(path).name.lower()
    names = [name for name in library_models() if word.startswith(name)]
    if not names:
        known = library_models()
        raise ScenarioError(
            "is no folder with a config.json and no library model", where=FROM_FLAGS,
            key="--model-path", value=path, allowed=", ".join(known), near=known, word=word,
        )  # fmt: skip
    name = max(names, key=len)
    return name, load_model(name)


def _ranks(launch: Launch, table: FlagTable) -> dict[str, int]:
    """EP size and how attention is spread; ScenarioError where the sizes do not fit each other."""
    values = launch.values
    tp, dp = values.get("tp", 1), values.get("dp", 1)
    backend = values.get("a2a_backend", "none")
    ep = values.get("ep", tp)
    for flag, size in (("--tp-size", tp), ("--dp-size", dp), ("--ep-size", ep)):
        if size < 1:
            raise ScenarioError("is no number of ranks", where=FROM_FLAGS, key=flag, value=size)
    if backend not in table.free_ep_backends and ep != tp:
        raise ScenarioError(
            f"contradicts --tp-size {tp}: {backend} makes the expert-parallel size the tensor-parallel one",
            where=FROM_FLAGS, key="--ep-size", value=ep, allowed=str(tp),
        )  # fmt: skip
    if dp > 1 and not values.get("dp_attention"):
        raise ScenarioError(
            "makes replicas of the whole server unless --enable-dp-attention is given",
            where=FROM_FLAGS, key="--dp-size", value=dp, allowed="1, or --enable-dp-attention",
        )  # fmt: skip
    if tp % dp:
        raise ScenarioError(
            f"does not divide --tp-size {tp}", where=FROM_FLAGS, key="--dp-size", value=dp
        )
    return {"ep": tp, "attention_tp": tp // dp, "attention_dp": dp}


def _phase(
    launch: Launch, ranks: Mapping[str, int], assumptions: Assumptions, assumed: list[str]
) -> Iterator[str]:
    role = launch.values.get("disaggregation", "null")
    phase = assumptions.phase or (role if role != "null" else None)
    if phase is None:
        phase = "decode"
        assumed.append("a decode step; the server does both")
    if role not in ("null", phase):
        raise ScenarioError(
            f"contradicts --phase {phase}",
            where=FROM_FLAGS,
            key="--disaggregation-mode",
            value=role,
        )
    tokens = assumptions.sequence_tokens
    if tokens is None:
        tokens = 2048
        assumed.append("sequences of 2048 tokens")
    dp = ranks["attention_dp"]
    if phase == "decode":
        batch = assumptions.batch_per_rank or launch.values.get("max_running", 0) // dp
        if not batch:
            batch = 64
            assumed.append("64 sequences per rank")
        yield "phase:"
        yield f"  decode: {{batch_per_rank: {batch}, kv_tokens: {tokens}}}"
        yield f"speculative: {{draft_tokens: {launch.values.get('draft_tokens', 0)}}}"
        return
    chunk = assumptions.batch_per_rank or launch.values.get("chunked_prefill", 0) // dp
    if chunk <= 0:
        chunk = 8192
        assumed.append("8192 new tokens per rank")
    yield "phase:"
    yield f"  prefill: {{tokens_per_rank: {chunk}, sequence_tokens: {min(tokens, chunk)}}}"


def _a2a(launch: Launch, assumed: list[str]) -> dict[str, Any]:
    backend = launch.values.get("a2a_backend", "none")
    mode = launch.values.get("deepep_mode", "auto")
    if "deepep_mode" in launch.values and backend == "none":
        raise ScenarioError(
            "needs an all-to-all", where=FROM_FLAGS, key="--deepep-mode", value=mode,
            allowed="--moe-a2a-backend deepep",
        )  # fmt: skip
    found: dict[str, Any] = {"backend": backend, "mode": mode}
    cap = launch.env.get(CAP_ENV)
    if cap is not None:
        if not re.fullmatch("[0-9]{1,9}", cap):
            raise ScenarioError("is no whole number", where=FROM_FLAGS, key=CAP_ENV, value=cap)
        found["max_dispatch_tokens_per_rank"] = cap
    if "deepep_config" in launch.values:
        found["num_sms"] = _deepep_sms(launch.values["deepep_config"])
    elif backend == "deepep":
        assumed.append("DeepEP's own number of SMs, 20")
    return found


def _deepep_sms(config: Any) -> int:
    """SMs of the normal-mode kernels, which the server wants to be the same for both."""
    parts = ("normal_dispatch", "normal_combine")
    entries = [config.get(part) if isinstance(config, Mapping) else None for part in parts]
    sms = [entry.get("num_sms") if isinstance(entry, Mapping) else None for entry in entries]
    found = sms[0]
    if type(found) is not int or found != sms[1]:
        shape = '{"normal_dispatch": {"num_sms": N}, "normal_combine": {"num_sms": N}}'
        raise ScenarioError(
            "gives dispatch and combine no common number of SMs",
            where=FROM_FLAGS, key="--deepep-config", value=json.dumps(config), allowed=shape,
        )  # fmt: skip
    return found


def _formats(launch: Launch, model: Model, assumed: list[str]) -> dict[str, str]:
    wanted = launch.values.get("quantization")
    stored = (
        "fp8_block" if model.quant_method == FP4_EXPERTS else stored_weights(model.quant_method)
    )
    weights = "bf16"
    if wanted in _FP4 or "fp4" in str(launch.values.get("model", "")).lower():
        weights = "nvfp4"
    elif wanted in _FP8:
        weights = "fp8_block"
    elif wanted is None and stored is not None:
        weights = stored
    else:
        assumed.append(f"bf16 weights; {wanted or model.quant_method} has no figures")
    dispatch = launch.values.get("dispatch_dtype", "auto")
    dispatch = "fp8" if dispatch == "auto" else dispatch
    kv_cache = "fp8" if "fp8" in launch.values.get("kv_cache_dtype", "auto") else "bf16"
    return {"weights": weights, "dispatch": dispatch, "kv_cache": kv_cache}


def _routing(launch: Launch, assumed: list[str]) -> dict[str, Any]:
    assumed.append("routing by a power law of 0.6")
    eplb = bool(launch.values.get("eplb"))
    redundant = launch.values.get("redundant_experts", 0)
    found = {"distribution": "power_law", "alpha": 0.6, "redundant_experts": redundant}
    return {**found, "eplb": str(eplb).lower()}


def _shared(launch: Launch) -> dict[str, str]:
    values = launch.values
    fusion = "disable" if "fusion_disable" in values else "auto"
    fusion = "enforce" if "fusion_enforce" in values else fusion
    return {"fusion": fusion, "waterfill": str("waterfill" in values).lower()}


def _runtime(launch: Launch, table: FlagTable, version: str, assumed: list[str]) -> dict[str, Any]:
    values = launch.values
    runner = values.get("moe_runner", "auto")
    found: dict[str, Any] = {"sglang": version, "moe_runner": table.runners.get(runner, runner)}
    found["launch"] = "eager" if "no_graph" in values else "auto"
    if "tbo_threshold" in values:
        found["tbo_token_distribution_threshold"] = values["tbo_threshold"]
    pool = {"mem_fraction": "mem_fraction_static", "max_total_tokens": "max_total_tokens"}
    found |= {key: values[name] for name, key in pool.items() if name in values}
    if not pool.keys() & values.keys():
        assumed.append("KV cache of the batch alone; the server sizes its own pool")
    kept = {name: text for name, text in launch.env.items() if name not in table.environment}
    if kept:
        pairs = (f"{json.dumps(name)}: {json.dumps(text)}" for name, text in kept.items())
        found["env"] = "{" + ", ".join(pairs) + "}"
    return found


def _schedules(launch: Launch) -> Iterator[str]:
    """The baseline and what the flags ask for; all of SGLang's where they ask for none."""
    yield "baseline"
    asked = [name for name in ("sbo", "tbo") if name in launch.values]
    yield from asked or ("sbo", "tbo")


def _flow(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"


def _scalar(text: str) -> str:
    """Text as YAML reads it back: in quotes where it could be anything else."""
    plain = re.fullmatch(r"[A-Za-z./][\w./+ ,-]*", text) is not None
    return text if plain and text.lower() not in ("null", "true", "false") else json.dumps(text)
