# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine by torch.distributed's all_to_all_single (gloo), one process a rank; skipped where there is no
torch."""
import os
import subprocess
import sys

try:
    import torch
    import torch.distributed as dist
except ImportError:
    print("skipped: no torch here")
    sys.exit(77)
import numpy as np

if "RANK_OF_TEST" not in os.environ:
    from program import SOURCE, expect, path

    subprocess.run(
        ["cmake", "--install", os.environ["BUILD"], "--prefix", path("prefix")], check=True, stdout=subprocess.DEVNULL
    )
    os.environ["GAUGEBLOCK_PREFIX"] = path("prefix")
    sys.path.insert(0, os.path.join(SOURCE, "python"))
import gaugeblock  # noqa: E402


def bits(tensor):
    """bf16 as the bytes that gloo sends."""
    return tensor.view(torch.uint8)


def exchanged(rows, sent, received):
    """rows, of which sent[r] go to rank r: what received[r] came from each."""
    came = torch.empty((sum(received), *rows.shape[1:]), dtype=rows.dtype)
    dist.all_to_all_single(came, rows.contiguous(), received, sent)
    return came


class Rank:
    """One rank's part of a problem, and who sends how much to whom."""

    def __init__(self, ranks, rank):
        T, self.k = ranks.tokens_per_rank, ranks.top_k
        self.own = slice(rank * T, (rank + 1) * T)
        self.ids, self.placement, self.rank = ranks.ids[self.own], ranks.placement.long(), rank
        flat = self.ids.reshape(-1).long()
        slots = torch.nonzero(flat >= 0).reshape(-1)
        to = self.placement[flat[slots]]
        order = np.lexsort((slots.numpy(), flat[slots].numpy(), to.numpy()))
        self.slots = slots[torch.from_numpy(order)]  # as they are sent: by receiver, expert and slot
        self.sent = torch.bincount(to, minlength=ranks.ranks).tolist()
        counts = torch.bincount(flat[slots], minlength=ranks.experts).to(torch.int32)
        every = [torch.empty_like(counts) for _ in range(ranks.ranks)]
        dist.all_gather(every, counts)
        self.counts = torch.stack(every)
        self.received = self.counts[:, self.placement == rank].sum(1).tolist()

    def dispatch(self, ranks):
        x = ranks.x[self.own]
        routes = (self.rank * self.ids.numel() + self.slots).to(torch.int32)
        return {
            "counts": self.counts,
            "routes": exchanged(routes, self.sent, self.received),
            "codes": exchanged(bits(x)[self.slots // self.k], self.sent, self.received).view(torch.bfloat16),
        }

    def combine(self, ranks):
        first = int(sum(self.of_rank(ranks, r) for r in range(self.rank)))
        own = bits(ranks.values)[first : first + sum(self.received)]
        rows = exchanged(own, self.received, self.sent).view(torch.bfloat16).float()
        weights = ranks.routing_weights[self.own].reshape(-1)[self.slots]
        y = torch.zeros(self.ids.shape[0], ranks.hidden)
        return {"output": y.index_add_(0, self.slots // self.k, weights[:, None] * rows)}

    def of_rank(self, ranks, rank):
        """Rows that this rank receives from all."""
        return self.counts[:, self.placement == rank].sum()


def one_rank(fixture, rank, count, store, result):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    with gaugeblock.Fixture(fixture) as f:
        ranks = f.over_ranks(framework="torch")
    made = getattr(Rank(ranks, rank), ranks.operator)(ranks)
    torch.save(made, result)
    dist.destroy_process_group()


if "RANK_OF_TEST" in os.environ:
    arguments = sys.argv[1:]
    one_rank(arguments[0], int(os.environ["RANK_OF_TEST"]), int(arguments[1]), arguments[2], arguments[3])
    sys.exit()

calls = 0


def over_processes(ranks):
    """Every rank in a process of its own; their results, one after the other."""
    global calls
    calls += 1
    results = [path(f"made-{r}") for r in range(ranks.ranks)]
    running = [
        subprocess.Popen(
            [sys.executable, "-B", __file__, fixture, str(ranks.ranks), path(f"store-{calls}"), result],
            env={**os.environ, "RANK_OF_TEST": str(r), "PYTHONPATH": os.path.join(SOURCE, "python"),
                 "OMP_NUM_THREADS": "1"},
        )
        for r, result in enumerate(results)
    ]
    expect(not [one for one in running if one.wait(120)], "a rank failed")
    made = [torch.load(result) for result in results]
    if "output" in made[0]:
        return torch.cat([one["output"] for one in made])
    expect(all(torch.equal(one["counts"], made[0]["counts"]) for one in made), "ranks have different counts")
    parts = {name: torch.cat([one[name] for one in made]) for name in ("routes", "codes")}
    return {"counts": made[0]["counts"], **parts}


common = {"shape": (32, 4, 64), "tokens": 6, "ranks": 3, "placement": "random", "routing": "holes"}
for operator in ("dispatch", "combine"):
    fixture = gaugeblock.make(path(f"{operator}.h5"), operator=operator, **common)
    gaugeblock.verify(over_processes, fixture, framework="torch").check()


def misrouted(ranks):
    made = over_processes(ranks)
    made["routes"][[0, -1]], made["codes"][[0, -1]] = made["routes"][[-1, 0]], made["codes"][[-1, 0]]
    return made


fixture = path("dispatch.h5")
reason = gaugeblock.verify(misrouted, fixture, framework="torch").cases[0].reason
expect("went to rank" in reason, reason)
