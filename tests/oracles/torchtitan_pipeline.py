"""Mixtures of experts in pipelines under torchtitan, with no GPU: the blocks of `torchtitan_experts.py` in the stages of
`fsdp2_pipeline.py`, wrapped by torchtitan's own `apply_fsdp_to_decoder`, one pipeline rank at a time, third step.

    TORCHTITAN=FOLDER python torchtitan_pipeline.py OUT.json [ids]     # the folder of a checkout of pytorch/torchtitan@6b960233
"""
import json, os, subprocess, sys, types

import torch, torch.nn as nn
import torch.distributed.fsdp, torch.distributed.tensor.experimental

import fsdp2_pipeline as stages
import torchtitan_experts as experts

DEFAULTS = {**experts.DEFAULTS, **stages.DEFAULTS, "dp": 4, "ep": 1}
CASES = {
    "1f1b_local": dict(layers=[2, 2]),
    "1f1b_ep2_clip": dict(layers=[2, 2], ep=2, clip=1),
    "1f1b_ep4_full": dict(layers=[2, 2], ep=4, ac="full"),
    "interleaved_ep2_clip": dict(schedule="Interleaved1F1B", virtual=2, layers=[1, 1, 1, 1], ep=2, clip=1),
    "interleaved_ep4_latent": dict(schedule="Interleaved1F1B", virtual=2, layers=[1, 1, 1, 1], ep=4, latent=experts.LATENT, kv_heads=16, dense_first=0),
}


def wrapped(c, stage, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor
    from torchtitan.config import ActivationCheckpointConfig
    from torchtitan.distributed.activation_checkpoint import apply_ac
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
    with torch.device("meta"): model = stages.Stage(c, stage)
    model.enable_weight_tying, edp, ep = False, None, c["ep"]
    if ep > 1:
        sparse = mesh._unflatten(1, (c["dp"] // ep, ep), ("efsdp", "ep"))
        edp = sparse["efsdp"]
        for block in model.layers.values():
            if not block.moe_enabled: continue
            group = block.moe.experts
            for name, weight in list(group.named_parameters()):
                group.register_parameter(name, nn.Parameter(distribute_tensor(weight, sparse["ep"], [Shard(0)])))
            group.token_dispatcher.wire_meshes(ep_mesh=sparse["ep"], tp_mesh=None)
    if c["ac"] != "none": apply_ac(model, ActivationCheckpointConfig(mode=c["ac"], early_stop=False))
    apply_fsdp_to_decoder(model, mesh["dp"], torch.bfloat16, torch.float32, True, ep_degree=ep, edp_mesh=edp)
    model.to_empty(device="cuda")
    return model


def run(c, rank):
    from torchtitan.components.optimizer import register_moe_load_balancing_hook
    from torchtitan.distributed import utils
    copies, ep, plain, meshes = c["bs"] * c["seq"] * c["top_k"], c["ep"], torch.Tensor.tolist, []

    def balanced(t): return [copies // ep] * ep if t.shape == (ep,) and ep > 1 else plain(t)

    class Stage(stages.Stage):
        def forward(self, x):
            # Meshes are lists of ranks, too: from now on only rows are counted.
            torch.Tensor.tolist = balanced
            return super().forward(x)

    def kept(c, stage, mesh):
        meshes[:] = [mesh["dp"]]
        return wrapped(c, stage, mesh)

    def clip(parts, mesh):
        params = [p for part in parts for p in part.parameters()]
        utils.clip_grad_norm_(params, 1.0, foreach=True, pp_mesh=mesh["pp"], ep_enabled=ep > 1)

    hooks = []
    def before_step(parts):
        if not hooks:
            dims = types.SimpleNamespace(spmd_backend="default", get_optional_mesh=lambda name: meshes[0])
            register_moe_load_balancing_hook(types.SimpleNamespace(register_step_pre_hook=hooks.append), parts, dims)
        for hook in hooks: hook()

    stages.block = lambda c, layer: experts.Block(c, layer >= c["dense_first"])
    stages.Stage, stages.wrapped, stages.clip, stages.before_step = Stage, kept, clip, before_step
    return stages.run(c, rank)


if __name__ == "__main__":
    sys.meta_path.append(experts.Absent())
    sys.path.insert(0, os.environ["TORCHTITAN"])
    import torchtitan.distributed.fsdp, torchtitan.models.common.config_utils, torchtitan.components.optimizer
    if sys.argv[1] == "--case":
        print(json.dumps(run(json.loads(sys.argv[2]), int(sys.argv[3]))))
        sys.exit()
    out, wanted, cases = sys.argv[1], sys.argv[2:], []
    stages.__file__ = __file__
    for name, over in CASES.items():
        if wanted and name not in wanted: continue
        config = {**DEFAULTS, **over}
        ranks = [stages.child(config, rank) for rank in range(config["pp"])]
        print(name, [r.get("error") or (r["peak_allocated"], len(r["events"])) for r in ranks], flush=True)
        if not os.environ.get("VERBOSE"):
            for r in ranks: r.pop("actions", None); r["events"] = " ".join(r.get("events", []))
        cases.append(dict(id=name, config=config, ranks=ranks))
    json.dump(dict(note="torchtitan@6b960233, torch " + torch.__version__, cases=cases), open(out, "w"), indent=1 if os.environ.get("VERBOSE") else None)
