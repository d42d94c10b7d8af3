"""Models from their public hyper-parameters: a library name, a Hugging Face `config.json`, or a
library model with some fields replaced."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_type_hints

from models.deployment import Attention, Model
from models.errors import InputError, choices
from models.families import FAMILIES, Config, Family, Reader, Scoring
from models.stored_format import quant_method

_LIBRARY = files("models") / "library" / "models"


def library_models() -> tuple[str, ...]:
    """Names that `load_model` knows, sorted."""
    names = (entry.name for entry in _LIBRARY.iterdir())
    return tuple(sorted(name[: -len(".json")] for name in names if name.endswith(".json")))


def load_model(spec: str | Path | Mapping[str, object]) -> Model:
    """The model called `spec`, read from the config file `spec`, or `{base: name, field: value}`.

    Raises InputError for an unknown name, an unreadable file, an unsupported family (with the
    `model_type` and the supported ones), or a value that a model cannot have.
    """
    if isinstance(spec, Mapping):
        return _derived(spec)
    name = str(spec)
    if name in library_models():
        return model_from_config(_parse((_LIBRARY / f"{name}.json").read_text(), name), name, name)
    path = Path(spec)
    if not path.exists():
        known = choices(library_models(), name)
        raise InputError(name, "model", name, f"a path to a config.json, or one of: {known}")
    return model_from_config(_read(path), str(path), _name_of(path))


def model_from_config(config: Config, source: str, name: str) -> Model:
    """A `Model` from the parsed keys of a Hugging Face config; `source` is named in errors."""
    outer, config = config, _text_config(config, source)
    reader = Reader(config, source)
    family = _family(reader)
    first_dense = _first_k_dense(reader)
    experts = reader.integer(family.experts_key)
    shared = reader.integer("n_shared_experts", 0, least=0)
    moe_intermediate = reader.integer("moe_intermediate_size")
    model = Model(
        name=name,
        architecture=_architecture(outer, config),
        model_type=reader.text("model_type", ""),
        hidden_size=reader.integer("hidden_size"),
        num_layers=reader.integer("num_hidden_layers"),
        first_k_dense=first_dense,
        intermediate_size=reader.integer("intermediate_size", None if first_dense else 0, least=0),
        moe_intermediate_size=moe_intermediate,
        n_routed_experts=experts,
        n_shared_experts=shared,
        top_k=reader.integer("num_experts_per_tok"),
        n_group=reader.integer("n_group", 1),
        topk_group=reader.integer("topk_group", 1),
        routed_scaling_factor=reader.number("routed_scaling_factor", 1.0),
        scoring=_scoring(reader, family),
        norm_topk_prob=reader.flag("norm_topk_prob", family.norm_topk_prob),
        vocab_size=reader.integer("vocab_size"),
        attention=_attention(reader, family),
        shared_intermediate_size=shared * moe_intermediate,
        quant_method=quant_method(outer, config),
        source=reader.text("source", f"Hugging Face config {source}"),
        hc_mult=reader.integer("hc_mult", 0, least=0),
    )
    return _checked(model, source)


def _attention(reader: Reader, family: Family) -> Attention:
    heads = reader.integer("num_attention_heads")
    if family.attention == "mla":
        return Attention(
            "mla",
            heads,
            q_lora_rank=reader.integer("q_lora_rank", 0, least=0),
            kv_lora_rank=reader.integer("kv_lora_rank"),
            qk_nope_head_dim=reader.integer("qk_nope_head_dim"),
            qk_rope_head_dim=reader.integer("qk_rope_head_dim"),
            v_head_dim=reader.integer("v_head_dim"),
            index_topk=reader.integer("index_topk", 0, least=0),
            index_heads=reader.integer("index_n_heads", 0, least=0),
            index_head_dim=reader.integer("index_head_dim", 0, least=0),
        )
    if family.attention == "mqa_latent":
        return _shared_key(reader, heads)
    swa = "swa_num_attention_heads" in reader.config
    prefix = "swa_" if swa else ""
    head_dim = reader.integer(prefix + "head_dim", reader.integer("hidden_size") // heads)
    window = reader.integer("sliding_window", 0, least=0)
    return Attention(
        "gqa",
        reader.integer("swa_num_attention_heads", heads),
        num_kv_heads=reader.integer(prefix + "num_key_value_heads"),
        head_dim=head_dim,
        v_head_dim=reader.integer(prefix + "v_head_dim", head_dim),
        window=window if swa else 0,
    )


def _shared_key(reader: Reader, heads: int) -> Attention:
    groups = reader.integer("o_groups")
    if heads % groups:
        raise InputError(reader.source, "o_groups", groups, f"a divisor of {heads}, the heads")
    return Attention(
        "mqa",
        heads,
        num_kv_heads=1,
        head_dim=reader.integer("head_dim"),
        q_lora_rank=reader.integer("q_lora_rank"),
        qk_rope_head_dim=reader.integer("qk_rope_head_dim"),
        index_topk=reader.integer("index_topk", 0, least=0),
        index_heads=reader.integer("index_n_heads", 0, least=0),
        index_head_dim=reader.integer("index_head_dim", 0, least=0),
        window=reader.integer("sliding_window"),
        o_lora_rank=reader.integer("o_lora_rank"),
        o_groups=groups,
        compression=_compression(reader),
    )


def _compression(reader: Reader) -> tuple[tuple[int, int], ...]:
    """Layers by their ratio of tokens to a compressed key, ascending; entries of draft layers behind the
    model's own are left out."""
    layers = reader.integer("num_hidden_layers")
    ratios = reader.config.get("compress_ratios")
    if ratios is None:
        return ()
    known = isinstance(ratios, (list, tuple)) and all(ratio in (0, 4, 128) for ratio in ratios)
    if not isinstance(ratios, (list, tuple)) or not known or len(ratios) < layers:
        allowed = f"a ratio of 0, 4 or 128 for each of {layers} layers"
        raise InputError(reader.source, "compress_ratios", ratios, allowed)
    return tuple(sorted(Counter(ratios[:layers]).items()))


