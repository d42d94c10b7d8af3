"""Single-batch overlap as SGLang decides it: device gate, sub-flags, SM split, signals, variant.

Source of every rule: `models/rules/sglang-<version>.yaml`, section `sbo`.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.sglang_rules import Arch, Refusal, Rules


@dataclass(frozen=True, slots=True)
class SboFlags:
    """The sub-flags, in the order in which SGLang lists them."""

    combine_down: bool
    combine_shared: bool
    dispatch_shared: bool

    @property
    def shared_inside(self) -> bool:
        """Whether the shared expert is moved by the overlap (else it stays where it was)."""
        return self.combine_shared or self.dispatch_shared


@dataclass(frozen=True, slots=True)
class SignalShape:
    """The completion counters of the down GEMM: element type and how many."""

    dtype: str
    numel: int


@dataclass(frozen=True, slots=True)
class OverlapArgs:
    """What the hooks hand to combine and to the down GEMM for one layer.

    `comm_sms` and `compute_sms` split the device. `signal` is None when the combine waits for the
    whole GEMM; `threshold` is then 0. `event_after_down` says that the combine's event is recorded
    after the down GEMM instead of before it.
    """

    comm_sms: int
    compute_sms: int
    block_rows: int
    threshold: int
    signal: SignalShape | None
    event_after_down: bool


def is_blackwell(rules: Rules, capability: tuple[int, int], cuda: tuple[int, int]) -> bool:
    """Whether SGLang treats the device as Blackwell, from compute capability and CUDA version."""
    rule = rules.sbo.blackwell
    return capability[0] in rule.capability_majors and cuda >= rule.min_cuda


def startup_refusal(rules: Rules, capability: tuple[int, int], sbo: bool) -> Refusal | None:
    """The startup error of the flag on this device, or None."""
    if sbo and capability[0] in rules.sbo.refused_capability_majors:
        return rules.refusal("sbo.sm90", f"compute capability {capability[0]}.{capability[1]}")
    return None


def sbo_flags(rules: Rules, *, sbo: bool, blackwell: bool, runner: str, outside: bool) -> SboFlags:
    """The sub-flags. `outside` is the environment variable that leaves the shared expert outside."""
    runners = rules.sbo.signal_runners[_arch(blackwell)]
    dispatch_shared = sbo and not blackwell
    return SboFlags(
        combine_down=sbo and runner in runners,
        combine_shared=sbo and not dispatch_shared and not outside,
        dispatch_shared=dispatch_shared,
    )


def overlap_args(
    rules: Rules,
    flags: SboFlags,
    *,
    blackwell: bool,
    num_sms: int,
    local_experts: int,
    static_tokens: int,
    env_comm_sms: int | None = None,
) -> OverlapArgs | None:
    """SM counts and signals for a dispatch result `[local_experts, static_tokens, hidden]`.

    None when neither combine overlap is on: combine then stays on the main stream and no kernel is
    limited. `env_comm_sms` is the environment variable's value, None when it is not set.
    """
    if not (flags.combine_down or flags.combine_shared):
        return None
    arch = _arch(blackwell)
    comm_sms = rules.sbo.comm_sms[arch] if env_comm_sms is None else env_comm_sms
    compute_sms = num_sms - comm_sms
    block_rows = rules.sbo.block_rows
    signal = None
    if flags.combine_down:
        per_expert = 1 if blackwell else -(-static_tokens // block_rows)
        signal = SignalShape(rules.sbo.signal_dtype[arch], local_experts * per_expert)
    return OverlapArgs(
        comm_sms=comm_sms,
        compute_sms=compute_sms,
        block_rows=block_rows,
        threshold=compute_sms if signal else 0,
        signal=signal,
        event_after_down=signal is None,
    )


def select_variant(
    rules: Rules, *, blackwell: bool, runner: str, outside: bool, backend: str = "deepep"
) -> str | None:
    """Name of the variant that this device, runner, environment and backend select; None when the
    backend takes no hooks and the device is none that moves the shared expert without them."""
    hooks = backend in rules.sbo.hook_backends
    outside = outside and blackwell
    signals = hooks and runner in rules.sbo.signal_runners[_arch(blackwell)]
    for name, variant in rules.sbo.variants.items():
        fits = (variant.blackwell, variant.signals, variant.outside, variant.collective) == (
            blackwell,
            signals,
            outside,
            backend == "none",
        )
        # Without signals and outside, the combine stays on main whether there are hooks or not.
        if fits and (variant.hooks == hooks or outside):
            return name
    return None


def _arch(blackwell: bool) -> Arch:
    return "blackwell" if blackwell else "other"
