"""The rules of one SGLang version, read from `models/rules/sglang-<version>.yaml` into frozen types.

The file holds facts (operation lists, SM rules, refusals with their evidence); the functions that
apply them are in `models.sglang_sbo` and `models.sglang_tbo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

Evidence = Literal["code", "run", "inferred"]
Arch = Literal["blackwell", "other"]
GemmSms = Literal["all", "minus_comm"]
RULES_DIR = Path(__file__).parent / "rules"


class Refusal(BaseModel):
    """Why SGLang does not run a schedule: the rule's id, the reason in words (with this case's
    values), whether the rule was read in the source, seen by running it, or inferred, and what runs
    in its place without a word ("" where SGLang fails instead)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: str
    reason: str
    evidence: Evidence
    instead: str = ""


class Refused(ValueError):
    """Raised where a refused schedule was asked for; carries the `Refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.reason} [{refusal.rule}, {refusal.evidence}]")
        self.refusal = refusal


class _Section(BaseModel):
    """A mapping of the rules file: frozen, and an unknown or missing key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Defaults(_Section):
    """Values that hold when no flag and no environment variable says otherwise."""

    deepep_num_sms: int
    ll_tokens_per_rank: int
    ll_tokens_per_rank_limit: int
    ll_buffers: int
    tbo_threshold: float
    tbo_threshold_limit: float


class Strategy(_Section):
    """One TBO operation list: letters and yields (`|`), how many stages child A runs ahead, and
    whether DeepGEMM is kept off the communication kernels' SMs."""

    name: str
    layer_class: str
    modes: tuple[str, ...]
    delta: int
    gemm_sms: GemmSms
    gemm_sms_hip: GemmSms
    ops: str
    a2a: tuple[str, ...] = ()
    a2a_except: tuple[str, ...] = ()

    def is_for_class(self, layer_class: str) -> bool:
        """Whether the list belongs to this decoder-layer class (`*` stands for its subclasses)."""
        return fnmatchcase(layer_class, self.layer_class)

    def is_for_backend(self, backend: str) -> bool:
        """Whether the list applies under this a2a backend."""
        return backend not in self.a2a_except and (not self.a2a or backend in self.a2a)


class TboRules(_Section):
    """Two-batch overlap: operations by letter, stream lines of those that are no letters of a layer, the
    lists, and the modes with rules of their own."""

    source: str
    operations: Mapping[str, str]
    lines: Mapping[str, tuple[str, ...]]
    strategies: tuple[Strategy, ...]
    vote_ignores: tuple[str, ...]
    extend_modes: tuple[str, ...]
    split_unimplemented: tuple[str, ...]


class Halves(_Section):
    """Stream lines of the four letters of an exchange, and of the letters before and after the block
    where a backend has its collectives there."""

    Da: tuple[str, ...]
    Db: tuple[str, ...]
    Ca: tuple[str, ...]
    Cb: tuple[str, ...]
    M: tuple[str, ...] = ()
    Z: tuple[str, ...] = ()

    def lines(self, letter: str) -> tuple[str, ...] | None:
        """Lines of a letter that the exchange decides; None for any other letter."""
        around = {"M": self.M or None, "Z": self.Z or None}
        halves = {"Da": self.Da, "Db": self.Db, "Ca": self.Ca, "Cb": self.Cb}
        return (around | halves).get(letter)


class BlackwellRule(_Section):
    """When a device counts as Blackwell."""

    capability_majors: tuple[int, ...]
    min_cuda: tuple[int, int]


class Variant(_Section):
    """One single-batch-overlap variant: which device selects it (`outside`: with the environment
    variable that leaves the shared expert outside; `hooks`: with a backend that takes the hooks'
    arguments; `collective`: without an all-to-all), whether the down GEMM signals the combine, and its layer."""

    blackwell: bool
    signals: bool
    layer: tuple[str, ...]
    outside: bool = False
    hooks: bool = True
    collective: bool = False


class SboRules(_Section):
    """Single-batch overlap: device gate, SM split, signals, variants."""

    source: str
    blackwell: BlackwellRule
    refused_capability_majors: tuple[int, ...]
    comm_sms: Mapping[Arch, int]
    comm_sms_env: str
    outside_env: str
    block_rows: int
    signal_runners: Mapping[Arch, tuple[str, ...]]
    signal_dtype: Mapping[Arch, str]
    down_gemm_block_n: int
    hook_backends: tuple[str, ...]
    variants: Mapping[str, Variant]


class RefusalRule(_Section):
    """One refusal of the file: reason, evidence, source, what runs instead, the names concerned."""

    reason: str
    evidence: Evidence
    source: str
    instead: str = ""
    backends: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    layer_classes: tuple[str, ...] = ()


class Note(BaseModel):
    """What a flag silently does or does not do here: the rule's id, the reason, how it is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: str
    reason: str
    evidence: Evidence


class NoteRule(_Section):
    """One silent effect of the file: reason, evidence, source, and the layer classes, variants and
    runners concerned."""

    reason: str
    evidence: Evidence
    source: str
    layer_classes: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    runners: tuple[str, ...] = ()


class Rules(_Section):
    """Everything that one version decides about overlap."""

    version: str
    defaults: Defaults
    layer_classes: Mapping[str, str]
    streams: Mapping[str, int]
    layers: Mapping[str, tuple[str, ...]]
    tbo: TboRules
    halves: Mapping[str, Mapping[Literal["normal", "low_latency"], Halves]]
    sbo: SboRules
    refusals: Mapping[str, RefusalRule]
    notes: Mapping[str, NoteRule] = {}

    def refusal(self, rule: str, detail: str = "") -> Refusal:
        """The refusal of `rule`, with this case's values appended; KeyError for an unknown rule."""
        entry = self.refusals[rule]
        reason = f"{entry.reason} ({detail})" if detail else entry.reason
        return Refusal(rule=rule, reason=reason, evidence=entry.evidence, instead=entry.instead)

    def note(self, rule: str) -> Note:
        """The silent effect called `rule`; KeyError for an unknown one."""
        entry = self.notes[rule]
        return Note(rule=rule, reason=entry.reason, evidence=entry.evidence)

    def layer_class(self, architecture: str) -> str:
        """Decoder-layer class of an architecture; for one that the file lacks, a name made of it,
        which then has no strategy."""
        known = self.layer_classes.get(architecture)
        return known or architecture.removesuffix("ForCausalLM") + "DecoderLayer"

    def halves_of(self, backend: str, mode: Literal["normal", "low_latency"]) -> Halves:
        """The halves of a backend's exchange in this mode; `Refused` when it lacks the mode."""
        modes = self.halves.get(backend, {})
        if mode not in modes:
            allowed = ", ".join(f"{b} {m}" for b, entry in self.halves.items() for m in entry)
            raise Refused(self.refusal("a2a.mode", f"{backend} {mode}; known: {allowed}"))
        return modes[mode]


def available_versions() -> tuple[str, ...]:
    """SGLang versions that have a rules file."""
    paths = sorted(RULES_DIR.glob("sglang-*.yaml"))
    return tuple(path.stem.removeprefix("sglang-") for path in paths)


@lru_cache
def load_rules(version: str = "0.5.23") -> Rules:
    """The rules of an SGLang version; ValueError names the versions that have a file."""
    path = RULES_DIR / f"sglang-{version}.yaml"
    if version not in available_versions():
        known = ", ".join(available_versions())
        raise ValueError(f"no rules for SGLang {version!r}; known: {known}")
    return Rules.model_validate(YAML(typ="safe").load(path))
