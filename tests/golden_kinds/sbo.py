"""Sub-flags, SM split, signals and device gate of single-batch overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.sglang_rules import load_rules
from models.sglang_sbo import OverlapArgs, is_blackwell, overlap_args, sbo_flags, startup_refusal

GROUP = "kind"
INPUTS = frozenset(
    {"id", "kind", "blackwell", "sbo", "outside_sbo", "runner", "env_send_sms", "total_sms"}
    | {"shape", "capability", "cuda"}
)


def answer(case: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    rules = load_rules()
    if case["kind"] == "flags":
        flags = sbo_flags(
            rules,
            sbo=case["sbo"],
            blackwell=case["blackwell"],
            runner=case["runner"],
            outside=case["outside_sbo"],
        )
        out = [flags.combine_down, flags.combine_shared, flags.dispatch_shared]
        return {"out": [*out, flags.shared_inside]}
    if case["kind"] == "is_blackwell":
        major, minor = case["cuda"].split(".")[:2]
        cuda = (int(major), int(minor))
        return {"out": is_blackwell(rules, tuple(case["capability"]), cuda)}
    if case["kind"] == "startup":
        refusal = startup_refusal(rules, tuple(case["capability"]), case["sbo"])
        return {"error": refusal and refusal.reason}
    if len(case.get("shape", (1, 1, 1))) != 3:
        return {"error": "ValueError"}  # not a masked layout: rule sbo.normal_mode
    return _args(case)


def same(key: str, expected: object, got: object) -> bool:
    """The package's message and our reason are compared as present or absent, and by the flag."""
    if key == "error" and expected != got and isinstance(expected, str) and isinstance(got, str):
        return "--enable-single-batch-overlap" in expected and "single-batch-overlap" in got
    return expected == got


def _args(case: Mapping[str, Any]) -> dict[str, Any]:
    rules = load_rules()
    flags = sbo_flags(
        rules,
        sbo=case["kind"] != "args_sbo_off",
        blackwell=case.get("blackwell", True),
        runner=case.get("runner", "deep_gemm"),
        outside=case.get("outside_sbo", False),
    )
    experts, tokens, _ = case.get("shape", [1, 1, 1])
    args = overlap_args(
        rules,
        flags,
        blackwell=case.get("blackwell", True),
        num_sms=case.get("total_sms", 148),
        local_experts=experts,
        static_tokens=tokens,
        env_comm_sms=case.get("env_send_sms"),
    )
    if case["kind"] == "args_sbo_off":
        return {"out": [None, None, {}] if args is None else args}
    if case["kind"] == "args_no_alt_stream":
        return {"error": "AssertionError" if args is not None else None}
    return _as_recorded(args)


def _as_recorded(args: OverlapArgs | None) -> dict[str, Any]:
    if args is None:
        return {"combine": None, "down": None, "meta": {}}
    signal = args.signal and {
        "dtype": args.signal.dtype,
        "numel": args.signal.numel,
        "all_zero": True,
    }
    combine = {
        "overlap": signal is not None,
        "num_sms": args.comm_sms,
        "block_m": args.block_rows,
        "threshold": args.threshold,
        "signal": signal,
    }
    down = {"num_sms": args.compute_sms, "same_signal": True, "same_event": True}
    meta: dict[str, Any] = {"compute_num_sms": args.compute_sms}
    if args.event_after_down:
        meta["record_event_after_down"] = "combine_wait_event"
    return {"combine": combine, "down": down if signal else None, "meta": meta}