def _family(reader: Reader) -> Family:
    model_type = reader.text("model_type", "")
    if model_type not in FAMILIES:
        raise InputError(reader.source, "model_type", model_type, choices(FAMILIES, model_type))
    return FAMILIES[model_type]


def _first_k_dense(reader: Reader) -> int:
    """Leading dense layers: stated, or the zeros that `moe_layer_freq` starts with."""
    pattern = reader.config.get("moe_layer_freq")
    if isinstance(pattern, (list, tuple)):
        dense = pattern.index(1) if 1 in pattern else len(pattern)
        if any(entry != 1 for entry in pattern[dense:]):
            allowed = "dense layers only before the first MoE layer"
            raise InputError(reader.source, "moe_layer_freq", pattern, allowed)
        return dense
    for key in ("moe_layer_freq", "decoder_sparse_step"):
        if reader.integer(key, 1) != 1:
            raise InputError(reader.source, key, reader.config[key], "1 (every layer is MoE)")
    if reader.config.get("mlp_only_layers"):
        raise InputError(reader.source, "mlp_only_layers", reader.config["mlp_only_layers"], "[]")
    return reader.integer("first_k_dense_replace", 0, least=0)


def _scoring(reader: Reader, family: Family) -> Scoring:
    named = reader.text("scoring_func", family.scoring)
    for scoring in get_args(Scoring):
        if scoring == named:
            return scoring  # type: ignore[no-any-return]
    raise InputError(reader.source, "scoring_func", named, ", ".join(get_args(Scoring)))


def _text_config(config: Config, source: str) -> Config:
    nested = config.get("text_config", config)
    if not isinstance(nested, Mapping):
        raise InputError(source, "text_config", nested, "a mapping")
    return nested


def _architecture(outer: Config, config: Config) -> str:
    for candidate in (outer.get("architectures"), config.get("architectures")):
        if isinstance(candidate, (list, tuple)) and candidate:
            return str(candidate[0])
    return ""


