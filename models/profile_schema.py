"""The hardware profile file, version 1: every key, its type and its unit.

Strict: an unknown key or a value of the wrong type is an error. Every section has a `source`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.work import GridKind

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """What all parts of a profile share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    source: Annotated[str, Field(min_length=1)]


class Gpu(Section):
    """Data-sheet figures; `peak_tflops` by dtype (bf16, fp8, fp4). `device` is what CUDA calls the GPU
    that was measured."""

    name: str
    device: str = ""
    sms: Count
    compute_capability: tuple[Whole, Whole]
    hbm_gib: Positive
    hbm_gbps: Positive
    peak_tflops: dict[Literal["bf16", "fp8", "fp4"], Positive]
    saturating_sms: Count


class Sm(Section):
    """What one SM holds."""

    threads: Count
    registers: Count
    smem_bytes: Count
    cta_slots: Count


class FabricSection(Section):
    """Links of each GPU, one way, and latencies."""

    gpus_per_node: Count
    nvlink_gbps: Positive
    nic_gbps: Positive
    flight_latency_ns: Whole
    internode_latency_ns: Whole


class GapsSection(Section):
    """Latencies of the launch machinery in ns."""

    stream: Whole
    event: Whole
    cross_stream: Whole
    graph_node: Whole
    graph_edge: Whole
    reaction: Whole
    graph_launch: Whole


class MemorySection(Section):
    """Memory that no tensor holds."""

    reserve_gib: NotNegative


class StaticSection(Section):
    """Coefficient `a` of the tail law of static persistent kernels: of n CTAs on all SMs each runs in
    `(a + (1 - a) (n / SMs)^4)^(1/4)` of the time that it takes among SMs of them. `kinds` replace it for
    single kinds of work, dynamic kernels too, which are held to have 1 otherwise."""

    tail: Fraction
    kinds: dict[str, Fraction] = {}


class GainSection(BaseModel):
    """`models.power_law.Gain`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    share: NotNegative
    ns: NotNegative
    error: NotNegative = 0.0


class PowerSection(Section):
    """`models.power_law.PowerLaw`: the largest rest that counts, the load in which times were taken, and what
    kernels save by kind. Points are then times at rest."""

    most: Fraction
    measured: Annotated[float, Field(ge=0, le=1)] = 0.0
    kinds: dict[str, GainSection]

    @model_validator(mode="after")
    def _errors_need_a_load(self) -> PowerSection:
        if not self.measured and any(gain.error for gain in self.kinds.values()):
            raise ValueError("errors of gains need `measured`, the load that times were taken in")
        return self


class HostSection(Section):
    """Host ns by class of launch or by kind of work, and their relative uncertainty."""

    ns: dict[str, Whole]
    error: NotNegative = 0.0


Family = Literal["normal", "low_latency", "collective"]


class Pair(BaseModel):
    """Coefficients of the slowdown beside other kernels."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    c0: NotNegative
    c1: NotNegative


class PairAt(Pair):
    """Coefficients of an exchange that runs on so many SMs."""

    sms: Count


class SizeSection(BaseModel):
    """See `models.machine.SizeLaw`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    tokens: Count
    power: Annotated[float, Field(ge=-2, le=0)]
    least: Count
    most: Count

    @model_validator(mode="after")
    def _in_order(self) -> SizeSection:
        if not self.least <= self.tokens <= self.most:
            raise ValueError("least, tokens and most have to be in this order")
        return self


class InterferenceSection(Section):
    """Slowdown on disjoint SMs, by family of communication and for compute beside it, where `kinds`
    replace `compute` for single kinds of work, and `exchanges` a family for one direction, by the SMs of
    the exchange, ascending; `sizes` says what other sizes of these change. `errors` is the relative
    error of the law, by victim."""

    achievable_hbm_gbps: Positive
    rho_cap: Annotated[float, Field(gt=0, lt=1)]
    compute: Pair
    kinds: dict[str, Pair] = {}
    families: dict[Family, Pair]
    exchanges: dict[Family, dict[Literal["dispatch", "combine"], list[PairAt]]] = {}
    sizes: dict[Family, dict[Literal["dispatch", "combine"], SizeSection]] = {}
    errors: dict[str, NotNegative] = {}


class SignalledAt(BaseModel):
    """How many times as long a kernel of so many expert rows takes on so many SMs when it polls completion
    signals that are raised already, or raises them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    sms: Count
    rows: Count
    ratio: Positive


