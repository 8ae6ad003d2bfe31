"""Scenarios of MLX's collectives: each dtype, short and long, and the waits of a step."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mps_trainer import Trainer
from mps_trainer.distributed import Processes
from mps_trainer.reports import record
from mps_trainer.tools.simulator import session
from tests.conftest import Classifier, callback, examples
from tests.distributed.scenarios import arguments, scenario

FLOATS, INTEGERS = (torch.float32, torch.bfloat16, torch.float16), (torch.int64, torch.uint8)
OPERATIONS = {
    dist.ReduceOp.SUM: lambda tensors: tensors.sum(0),
    dist.ReduceOp.AVG: lambda tensors: tensors.mean(0),
    dist.ReduceOp.MIN: lambda tensors: tensors.amin(0),
    dist.ReduceOp.MAX: lambda tensors: tensors.amax(0),
}


def check(device: str, dtype: torch.dtype, count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everybodys = [((torch.arange(count) + 3 * each) % 7).to(dtype).to(device) for each in range(size)]
    own = everybodys[rank]
    gathered = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(gathered, own)
    assert all(map(torch.equal, gathered, everybodys))
    joined = torch.empty(size * count, dtype=dtype, device=device)
    dist.all_gather_into_tensor(joined, own)
    assert torch.equal(joined, torch.cat(everybodys))
    for root in range(size):
        spread = own.clone()
        dist.broadcast(spread, root)
        assert torch.equal(spread, everybodys[root])
    if dtype == torch.bool:
        return
    for operation, reduce in OPERATIONS.items():
        if dtype in INTEGERS and operation == dist.ReduceOp.AVG:
            continue
        reduced = own.clone()
        dist.all_reduce(reduced, operation)
        expected = reduce(torch.stack(everybodys).cpu().double()).to(dtype)
        # two roundings in another order, at most one unit in the last place
        close = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(dtype, 2**-22)
        torch.testing.assert_close(reduced.cpu(), expected, rtol=close, atol=0)
    parts = torch.empty_like(own)
    dist.reduce_scatter_tensor(parts, torch.cat([own + each for each in range(size)]))
    torch.testing.assert_close(parts, (sum(everybodys) + size * rank).to(dtype), rtol=0, atol=0)


def check_bits() -> None:
    """A broadcast keeps the sign of a zero and what a nan carries."""
    special = torch.tensor([-0.0, float("nan"), float("-inf"), 1e-45])
    spread = special if dist.get_rank() == 0 else torch.full((4,), 7.0)
    dist.broadcast(spread, 0)
    assert torch.equal(spread.view(torch.int32), special.view(torch.int32))


def check_layouts(device: str) -> None:
    """Columns, a scalar, and nothing at all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (12, 6000):
        columns = [
            (torch.arange(count, dtype=torch.float32).view(3, -1) + each).to(device).t() for each in range(size)
        ]
        summed = columns[rank].clone(memory_format=torch.preserve_format)
        dist.all_reduce(summed)
        assert torch.equal(summed, torch.stack(columns).sum(0))
    scalar = torch.tensor(float(rank), device=device)
    dist.all_reduce(scalar, dist.ReduceOp.MAX)
    assert scalar.item() == size - 1
    for part in (torch.arange(9.0, device=device)[1:], torch.arange(13, dtype=torch.uint8, device=device)[5:]):
        gathered = [torch.empty_like(part) for _ in range(size)]
        dist.all_gather(gathered, part)
        assert all(torch.equal(each, part) for each in gathered)
        dist.broadcast(part, 0)
    part = (
        torch.arange(7.0, device=device)[1:] if rank else torch.arange(1.0, 7.0, device=device)
    )  # aligned in one only
    spread = part.clone() if rank == 0 else part.zero_()
    dist.broadcast(spread, 0)
    assert torch.equal(spread, torch.arange(1.0, 7.0, device=device))
    with pytest.raises(ValueError, match="different dtypes"):
        dist.all_gather_into_tensor(torch.empty(size, dtype=torch.int32, device=device), scalar.view(1))
    with pytest.raises(NotImplementedError, match="Use SUM"):
        dist.all_reduce(torch.ones(3, dtype=torch.int64, device=device), dist.ReduceOp.BOR)
    nothing = torch.empty(0, device=device)
    dist.all_reduce(nothing)
    assert nothing.numel() == 0


@scenario
def collectives(folder: str) -> dict[str, Any]:
    args = arguments(folder)
    Processes.of(args)
    if args.ddp_backend != "mlx" or args.world_size == 1:
        return {}
    dtypes = (*FLOATS, *INTEGERS, torch.bool, *((torch.float64,) if args.device.type == "cpu" else ()))
    for dtype in dtypes:
        for count in (1, 3, 7, 4000, 10001):
            check(args.device.type, dtype, count)
    check_bits()
    check_layouts(args.device.type)
    return {"checked": len(dtypes)}


@scenario
def replicas(folder: str) -> dict[str, Any]:
    """The copies and waits of the last steps of a replica that accumulates and exchanges several buckets."""
    args = arguments(folder)
    Processes.of(args)
    if args.world_size == 1:
        return {}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).to(args.device)
    replica = DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    counted: list[Any] = []
    for step in range(4):
        draw = torch.Generator().manual_seed(10 * step + args.process_index)
        given = torch.randn(3, 64, generator=draw).to(args.device)
        before = session._current.counters() if session._current else {}
        with replica.no_sync():
            replica(given).pow(2).mean().backward()
        replica(given).pow(2).mean().backward()
        after = session._current.counters() if session._current else {}
        counted.append({name: after[name] - before[name] for name in ("blocking_reads", "device_to_host") if after})
        gradients = torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])
        gathered = [torch.empty_like(gradients) for _ in range(args.world_size)]
        dist.all_gather(gathered, gradients)
        assert all(torch.equal(gathered[0], each) for each in gathered)
        model.zero_grad()
    return {"counted": counted[-1]}


@scenario
def a_slow_process(folder: str) -> dict[str, Any]:
    """Returns what the report says of the second process, which is slower."""
    args = arguments(folder, report_to=[], max_steps=12)
    wait = callback(on_step_begin=lambda args, **_: time.sleep(0.1 * args.process_index))
    trainer = Trainer(Classifier(), args, train_dataset=examples(43), callbacks=[wait])
    trainer.train()
    if args.process_index or args.ddp_backend != "mlx":
        return {}
    return {"events": [event.text for event in record.record_of(folder).events if event.kind == "waiting"]}
