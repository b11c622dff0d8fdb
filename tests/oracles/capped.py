"""Writes capped.json: whether FSDP2 training steps run on a device that has 92 to 108 % of what they reserve without a limit.

A step is `fsdp_oracle.py`'s: forward, loss, backward, optimizer and `zero_grad` of rank 0, three times over, with PyTorch's
own allocator on the stubs without a GPU. Each step runs once without a limit and then under five limits, every run in a
process of its own. Steps and limits are drawn with a fixed seed: one limit in each fifth of the range.

    python capped.py OUT.json       # beside fsdp_oracle.py and models.py, the stubs preloaded

`need` and `peak_allocated` are the most bytes reserved and allocated in the three steps without a limit. `cap` is what
`cudaMemGetInfo` calls the device's memory, a whole number of MiB near `need` times the factor drawn. Only the caching
allocator takes from it (no context, no libraries: cuBLAS gets its workspace from the allocator); every run checks that the
device has given out as much as the allocator has reserved. A step `ran` if all three steps ended, and did not if one raised
`torch.OutOfMemoryError`, in `failed` (step and phase, as `1.bwd`; `init` before the first). `by_step` is what each step
added to `num_alloc_retries`: how often the allocator gave its cached segments back to serve a request. More memory is not
always better: what is given back, and when, changes what fits later.

Of a step that did not run `refused` says, in bytes, what PyTorch's message does: the segment that it tried to allocate, and what was
allocated and reserved then (by the allocator's own observer of such refusals). `ran_with_expandable_segments` is whether the
step runs under the same limit with them.
"""
import ctypes
import json
import os
import random
import sys

sys.path.insert(0, ".")
import fsdp_oracle
import torch
from fsdp_oracle import CFG, DEF, LlamaCfg, asdict, replace

SEED, STEPS = 20260, 36
LOW, HIGH, CAPS = 0.92, 1.08, 5
# More than any step needs; expandable segments set aside addresses for all of the device, so it must not be too much.
UNLIMITED_MIB = 400_000

# Shapes besides those of models.py: width, layers, heads, heads of keys and values, feed-forward, vocabulary.
CFG["0.2B"] = LlamaCfg(1024, 12, 16, 4, 2816, 32000)
CFG["0.5B"] = LlamaCfg(1280, 20, 20, 4, 3456, 50304)
CFG["1.5B"] = LlamaCfg(1536, 28, 12, 2, 8960, 151936)
CFG["3B"] = LlamaCfg(3072, 28, 24, 8, 8192, 128256)

# What each setting is drawn from; a value that stands there more often is drawn more often.
VALUES = dict(
    model=["0.2B", "0.5B", "1B", "1.5B", "3B", "8B"],
    depth=[1, 0.75, 0.5, 0.25],
    tokens=[(2048, 1), (2048, 2), (2048, 4), (1024, 4), (4096, 1), (4096, 2), (8192, 1), (2730, 3)],
    world=[8, 8, 16, 24, 32, 64, 128, 256],
    ac=["full", "full", "none", "sac_op", "sac_op", "every2"],
    mp=["mixed", "mixed", "mixed", "mixed_bf16reduce", "bf16", "bf16_fp32reduce", "fp32"],
    reshard=["default", "default", "default", False, False, 4],
    root_reshard=["default", "default", "default", True],
    vocab=[None, None, None, 32000, 64000, 100352],
    wrap=["block", "block", "titan"],
    opt=["adamw_foreach", "adamw_foreach", "adamw_fused", "sgd"],
    ga=[1, 1, 1, 1, 2],
    early_stop=[False, True],
    expandable_segments=[False, False, False, True],
)


def draw(count):
    """Distinct steps. Each setting's values are dealt like cards, so that they come equally often."""
    rng = random.Random(SEED)
    columns = {}
    for key, values in VALUES.items():
        cards = []
        while len(cards) < count:
            deck = list(values)
            rng.shuffle(deck)
            cards += deck
        columns[key] = cards[:count]
    for at in range(count):
        drawn = {key: cards[at] for key, cards in columns.items()}
        expandable, depth = drawn.pop("expandable_segments"), drawn.pop("depth")
        drawn["seq"], drawn["bs"] = drawn.pop("tokens")
        drawn["n_layers"] = round(CFG[drawn["model"]].n_layers * depth)
        case = {**DEF, **drawn}
        name = "{model}x{n_layers}-w{world}-s{seq}-b{bs}-{ac}".format(**case)
        for key in ("mp", "reshard", "root_reshard", "vocab", "wrap", "opt", "ga", "early_stop"):
            name += f"-{key}={case[key]}" if case[key] != DEF[key] else ""
        yield name + "-expandable" * expandable, case, expandable


