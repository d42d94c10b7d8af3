"""What a record of a calibration may be: every key, its type and its bounds, by the record's `what`.

Strict: an unknown key or a value of the wrong type is an error. Times are ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from models.dims import DIMS, FLOP_DTYPES
from models.errors import InputError, choices
from models.measured import MOST_NS, MOST_SMS
from models.profile_schema import Count, NotNegative, Positive, Whole
from models.work import COMPUTE_KINDS, EXCHANGE_KINDS

Record = Mapping[str, Any]
Place = tuple[int, str]
# Sizes that may be nothing: flags, and copies that no other rank or node gets.
MAY_BE_ZERO = ("combine", "copies", "masked", "nic_copies", "part", "received", "reduce", "sent")
INT64 = 2**63 - 1
# What a CTA can have of an SM at most, of compute capability 9.0 and 10.0 (CUDA C++ Programming Guide).
MOST_THREADS, MOST_REGISTERS, MOST_SMEM_BYTES = 1024, 64 * 1024, 228 * 1024


def _measured_kind(kind: str) -> str:
    if kind not in (*COMPUTE_KINDS, *EXCHANGE_KINDS):
        raise ValueError(choices((*COMPUTE_KINDS, *EXCHANGE_KINDS), kind))
    return kind


def _task_tokens(task: str) -> str:
    for part in task.split():
        name, _, value = part.partition("=")
        if name == "tokens" and not value.isdecimal():
            raise ValueError("a task whose tokens= is a whole number")
    return task


Ns = Annotated[float, Field(gt=0, lt=MOST_NS, allow_inf_nan=False)]
HostNs = Annotated[float, Field(ge=0, lt=MOST_NS, allow_inf_nan=False)]
Times = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Sms = Annotated[int, Field(ge=1, le=MOST_SMS)]
Size = Annotated[int, Field(ge=0, le=INT64)]
Threads = Annotated[int, Field(ge=0, le=MOST_THREADS)]
Registers = Annotated[int, Field(ge=0, le=MOST_REGISTERS)]
SmemBytes = Annotated[int, Field(ge=0, le=MOST_SMEM_BYTES)]
Kind = Annotated[str, AfterValidator(_measured_kind)]
TwoTimes = Annotated[list[Ns], Field(min_length=2, max_length=2)]


class Entry(BaseModel):
    """What all records share: the task that took them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    task: Annotated[str, AfterValidator(_task_tokens)] = ""


class State(Entry):
    """Clock in MHz and power in W while a record was taken, what throttled the GPU, processes of others,
    and how far times before and after are apart."""

    mhz: Whole = 0
    watts: Whole = 0
    throttled: list[str] = []
    others: list[int] = []
    drift: NotNegative = 0.0


class WorkPart(BaseModel):
    """`models.work.Work` as JSON."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    kind: Kind
    dims: dict[str, Size]
    flops: dict[str, Annotated[int, Field(ge=1, le=INT64)]]
    read_bytes: Size
    write_bytes: Size

    @field_validator("dims")
    @classmethod
    def _sizes(cls, dims: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        kind = info.data.get("kind")
        if kind is not None and tuple(sorted(dims)) not in DIMS[kind]:
            raise ValueError(f"{kind} has " + " or ".join(", ".join(names) for names in DIMS[kind]))
        for name, value in dims.items():
            if not value and name not in MAY_BE_ZERO:
                raise ValueError(f"{name} above 0")
        return dims

    @field_validator("flops")
    @classmethod
    def _dtypes(cls, flops: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        if not flops and "k" in info.data.get("dims", ()):
            raise ValueError(f"one or more of {choices(FLOP_DTYPES)}")
        for name in flops:
            if name not in FLOP_DTYPES:
                raise ValueError(choices(FLOP_DTYPES, name))
        return flops


class Launch(BaseModel):
    """A kernel that an op launched; CTAs, threads, registers and shared memory of a CTA are 0 where the
    profiler did not tell them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    kernel: str
    ns: Ns
    ctas: Size
    threads: Size
    registers: Size
    smem_bytes: Size


class Alone(State):
    """A kernel's time on so many SMs, and the range of its `runs` times from the 10th to the 90th
    percentile over their median."""

    what: Literal["alone"]
    work: WorkPart
    sms: Sms
    ns: Ns
    spread: NotNegative
    runs: Size = 0
    launches: list[Launch] = []


class Run(Entry):
    """So many runs of a task's program, each of this length, the next a period after it began."""

    what: Literal["run"]
    ns: Ns
    count: Count
    period_ns: Ns | None = None


