"""DDP with bf16 on the wire learns what plain DDP learns."""

from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ftcluster_train.comm.all_reduce import Bf16AllReduces, all_reduce_bf16
from ftcluster_train.comm.collectives import bf16_hook
from tests.engine.ranks import on_ranks

STEPS = 8
BF16 = 2**-8  # unit roundoff of bf16


def _train(rank: int, _: int) -> dict[str, torch.Tensor]:
    found = {}
    for name in ("plain", "hook"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(37, 129), torch.nn.Tanh(), torch.nn.Linear(129, 11)
        )
        # small buckets, so that there are several
        model = DistributedDataParallel(net, bucket_cap_mb=0.01)
        if name == "hook":
            model.register_comm_hook(None, bf16_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(rank)
        for _ in range(STEPS):
            inputs, labels = (
                torch.randn(8, 37, generator=draw),
                torch.randint(11, (8,), generator=draw),
            )
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        found[name] = torch.cat([p.detach().flatten() for p in net.parameters()])
    return found


def test_the_hook_is_plain_ddp_to_rounding(tmp_path: Path) -> None:
    of_ranks = on_ranks(_train, 3, tmp_path)
    plain, hook = of_ranks[0]["plain"], of_ranks[0]["hook"]
    assert all(torch.equal(found["hook"], hook) for found in of_ranks)
    assert float((hook - plain).abs().max()) < 1e-2
    assert float((hook - plain).norm() / plain.norm()) < 1e-3
    assert not torch.equal(hook, plain)  # proves that the hook is used


def _sums(rank: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    in_thread = Bf16AllReduces()  # uses the same memory for all sizes
    for shape in ((), (1,), (5,), (3, 7), (2000,), (4,), ()):
        values = [
            torch.randn(shape, generator=torch.Generator().manual_seed(r)) for r in range(size)
        ]
        own, again = values[rank].clone(), values[rank].clone()
        all_reduce_bf16(own)
        in_thread.start(again).result()
        assert torch.equal(again, own)
        found.append((own, torch.stack([v.bfloat16().double() for v in values]).sum(0)))
    return found


def test_values_are_rounded_before_and_after_the_sum_only(tmp_path: Path) -> None:
    for found in on_ranks(_sums, 3, tmp_path):
        for ours, exact in found:
            assert ours.shape == exact.shape
            assert torch.all((ours - exact).abs() <= BF16 * exact.abs() + 1e-6)