def dims(case):
    """The model's shape, as the other files of this kind have it."""
    shape = CFG[case["model"]]
    return asdict(replace(shape, n_layers=case["n_layers"], vocab=case["vocab"] or shape.vocab, rope=case["rope"]))


def run(case, expandable, mib, iters=3):
    """Three steps on a device of so many MiB."""
    os.environ["NULLCUDA_CAP_MIB"] = str(mib)
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{expandable}")
    phases = ["init"] + [f"{i}.{phase}" for i in range(iters) for phase in phases_of(case)]
    ended, retries = [], [0] * (iters + 1)
    device = ctypes.CDLL(None)
    device.nullcuda_stat.restype = ctypes.c_long

    def mark(name):
        stats = torch.cuda.memory_stats()
        ended.append(name)
        retries[1 + int(name[0]) if name != "init" else 0] = stats["num_alloc_retries"]
        assert device.nullcuda_stat(4) == stats["reserved_bytes.all.current"], "not only the allocator takes memory"

    failed, refused = None, []

    def observe(_device, segment, _total, _free):
        stats = torch.cuda.memory_stats()
        now = {key: stats[f"{key}_bytes.all.current"] for key in ("allocated", "reserved")}
        refused.append({"segment": segment, **now})

    torch._C._cuda_attach_out_of_memory_observer(observe)
    try:
        model, opt, _ = fsdp_oracle.build(case)
        driver = fsdp_oracle.Driver(case, model, opt, mark)
        mark("init")
        for i in range(iters):
            driver.step(i)
        assert ended == phases, ended
    except torch.OutOfMemoryError:
        failed = phases[len(ended)]
    stats = torch.cuda.memory_stats()
    assert len(refused) == (failed is not None), refused
    return dict(
        refused=next(iter(refused), None),
        cap=torch.cuda.mem_get_info()[1], reserved=stats["reserved_bytes.all.peak"],
        allocated=stats["allocated_bytes.all.peak"], failed=failed, retries=stats["num_alloc_retries"],
        by_step=[after - before for before, after in zip(retries, retries[1:])],
    )


def phases_of(case):
    """The names of a step's phases, in order."""
    passes = ["fwd", "bwd"] if case["ga"] == 1 else [f"{p}{i}" for i in range(case["ga"]) for p in ("fwd", "bwd")]
    return passes + ["opt", "zero"]


def measure(name, *args):
    state, value = fsdp_oracle.in_child(run, *args)
    if state != "ok":
        sys.exit(f"{name}: {value}")
    return value


def main():
    fsdp_oracle.warm()
    out = []
    for name, case, expandable in draw(STEPS):
        free = measure(name, case, expandable, UNLIMITED_MIB)
        assert free["failed"] is None and free["retries"] == 0, name
        rng, caps = random.Random(f"{SEED} {name}"), []
        for band in range(CAPS):
            factor = LOW + (HIGH - LOW) * (band + rng.random()) / CAPS
            mib = round(free["reserved"] * factor / 2**20)
            capped = measure(name, case, expandable, mib)
            keys = ("cap", "failed", "by_step")
            caps.append({"ran": capped["failed"] is None, **{key: capped[key] for key in keys}})
            if capped["failed"] and not expandable:
                mended = measure(name, case, True, mib)["failed"] is None
                caps[-1].update(refused=capped["refused"], ran_with_expandable_segments=mended)
            print(name, f"{capped['cap'] / free['reserved']:.4f}", capped["failed"] or "ran", flush=True)
        out.append({
            "id": name, "model_dims": dims(case), "config": case, "expandable_segments": expandable,
            "need": free["reserved"], "peak_allocated": free["allocated"], "caps": caps,
        })
    text = ",\n".join(map(json.dumps, out))
    with open(sys.argv[1], "w") as file:
        file.write(f'{{"torch": "{torch.__version__}", "cases": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