class BesideRecord(State):
    """How many times as long the victim took beside the aggressor, which held `busy` of the SMs and drew
    `gbps`; times alone of the compute kernel and of the exchange."""

    what: Literal["beside"]
    victim: str
    aggressor: str
    kinds: list[Kind]
    family: Literal["", "normal", "low_latency", "collective"]
    slowdown: Times
    busy: Annotated[float, Field(ge=0, le=1)]
    gbps: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    exchange: Literal["dispatch", "combine", "dispatch_ll", "combine_ll"] | None = None
    exchange_sms: Annotated[Sms | None, Field(validate_default=True)] = None
    alone_ns: TwoTimes | None = None

    @field_validator("exchange_sms")
    @classmethod
    def _on_some(cls, sms: int | None, info: ValidationInfo) -> int | None:
        if sms is None and info.data.get("exchange") is not None:
            raise ValueError("the SMs of the exchange")
        return sms


class GapsRecord(Entry):
    """Latencies of the launch machinery by name."""

    what: Literal["gaps"]
    ns: dict[str, HostNs]


class HostRecord(Entry):
    """What a launch of this class, or kind of work, costs the host."""

    what: Literal["host"]
    launch: Annotated[str, Field(alias="class", min_length=1)]
    ns: HostNs


class TraceGap(Entry):
    """The gap between kernels of a stream in a profiler's trace."""

    what: Literal["trace_gap"]
    ns: HostNs


class Hbm(Entry):
    """What something drew of the HBM."""

    what: Literal["hbm"]
    gbps: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    by: str = ""


class Hold(Entry):
    """A kernel beside SMs that were held: its time for each time that they were."""

    what: Literal["hold"]
    compute: str
    kinds: list[Kind]
    held_sms: Sms
    alone_ns: Ns
    holds: Annotated[list[TwoTimes], Field(min_length=1)]
    kernel: str = ""
    ctas: Count
    threads: Threads
    registers: Registers
    smem_bytes: SmemBytes


class Signals(State):
    """A kernel of so many expert rows with completion signals, and without."""

    what: Literal["signals"]
    kind: Kind
    rows: Count
    sms: Sms
    ns: Ns
    plain_ns: Ns


class MachineRecord(BaseModel):
    """What the GPU and the libraries call themselves; more may be told of them."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    what: Literal["machine"]
    gpu: str = ""
    ranks: Count = 1
    kernels: str = "production"
    torch: str = ""
    cuda: str = ""
    libraries: dict[str, str] = {}
    num_sms: Sms | None = None
    memory_gib: Positive | None = None


RECORDS: Mapping[str, type[BaseModel]] = {
    "alone": Alone,
    "run": Run,
    "beside": BesideRecord,
    "gaps": GapsRecord,
    "host": HostRecord,
    "trace_gap": TraceGap,
    "hbm": Hbm,
    "hold": Hold,
    "signals": Signals,
    "machine": MachineRecord,
}
# Parts of a record that are objects of their own.
PARTS: Mapping[str, type[BaseModel]] = {"work": WorkPart, "launches": Launch}


def checked(
    records: Iterable[Record], source: str, places: Sequence[Place] = ()
) -> tuple[Record, ...]:
    """The records, each of which may be one. InputError names file, line, key, value and what is allowed;
    `places` has each record's line in the file and its name there."""
    found = tuple(records)
    for number, record in enumerate(found):
        place = places[number] if places else (0, f"record {number + 1}")
        _check(record, source, place)
    return found


def _check(record: Record, source: str, place: Place) -> None:
    line, name = place
    what = record.get("what")
    model = RECORDS.get(what) if isinstance(what, str) else None
    if model is None:
        raise InputError(source, f"{name}.what", what, choices(RECORDS, what), line)
    try:
        model.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
        value = fault["input"] if fault["input"] is not None else "null"
        value = None if fault["type"] == "missing" else value
        raise InputError(source, name + key, value, _allowed(fault, model), line) from error


def _allowed(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """What may stand where the fault is."""
    if len(fault["loc"]) > 1:
        model = PARTS.get(str(fault["loc"][0]), model)
    keys = [field.alias or name for name, field in model.model_fields.items()]
    if fault["type"] == "missing":
        return f"all of {', '.join(k for k in keys if k not in _optional(model))}"
    if fault["type"] == "extra_forbidden":
        return choices(keys, fault["loc"][-1])
    return fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")


def _optional(model: type[BaseModel]) -> set[str]:
    fields = model.model_fields.items()
    return {field.alias or name for name, field in fields if not field.is_required()}