def _derived(spec: Mapping[str, object]) -> Model:
    """A library or file model with fields of `Model` replaced; `attention` is a mapping of its own."""
    base = spec.get("base")
    if not isinstance(base, str):
        raise InputError("model", "base", base, choices(library_models()))
    changes = {key: value for key, value in spec.items() if key != "base"}
    model = load_model(base)
    source = f"model {{base: {base}}}"
    attention = changes.pop("attention", None)
    if attention is not None:
        if not isinstance(attention, Mapping):
            raise InputError(source, "attention", attention, "a mapping")
        new = replace(model.attention, **_typed(attention, Attention, source, "attention."))
        model = replace(model, attention=new)
    model = replace(model, **_typed(changes, Model, source, ""))
    if "n_shared_experts" in changes or "moe_intermediate_size" in changes:
        shared = model.n_shared_experts * model.moe_intermediate_size
        size = changes.get("shared_intermediate_size", shared)
        model = replace(model, shared_intermediate_size=size)  # type: ignore[arg-type]
    changed = ", ".join(f"{key}={value}" for key, value in spec.items() if key != "base")
    return _checked(replace(model, source=f"{model.source}; {changed}"), source)


def _typed(changes: Mapping[str, object], cls: type, source: str, prefix: str) -> dict[str, Any]:
    """The changes, each checked to name a field of `cls` and to have its type."""
    hints = get_type_hints(cls)
    known = [field.name for field in fields(cls) if field.name != "attention"]
    for key, value in changes.items():
        if key not in known:
            raise InputError(source, prefix + key, value, choices(known, key))
        hint = hints[key]
        allowed = get_args(hint) or (hint,)
        scalar = isinstance(hint, type)
        right = type(value) is hint if scalar else value in allowed or type(value) in allowed
        if hint is float and type(value) is int:
            right = True
        if not right or (isinstance(value, (int, float)) and value < 0):
            names = ", ".join(getattr(entry, "__name__", repr(entry)) for entry in allowed)
            raise InputError(source, prefix + key, value, f"{names}, not negative")
    return dict(changes)


def _checked(model: Model, source: str) -> Model:
    """The model, refused when its sizes contradict each other."""
    experts = model.n_routed_experts
    if not 0 < model.top_k <= experts:
        raise InputError(source, "top_k", model.top_k, f"1 to {experts}, the routed experts")
    if model.n_group < 1 or experts % model.n_group:
        raise InputError(source, "n_group", model.n_group, f"a divisor of {experts}")
    if not 0 < model.topk_group <= model.n_group:
        raise InputError(source, "topk_group", model.topk_group, f"1 to {model.n_group}")
    if model.top_k > experts // model.n_group * model.topk_group:
        allowed = (
            f"at most {experts // model.n_group * model.topk_group}, the experts of the groups kept"
        )
        raise InputError(source, "top_k", model.top_k, allowed)
    if model.first_k_dense > model.num_layers:
        raise InputError(source, "first_k_dense", model.first_k_dense, f"0 to {model.num_layers}")
    for key in ("hidden_size", "num_layers", "moe_intermediate_size", "vocab_size"):
        if getattr(model, key) < 1:
            raise InputError(source, key, getattr(model, key), "at least 1")
    return model


def _parse(text: str, source: str) -> Config:
    try:
        config = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 0)
        raise InputError(source, "config", str(error), "a JSON object", line) from error
    if not isinstance(config, dict):
        raise InputError(source, "config", config, "a JSON object")
    return config


def _read(path: Path) -> Config:
    """The config at `path`; its quantisation from `hf_quant_config.json` where it states none."""
    target = path / "config.json" if path.is_dir() else path
    config = dict(_parse(_text(target), str(target)))
    beside = target.with_name(target.name.replace("config.json", "hf_quant_config.json"))
    if "quantization_config" not in config and beside != target and beside.is_file():
        quantization = _parse(_text(beside), str(beside)).get("quantization")
        if isinstance(quantization, Mapping):
            config["quantization_config"] = {"quant_method": "modelopt", **quantization}
    return config


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(str(path), "config", "no UTF-8 text", "a readable JSON file") from error
    except OSError as error:
        raise InputError(str(path), "config", error.strerror, "a readable JSON file") from error


def _name_of(path: Path) -> str:
    """A name for a config file: its folder, or the part of the file name before `config.json`."""
    if path.is_dir():
        return path.resolve().name
    stem = path.name.removesuffix(".json").removesuffix("config").strip("_-.")
    return stem or path.resolve().parent.name
