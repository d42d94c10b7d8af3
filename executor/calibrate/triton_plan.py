"""What a calibration of the Triton set measures: layers as for any set, and what only this set does,
sends of the combine on few SMs that poll signals, as single-batch overlap asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from executor.calibrate.plan import (
    DECODE_TOKENS,
    KV_TOKENS,
    SPLITS,
    WARM_SMS,
    WARM_TOKENS,
    Task,
    task,
)

# Splits as in `executor.calibrate.plan`: SMs of the exchange, and the cap of the GEMMs beside it.
QUICK_SPLITS = ((8, 0), (8, 124), (24, 108), (32, 100))
PREFILL_TOKENS = (1536, 3072, 6144, 12288)
QUICK_PREFILL_TOKENS = (1536, 6144)
# The same in decode, the SMs being those of the combine's send; 0: no limit. The first and the last
# are the splits of single-batch overlap.
SENDS = ((0, 0), (3, 129), (8, 124), (32, 100))
QUICK_DECODE_TOKENS = (8, 48, 120)
# Decode attention has two programs a token, and as many shares of the keys as leave no SM without one:
# batches that just fill an H200 (33 in two shares, 66 in one), and the next ones, which do not.
EDGE_TOKENS = (33, 35, 66, 70)
# Exchanges beside compute, with their tokens. A send of the combine runs beside GEMMs that stream
# weights and beside those that compute.
BESIDE_TOKENS, BESIDE_TOKENS_LOW = 3072, 96
BESIDE_SMS = 24
NEIGHBOURS = ("dense", "grouped", "weights", "attention", "elementwise", "norm")
QUICK_NEIGHBOURS = ("dense", "grouped", "weights", "elementwise")
SEND_SMS = (3, 8, 32)
# Four, since one of them may be held out and a fit needs three.
SEND_NEIGHBOURS = ("thin", "weights", "dense", "grouped")
# Sends that poll signals, and GEMMs that raise them, on the SMs of the sends and on the rest.
POLL_TOKENS = (24, 96)


def triton_plan(*, quick: bool = False, ranks: int = 2) -> tuple[Task, ...]:
    """All tasks in the order of need. One rank has low-latency exchanges only."""
    normal = ranks > 1
    tasks = [task("gaps"), *_decode(quick), *_polls(quick), *_beside(quick, normal=normal)]
    if normal:
        tasks += _prefill(quick)
    return tuple(tasks)


def _decode(quick: bool) -> Iterator[Task]:
    for send, cap in SENDS:
        for kv in KV_TOKENS if not (quick or cap) else KV_TOKENS[-1:]:
            for tokens in QUICK_DECODE_TOKENS if quick else DECODE_TOKENS:
                yield task("layers", phase="decode", tokens=tokens, kv=kv, cap=cap, send=send)
    for kv in () if quick else KV_TOKENS:
        for tokens in EDGE_TOKENS:
            yield task("layers", phase="decode", tokens=tokens, kv=kv, cap=0, send=0)


def _polls(quick: bool) -> Iterator[Task]:
    for sms in SEND_SMS:
        for tokens in POLL_TOKENS[-1:] if quick else POLL_TOKENS:
            yield task("polls", num_sms=sms, tokens=tokens)


def _prefill(quick: bool) -> Iterator[Task]:
    for num_sms, cap in QUICK_SPLITS if quick else SPLITS:
        for tokens in QUICK_PREFILL_TOKENS if quick else PREFILL_TOKENS:
            yield task("layers", phase="prefill", tokens=tokens, num_sms=num_sms, cap=cap)
    for num_sms, tokens in () if quick else product(WARM_SMS, WARM_TOKENS):
        yield task("layers", phase="prefill", tokens=tokens, num_sms=num_sms, cap=0)


def _beside(quick: bool, *, normal: bool) -> Iterator[Task]:
    for sms in SEND_SMS[-1:] if quick else SEND_SMS:
        for compute in SEND_NEIGHBOURS:
            yield task(
                "pairs",
                exchange="combine_ll",
                num_sms=sms,
                compute=compute,
                tokens=BESIDE_TOKENS_LOW,
            )
    for exchange in ("dispatch", "combine") if normal else ():
        for compute in QUICK_NEIGHBOURS if quick else NEIGHBOURS:
            yield task(
                "pairs",
                exchange=exchange,
                num_sms=BESIDE_SMS,
                compute=compute,
                tokens=BESIDE_TOKENS,
            )
