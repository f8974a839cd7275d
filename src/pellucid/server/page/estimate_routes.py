"""/v1/estimate: what a model needs and how fast it can be, on this machine or another one."""

import asyncio
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from pellucid.benchmark.ceilings import measure_ceilings
from pellucid.benchmark.estimate import Workload, estimate
from pellucid.benchmark.machine_facts import (
    KNOWN_MACHINES,
    MACHINE_NAMES,
    THIS_MACHINE,
    MachineFacts,
)
from pellucid.benchmark.planned_model import PlannedModel, plan_shape, speed_of_this_machine
from pellucid.inputs.config import fitting_block_size
from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.errors import ApiError, not_serving, refused
from pellucid.server.serving import OneEngineHandlers
from pellucid.shapes import SHAPES, find_shape

Numeric = TypeVar("Numeric", int, float)
FIELDS = frozenset(
    [
        "shape",
        "machine",
        "quantization",
        "kv_cache_dtype",
        "block_size",
        "prompt",
        "output",
        "batch",
        "price_per_hour",
        "memory_bytes",
        "bandwidth",
        "flops",
        "acceptance",
        "num_drafts",
        "draft_cost",
        "verify_cost",
    ]
)
MAX_TOKENS = 1 << 24
# They fit the loaded model and the memory of this machine: another model, and another machine, have their own.
_LIMITS_OF_THIS_ENGINE: dict[str, Any] = {
    "max_model_len": None,
    "num_kv_blocks": None,
    "kv_cache_memory": None,
}


@dataclass
class EstimateRoutes(OneEngineHandlers):
    """The handlers of the routes."""

    _measured: MachineFacts | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def estimate(self, call: Call) -> Reply:
        """All numbers for the loaded model or a known shape, on this machine or a preset."""
        if unknown := sorted(call.query.keys() - FIELDS):
            raise refused(
                f"{unknown[0][:64]!r} is not a field of this request; known are"
                f" {', '.join(sorted(FIELDS))}",
                unknown[0][:64],
            )
        shape = call.query.get("shape")
        own = self.engine.config
        dtype = call.query.get("kv_cache_dtype", own.kv_cache_dtype)
        block_size = fitting_block_size(own.block_size, dtype)
        asked = replace(
            own,
            quantization=call.query.get("quantization", own.quantization),
            kv_cache_dtype=dtype,
            block_size=_number(call, "block_size", block_size, 1, 1 << 16),
        )
        is_here = shape is None and call.query.get("machine", THIS_MACHINE) == THIS_MACHINE
        settings = asked if is_here else replace(asked, **_LIMITS_OF_THIS_ENGINE)
        if shape is None and asked == own:
            model = PlannedModel(self.model.name, settings, self.engine.plan.models)
        else:
            config = self.engine.model_config if shape is None else find_shape(shape)
            name, backend = shape or self.model.name, self.engine.plan.models.model.backend
            model = await asyncio.to_thread(plan_shape, name, config, settings, backend)
        machine = await self._machine(call)
        work = Workload(
            _number(call, "prompt", 512, 1, MAX_TOKENS),
            _number(call, "output", 128, 1, MAX_TOKENS),
            _number(call, "batch", 1, 1, 1 << 20),
            _number(call, "price_per_hour", 0.0, 0.0, 1e9),
            _number(call, "acceptance", 0.7, 0.0, 1.0),
            _number(call, "num_drafts", 0, 0, 64),
            _number(call, "draft_cost", 0.05, 0.0, 100.0),
            _number(call, "verify_cost", 1.0, 1e-6, 100.0),
        )
        plan = model.engine_plan(machine.memory_bytes)
        speed = None
        if machine.provenance == "M":
            speed = await asyncio.to_thread(speed_of_this_machine, model)
        return json_reply(
            {
                "model": model.name,
                "machine": asdict(machine),
                "machines": list(MACHINE_NAMES),
                "shapes": list(SHAPES),
                "numbers": [
                    asdict(number) for number in estimate(model, plan, machine, work, speed)
                ],
            }
        )

    async def _machine(self, call: Call) -> MachineFacts:
        """The requested machine; ceilings in the query replace its own."""
        name = call.query.get("machine", THIS_MACHINE)
        if name not in MACHINE_NAMES:
            known = ", ".join(MACHINE_NAMES)
            raise refused(f"machine={name[:64]!r}: must be one of {known}", "machine")
        given = {
            key: _number(call, key, 1.0, 1.0, 1e18)
            for key in ("bandwidth", "flops", "memory_bytes")
            if key in call.query
        }
        if name == THIS_MACHINE and len(given) == 3:
            machine = MachineFacts("given", "E", 1.0, 1.0, 1.0)
        else:
            machine = KNOWN_MACHINES.get(name) or await self._this_machine()
        return machine.with_limits(**given)

    async def _this_machine(self) -> MachineFacts:
        """This machine, measured once while no request runs: measuring takes the engine's threads for a second or
        two."""
        async with self._one_at_a_time:
            if self._measured is None:
                if self.service.under_way:
                    raise not_serving("this machine can be measured only while no request runs")
                ceilings, free = await self.engine.inspect(
                    lambda inspector: (
                        measure_ceilings(inspector.config, inspector.model),
                        inspector.model.backend.available_memory(),
                    )
                )
                plan = self.engine.memory_plan
                # As when the engine planned, so that its plan is found again.
                memory = plan.weights + (plan.available or free or 0)
                self._measured = MachineFacts(
                    "this machine",
                    "M",
                    ceilings.bandwidth_bytes_per_second,
                    ceilings.flops_per_second,
                    memory,
                )
            return self._measured


def _number(call: Call, name: str, default: Numeric, low: Numeric, high: Numeric) -> Numeric:
    text = call.query.get(name)
    if text is None:
        return default
    kind = "a whole number" if isinstance(default, int) else "a number"
    try:
        value = type(default)(text[:64])
    except ValueError:
        value = type(default)(low) - 1
    if not (math.isfinite(value) and low <= value <= high):
        raise ApiError(400, f"{name}={text[:64]!r}: must be {kind} in {low:g}..{high:g}", name)
    return value