class KernelKind(Section):
    """How a library launches a kernel kind, and what one CTA takes. `budget`: whether it can be told how
    many SMs to take. `signalled`: what signals cost it; none: nothing, as far as is known.

    `ctas`: `sms` (persistent: one per SM, at most one per tile), `rows` or `elements` (so many per
    `per_cta`), `tokens`, `num_sms` (of the exchange), `experts` (low latency; `experts_or_tokens`: at
    least one for each token that a combine sums), `one`, `fixed` (`count` of them), or `shares` (decode
    attention: one for `per_cta` heads of a sequence, times the parts that its keys are cut into, of
    `count` keys at least: as many as leave no SM without one).
    """

    grid: GridKind
    gang: bool = False
    budget: bool = True
    ctas: Literal[
        "sms",
        "tiles",
        "rows",
        "elements",
        "num_sms",
        "experts",
        "experts_or_tokens",
        "one",
        "fixed",
        "shares",
    ]
    per_cta: Count = 1
    count: Count = 1
    threads: Count
    registers: Whole
    smem_bytes: Whole
    form: str
    signalled: list[SignalledAt] = []


class FormSection(Section):
    """Coefficients of `models.forms.Form`; `floor_us` in us."""

    floor_us: NotNegative
    compute: Fraction
    memory: Fraction
    p: Positive
    error: NotNegative
    label: Literal["fitted", "roofline"]


class TableSection(Section):
    """A point table beside the profile: columns of `key` name the series, `x` runs along it, `us` is
    the time. `measured` is the relative error of a point itself, `error` that of a point left out
    between others, `outside` that of points left out beyond the others; `transfer` is an estimate for
    a kernel of other fixed sizes (heads, prefill's plain form) that borrows the table's efficiency."""

    file: str
    key: tuple[str, ...]
    x: str
    measured: NotNegative
    error: NotNegative
    outside: NotNegative
    transfer: NotNegative


class NormalExchange(Section):
    """Normal mode outside its table: `a + bytes / min(k * SMs, cap)` and the notify kernel. `error` is
    what exchanges in service differ from any table by, which times them alone and in step. Its tables
    were timed with `table_ranks` ranks a node."""

    table_ranks: Count
    dispatch_us: NotNegative
    combine_us: NotNegative
    gbps_per_sm: Positive
    cap_gbps: Positive
    notify_us: NotNegative
    layout_us: NotNegative
    error: NotNegative


class ResidentPart(BaseModel):
    """A kernel of a low-latency exchange while it holds SMs and waits for nothing: `floor_us` and the
    bytes that it sends or has received over `gbps`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    floor_us: NotNegative
    gbps: Positive


class ResidentParts(BaseModel):
    """The send and receive kernels of a low-latency exchange across nodes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    dispatch_send: ResidentPart
    dispatch_recv: ResidentPart
    combine_send: ResidentPart
    combine_recv: ResidentPart


class LowLatencyExchange(Section):
    """How a low-latency exchange's time divides: across nodes its kernels are `resident` for their own
    part and the flight is the rest; within a node the receive takes `recv_us` and the send the rest.
    Outside the tables the whole takes a floor and its bytes over a rate, within a node or across.
    `error` is as for normal mode."""

    floor_us: NotNegative
    gbps: Positive
    across_floor_us: NotNegative
    across_gbps: Positive
    resident: ResidentParts
    recv_us: NotNegative
    error: NotNegative


class PointsSection(Section):
    """Measured points in a file beside the profile (`models.measured`). `errors` is the relative error
    of times read between points, by kind of work: four fifths of the points that `held_seed` leaves are
    read closer than that from the others. `repeat` is what the points of a kind together differ by from
    those of another calibration, of GPUs of the same model (0: there is none). `clocks` says under which
    SM clock and power they were taken."""

    file: str
    held_seed: Whole
    repeat: NotNegative = 0.0
    errors: dict[str, NotNegative]
    clocks: str


class ProfileFile(BaseModel):
    """One hardware profile."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    gpu: Gpu
    sm: Sm
    fabric: FabricSection
    gaps: GapsSection
    memory: MemorySection
    static: StaticSection
    host: HostSection
    interference: InterferenceSection
    kernels: dict[str, KernelKind]
    forms: dict[str, FormSection]
    normal_exchange: NormalExchange
    low_latency_exchange: LowLatencyExchange
    tables: dict[str, TableSection] = {}
    points: PointsSection | None = None
    power: PowerSection | None = None
