"""Megatron-Core 0.19.2 and Transformer Engine 2.20.2: cases of `draw.py`, with no GPU, by the loops of the scripts beside this one.

    py megatron_019.py OUT.json [CASE ...]      # `py` sets the null GPU up; TRACE=1 prints where a case stops

Settings mean what they mean in `megatron_core.py` and its siblings. New ones: `flex_backend`, `first_stage`, `fp4`, `precision_aware`
with `first_moment`, `second_moment` and `remainders`, `optimizer`, `host_optimizer` (the part of it that the host has), `offload`
(modules whose activations the host keeps), `aside` (drawn before anything ran).
"""
import json, os, sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import deep_ep
import draw
import megatron_experts as experts
from megatron_experts import base

FURTHER = dict(
    kind="step", flex_backend="deepep", first_stage=None, fp4=None, precision_aware=False, first_moment="fp32", second_moment="fp32", remainders=False,
    optimizer="adam", host_optimizer=0.0, offload=[], repeated=False,
)
BASE = {**base.BASE, **experts.EXPERTS, "qk_norm": False, **FURTHER}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
CASES = draw.CASES


def settings(c):
    """Fields of the model's configuration that the other scripts have no word for."""
    more = {"moe_flex_dispatcher_backend": c["flex_backend"]} if c["experts"] else {}
    if c["offload"]:
        more.update(fine_grained_activation_offloading=True, offload_modules=c["offload"])
    if c["kind"] == "hybrid" and c["mtp"]:
        more.update(mtp_num_layers=c["mtp"], mtp_use_repeated_layer=c["repeated"])
    if c["first_stage"]:
        more.update(num_layers_in_first_pipeline_stage=c["first_stage"])
    if c["fp4"]:
        more.update(fp4="e2m1", fp4_recipe=c["fp4"])
    return more


def optimizer_settings(c):
    more = {"optimizer": c["optimizer"]}
    if c["optimizer"] == "dist_muon":
        more = dict(optimizer="muon", use_layer_wise_distributed_optimizer=True, use_distributed_optimizer=False)
    if c["precision_aware"]:
        more.update(
            use_precision_aware_optimizer=True, exp_avg_dtype=DTYPES[c["first_moment"]], exp_avg_sq_dtype=DTYPES[c["second_moment"]],
            store_param_remainders=c["remainders"],
        )
    if c["host_optimizer"]:
        more.update(
            optimizer_cpu_offload=True, optimizer_offload_fraction=c["host_optimizer"], use_precision_aware_optimizer=True,
            use_torch_optimizer_for_cpu_offload=True,
        )
    return more


def widened(make, more):
    return lambda **values: make(**{**values, **more})


def blackwell():
    """A chip with matmuls in MXFP8 and NVFP4."""
    import transformer_engine.pytorch.quantization as quantization
    import transformer_engine.pytorch.utils as utils

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("transformer_engine", "megatron")) and hasattr(module, "get_device_compute_capability"):
            module.get_device_compute_capability = lambda: (10, 0)
    for name in ("check_mxfp8_support", "check_nvfp4_support"):
        if hasattr(quantization, name):
            setattr(quantization, name, lambda: (True, ""))


def whole_matrices(c):
    """As `megatron/training/training.py` wraps a model whose optimizer reads whole matrices, `--optimizer dist_muon`."""
    from megatron.core.optimizer import layer_wise_optimizer as layers
    from megatron.core.process_groups_config import ProcessGroupCollection

    wrap = base.DistributedDataParallel

    def wrapped(config, ddp, model, disable_bucketing=False):
        ddp.use_distributed_optimizer = True
        groups = ProcessGroupCollection.use_mpu_process_groups()
        layers.tag_params_for_buffer_routing([model])
        layout = layers.LayerWiseDistributedOptimizer.compute_full_param_layout(
            [p for p in model.parameters() if p.requires_grad], ddp.bucket_size, groups.intra_dp_cp.size(), ddp,
            expert_data_parallel_world_size=groups.intra_expt_dp.size(),
        )
        return wrap(config, ddp, model, disable_bucketing=disable_bucketing, full_param_layout=layout)

    base.DistributedDataParallel = wrapped


def prepare(c):
    """Makes a process ready for a case."""
    deep_ep.CASE.update(c)
    experts.CASE = base.CASE = c
    if c["fp8"] == "mxfp8" or c["fp4"]:
        blackwell()
    if c["kind"] == "hybrid":
        import megatron_hybrid as hybrid
        from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
        from megatron.core.models.hybrid.hybrid_model import HybridModel

        plain = hybrid.TransformerConfig
        hybrid.TransformerConfig = lambda **values: plain(**{k: v for k, v in values.items() if k in plain.__dataclass_fields__})
        # Modules that predict ahead stand in the pattern.
        base.get_gpt_mtp_block_spec = lambda *given, **named: None
        hybrid.MambaModel = lambda config, spec, vocab, seq, hybrid_override_pattern, mtp_block_spec=None, **more: HybridModel(
            config, hybrid_stack_spec, vocab, seq, hybrid_layer_pattern=hybrid_override_pattern, **more
        )
    experts.TransformerConfig = widened(experts.TransformerConfig, settings(c))
    experts.MLATransformerConfig = widened(experts.MLATransformerConfig, settings(c))
    base.OptimizerConfig = widened(base.OptimizerConfig, optimizer_settings(c))
    if "muon" in c["optimizer"]:
        whole_matrices(c)
    if c["kind"] == "graphs":
        import megatron_graphs

        return megatron_graphs.run
    if c["kind"] == "fsdp":
        import megatron_fsdp

        return megatron_fsdp.run
    return base.peaks


def run(c):
    """A case's peaks, and of the fourth step the collectives."""
    made, loop, begin = [], prepare(c), base.begin
    base.begin = lambda c: made.append(begin(c)) or made[0]
    out = loop(c)
    if c["kind"] in ("step", "hybrid"):
        (models, optimizer), log = made[0], []
        with base.Collectives(log):
            base.step(c, models, optimizer, lambda name: log.append(f"end:{name}"))
        out["collectives"] = " ".join(log)
    return out


def complete(over):
    c = {**BASE, "events": True, **over}
    c.pop("aside", None)
    if c["latent"]:
        # What was drawn for the others means nothing here.
        c["kv"] = c["heads"]
    if c["kind"] == "hybrid":
        c = {**dict(first_stage=None, moe_latent=None, fp32_residual=False, first_last_bf16=None, gelu=False, unfused_attention=False), **c}
    if c["kind"] == "graphs":
        c["events"] = False
    if c["kind"] == "fsdp":
        c = {**dict(unit_size=None, double_buffer=False), **c}
    return c


if __name__ == "__main__":
    import megatron.core

    out_file, only = sys.argv[1], sys.argv[2:]
    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "transformer_engine": "2.20.2", "cases": []}
    if os.path.exists(out_file):
        done["cases"] = [case for case in json.load(open(out_file))["cases"] if case["id"] not in only]
    for name, over in CASES.items():
        if only and name not in only or not only and any(case["id"] == name for case in done["cases"]):
            continue
        c = complete(over)
        out = base.child(run, c)
        print(name, {key: out.get(key) for key in ("parameters", "after_setup", "peak_allocated", "error")}, len(out.get("collectives", "").split()), flush=True)
        done["cases"].append({"id": name, "aside": over["aside"], "config": {k: v for k, v in c.items() if k != "events"}, "outputs": out})
        order = list(CASES)
        done["cases"].sort(key=lambda case: order.index(case["id"]))
        with open(out_file, "w") as file:
            json.dump(done, file, indent=0)
