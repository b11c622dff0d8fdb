"""Optimizers that people use besides Adam, with no GPU: PyTorch 2.15's `Muon` and `Adafactor`, transformers' `Adafactor`, torchao's and
bitsandbytes' narrow states, on PyTorch's own caching allocator and DTensor. The model, the loop and the file are those of
`fsdp2_switches.py`; collectives that DTensor issues are written down with FSDP's own.

    python optimizers.py OUT.json [ids or their beginnings]      # VERBOSE=1 prints where each block is taken instead

Of a case's file `events` begins behind backward: what the optimizer does. Kernels of bitsandbytes and inductor do nothing here.
"""
import importlib.metadata, json, os, sys

import torch
import torch.distributed as dist

import fsdp2_switches as base

SMALL = dict(base.DIMS, n_layers=2)
LARGE = dict(base.DIMS, dim=2048, n_layers=2, n_heads=16, n_kv_heads=8, ffn=5504, vocab=8000, head_dim=128)
DECAY = dict(weight_decay=0.1)
FAMILIES = {
    "muon": dict(opt="muon"),
    "muon_plain": dict(opt="muon", opt_args=dict(nesterov=False)),
    "muon_3": dict(opt="muon", opt_args=dict(ns_steps=3)),
    "adafactor": dict(opt="adafactor"),
    "adafactor_foreach": dict(opt="adafactor", opt_args=dict(foreach=True)),
    "adafactor_no_decay": dict(opt="adafactor", opt_args=dict(weight_decay=0.0)),
    "hf_adafactor": dict(opt="hf_adafactor", opt_args=dict(scale_parameter=False, relative_step=False)),
    "hf_adafactor_momentum": dict(opt="hf_adafactor", opt_args=dict(scale_parameter=False, relative_step=False, beta1=0.9, weight_decay=0.1)),
    "hf_adafactor_relative": dict(opt="hf_adafactor", opt_args=dict(lr=None)),
    "ao_8bit": dict(opt="ao_8bit"), "ao_4bit": dict(opt="ao_4bit"), "ao_fp8": dict(opt="ao_fp8"),
    "ao_8bit_stochastic": dict(opt="ao_8bit", opt_args=dict(bf16_stochastic_round=True)),
    "ao_8bit_amsgrad": dict(opt="ao_8bit", opt_args=dict(amsgrad=True)),
    "bnb_8bit": dict(opt="bnb_8bit"), "bnb_32bit": dict(opt="bnb_32bit"), "bnb_paged_8bit": dict(opt="bnb_paged_8bit"),
    "bnb_lion": dict(opt="bnb_lion"), "bnb_lion_8bit": dict(opt="bnb_lion_8bit"),
}
SINGLE = dict(runtime="single", world=1, mp="bf16")
CASES = {}
for name, over in FAMILIES.items():
    for size, dims in (("small", SMALL), ("large", LARGE)):
        for mp in ("bf16", "fp32"):
            CASES[f"{name}_{mp}_{size}"] = dict(SINGLE, **over, mp=mp, dims=dims)
        CASES[f"{name}_fsdp2_{size}"] = dict(over, dims=dims)
        CASES[f"{name}_fsdp2_bf16_{size}"] = dict(over, dims=dims, mp="bf16", world=4)


class Two:
    """Muon for the layers' matrices, then AdamW for the rest, as torch's own example has it."""

    def __init__(self, model, **args):
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("layers.")]
        chosen = {id(p) for p in matrices}
        self.both = [torch.optim.Muon(matrices, lr=1e-3, **args), torch.optim.AdamW([p for p in model.parameters() if id(p) not in chosen], lr=1e-4)]

    def step(self):
        for one in self.both: one.step()

    def zero_grad(self):
        for one in self.both: one.zero_grad()


def made(kind, m, args):
    params = list(m.parameters())
    if kind == "muon": return Two(m, **args)
    if kind == "adafactor": return torch.optim.Adafactor(params, **args)
    if kind == "hf_adafactor":
        from transformers.optimization import Adafactor
        return Adafactor(params, **{"lr": 1e-4, **args})
    if kind.startswith("ao"):
        from torchao import optim
        return {"ao_8bit": optim.AdamW8bit, "ao_4bit": optim.AdamW4bit, "ao_fp8": optim.AdamWFp8}[kind](params, lr=1e-4, **args)
    import bitsandbytes.optim as optim
    return {"bnb_8bit": optim.AdamW8bit, "bnb_32bit": optim.AdamW32bit, "bnb_paged_8bit": optim.PagedAdamW8bit,
            "bnb_lion": optim.Lion32bit, "bnb_lion_8bit": optim.Lion8bit}[kind](params, lr=1e-4, **args)


plain_build = base.build


def build(c, d):
    from torch.distributed import device_mesh
    device_mesh._mesh_resources.num_devices_per_host = lambda device_type: 8  # DTensor judges links by it, once
    m, _ = plain_build(dict(c, opt="sgd", opt_args={}), d)
    if c["opt"].startswith("ao"): base.no_triton()
    listens, optimizer = heard(), made(c["opt"], m, c["opt_args"])
    if c["opt"] == "muon" and c["runtime"] == "fsdp2":
        step = optimizer.step
        def heard_step():
            with listens(): step()
        optimizer.step = heard_step
    return m, optimizer


def heard():
    """DTensor's collectives are operators of their own, which the loop does not hear."""
    import torch.cuda.memory as M
    from torch.utils._python_dispatch import TorchDispatchMode
    kinds = {"all_gather_into_tensor": "all_gather", "all_reduce": "all_reduce", "reduce_scatter_tensor": "reduce_scatter", "shard_dim_alltoall": "all_to_all"}

    class Listens(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            from torch.distributed.tensor import DTensor
            if any(issubclass(t, DTensor) for t in types): return NotImplemented
            kind = kinds.get(func._schema.name.split("::")[1])
            if kind: M._annotate_tensor(args[0], kind)
            return func(*args, **(kwargs or {}))
    return Listens


base.build = build

if __name__ == "__main__":
    out, wanted = sys.argv[1], sys.argv[2:]
    base.preload()
    old = {case["id"]: case for case in json.load(open(out))["cases"]} if os.path.exists(out) else {}
    for name, over in CASES.items():
        if wanted and not name.startswith(tuple(wanted)): continue
        config = {**base.DEFAULTS, **over}
        dims = config.pop("dims")
        got = base.child(config, dims)
        print(name, got.get("peak_allocated"), {k: v["peak"] >> 20 for k, v in got.get("phases", {}).items()}, got.get("error", ""), flush=True)
        if os.environ.get("VERBOSE"): print(got.get("events") or got["traceback"])
        elif "error" in got: print(got.pop("traceback", ""))
        if "events" in got and not os.environ.get("VERBOSE"): got["events"] = got["events"].split("|bwd ")[1]
        old[name] = dict(id=name, model_dims=dims, config=config, **got)
    if not os.environ.get("VERBOSE"):
        versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "torchao", "bitsandbytes")}
        json.dump(dict(versions, cases=[old[name] for name in CASES if name in old]), open(out, "w"), separators=(",", ":"))
