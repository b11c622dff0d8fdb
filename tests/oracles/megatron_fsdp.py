"""Megatron-FSDP around Megatron-Core's own model, with no GPU: as `megatron_core.py`, with `FullyShardedDataParallel` of
`megatron/core/distributed/fsdp/mcore_fsdp_adapter.py` in place of `DistributedDataParallel`.

Usage: as `megatron_core.py`. A step begins where the one before has stepped its parameters and gathers the first of them
(`start_param_sync`). `events` are those of the third step in host order: `+BYTES@STREAM` and `-BYTES@STREAM` for blocks of the
allocator, `KIND:BYTES@STREAM` for collectives with all bytes of the larger side (stream 0 is the default one, 1 gathers, 2 reduces, 3 is any other),
`wait:STREAM<OTHER#CALLS` where a stream waits for another as that was after so many calls in the step, `wait:STREAM<call#NUMBER` where it waits
for a call, `wait:host#CALLS` where the host waits, `PHASE` where a phase ends. Left out is what reads values: the check of distributed tensors and their metadata, and seeds sent to
tensor-parallel ranks.
"""
import json, os, sys

import torch
import torch.cuda.memory as memory
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import megatron_core as base
from megatron_core import (
    ENGINE, LLAMA, DistributedDataParallelConfig, Float16Module, GPTModel, ModelType, OptimizerConfig, finalize_model_grads,
    get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec, get_megatron_optimizer, ps,
)

import megatron.core.distributed.fsdp.mcore_fsdp_adapter as adapter
from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer

param_and_grad_buffer.validate_uneven_dtensor = lambda tensor: None
param_and_grad_buffer.update_uneven_dtensor_chunk_metadata = lambda tensor: None
# The adapter asks which linears are Transformer Engine's, whether or not it is there.
if not isinstance(adapter.TELinear, type):
    adapter.TELinear = type("TELinear", (), {})
adapter.FullyShardedDataParallel.sync_rng_states_across_tp_group = lambda self: None

BASE = dict(
    base.BASE, tp=1, strategy="optim_grads_params", unit_size=None, double_buffer=False, overlap_grad_reduce=True,
    overlap_param_gather=True, vocab=8192, layers=3, micro_batches=2,
)


def build(c):
    config = base.config_of(c)
    spec = get_gpt_layer_with_transformer_engine_spec() if c["transformer_engine"] else get_gpt_layer_local_spec()
    model = GPTModel(
        config, spec, c["vocab"], c["seq"], fp16_lm_cross_entropy=False, parallel_output=True,
        share_embeddings_and_output_weights=c["tied"], position_embedding_type="rope" if c["rope"] else "learned_absolute",
    )
    model.model_type = ModelType.encoder_or_decoder
    model = Float16Module(config, model.cuda())
    # As `get_model` of `megatron/training/training.py` does.
    replicas = c["world"] // c["tp"]
    bucket = max(40_000_000, 1_000_000 * replicas) if c["overlap_grad_reduce"] else None
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=c["fp32_reduce"], overlap_grad_reduce=c["overlap_grad_reduce"],
        overlap_param_gather=c["overlap_param_gather"], use_distributed_optimizer=c["distributed_optimizer"], use_megatron_fsdp=True,
        check_for_nan_in_grad=False, bucket_size=bucket, data_parallel_sharding_strategy=c["strategy"],
        suggested_communication_unit_size=c["unit_size"], fsdp_double_buffer=c["double_buffer"],
    )
    model = adapter.FullyShardedDataParallel(config, ddp, model)
    config.finalize_model_grads_func = finalize_model_grads
    if c["overlap_grad_reduce"]:
        config.no_sync_func = model.no_sync
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, clip_grad=c["clip"],
        use_distributed_optimizer=c["distributed_optimizer"], overlap_param_gather=c["overlap_param_gather"],
    )
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    return [model], optimizer


base.build = build


def note(log, streams):
    """Has the process group's calls and all waits noted, and how many blocks had been taken and let go of before."""
    records = {}

    def size(held):
        if isinstance(held, torch.Tensor):
            return held.numel() * held.element_size()
        return sum(map(size, held)) if isinstance(held, (list, tuple)) else 0

    def lane(stream):
        return streams.get((stream or torch.cuda.current_stream()).cuda_stream, 3)

    def calls():
        return sum(entry[0] != "w" and ":" in entry for _, entry in log)

    class Called:
        """A call that is under way."""

        def __init__(self, work, number):
            self.work, self.number = work, number

        def wait(self, *timeout):
            log.append((at(), f"wait:{lane(None)}<call#{self.number}"))
            return self.work.wait(*timeout)

    def noted(name, kind):
        call = getattr(dist.ProcessGroup, name)

        def wrapper(group, *tensors, **options):
            log.append((at(), f"{kind}:{max(map(size, tensors))}@{lane(None)}"))
            return Called(call(group, *tensors, **options), calls())

        setattr(dist.ProcessGroup, name, wrapper)

    kinds = {"all_gather_single": "allgather", "reduce_scatter_single": "reduce_scatter", "allreduce": "allreduce"}
    for name, kind in kinds.items():
        for ending in ("", "_coalesced"):
            noted(name + ending, kind + ending)
    event = torch.cuda.Event
    record, wait = event.record, event.wait

    def recorded(self, stream=None):
        records[id(self)] = (self, f"{lane(stream)}#{calls()}")
        return record(self, stream)

    def waited(self, stream=None):
        log.append((at(), f"wait:{lane(stream)}<{records[id(self)][1]}"))
        return wait(self, stream)

    event.record, event.wait = recorded, waited
    for owner, name in ((torch.Tensor, "item"), (torch.cuda, "synchronize"), (event, "synchronize"), (torch.cuda.Stream, "synchronize")):
        def stops(*arguments, call=getattr(owner, name), **options):
            if not any(getattr(one, "is_cpu", False) for one in arguments):
                log.append((at(), f"wait:host#{calls()}"))
            return call(*arguments, **options)

        setattr(owner, name, stops)


def at():
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + stats["allocation.all.freed"]


def run(c):
    models, optimizer = base.begin(c)
    fsdp = models[0].module
    default = torch.cuda.current_stream().cuda_stream
    streams = {
        default: 0, fsdp.side_stream_for_param_gather.cuda_stream: 1,
        fsdp.side_stream_for_buffer_copy_and_grad_accum.cuda_stream: 2,
    }
    groups = [
        {
            "elements": group.main_grad_buffer.bucket_index.size, "factor": group.chunk_size_factor,
            "parameters": [p.numel() for p in group.params], "unit": group.fsdp_unit_id,
        }
        for group in models[0].param_and_grad_buffer.parameter_groups
    ]
    out = {"parameters": sum(group_size for group in groups for group_size in group["parameters"]), "groups": groups}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    out["after_setup"] = torch.cuda.memory_allocated()
    memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    phases, log, begun = {}, [], 0

    def mark(name):
        phases[name] = {"peak": torch.cuda.max_memory_allocated(), "end": torch.cuda.memory_allocated()}
        torch.cuda.reset_peak_memory_stats()
        log.append((at(), name))

    started, gather, steps = at(), models[0].start_param_sync, []

    def begin(*arguments, **options):
        mark("optimizer")
        steps.append((log[:], dict(phases), at()))
        log.clear()
        gather(*arguments, **options)

    models[0].start_param_sync = begin
    note(log, streams)
    for _ in range(3):
        base.step(c, models, optimizer, lambda name: name == "optimizer" or mark(name))
    (_, _, begun), (log, phases, ended) = steps[1:]
    out["phases"] = phases
    out["peak_allocated"] = max(phase["peak"] for phase in phases.values())
    out["peak_reserved"] = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    live, events, count = {}, [], started
    for event in memory._snapshot()["device_traces"][0]:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
            written = f"+{event['size']}@{streams.get(event['stream'], 3)}"
        elif event["action"] == "free_requested":
            written = f"-{live.pop(event['addr'], 0)}@{streams.get(event['stream'], 3)}"
        else:
            continue
        if begun <= count < ended:
            while log and log[0][0] <= count:
                events.append(log.pop(0)[1])
            events.append(written)
        count += 1
    events += [name for _, name in log]
    out["events"] = " ".join(events)
    return out


UNIT = dict(unit_size=16_000_000)
CASES = {
    "params": dict(),
    "params-three-micro-batches": dict(micro_batches=3, tied=False),
    "params-small-unit": dict(UNIT, layers=4),
    "params-uniform": dict(recompute="uniform"),
    "params-uniform-small-unit": dict(UNIT, recompute="uniform", layers=4),
    "params-uniform-2": dict(UNIT, recompute="uniform", recompute_layers=2, layers=4),
    "params-block-2": dict(UNIT, recompute="block", recompute_layers=2, layers=4),
    "params-selective": dict(recompute="selective"),
    "params-bf16-small-unit": dict(UNIT, fp32_reduce=False),
    "params-large-vocabulary": dict(UNIT, tied=False, vocab=51200),
    "params-llama-small-unit": dict(LLAMA, unit_size=20_000_000, recompute="uniform"),
    "params-tp2": dict(tp=2),
    "params-llama-tp2-uniform": dict(LLAMA, tp=2, recompute="uniform", unit_size=10_000_000),
    "params-double-buffer": dict(double_buffer=True),
    "params-double-buffer-uniform": dict(double_buffer=True, recompute="uniform", micro_batches=3),
    "params-double-buffer-bf16": dict(UNIT, double_buffer=True, fp32_reduce=False),
    "params-no-overlap": dict(overlap_grad_reduce=False, overlap_param_gather=False),
    "grads": dict(strategy="optim_grads"),
    "grads-bf16-uniform": dict(strategy="optim_grads", fp32_reduce=False, recompute="uniform"),
    "grads-no-overlap": dict(strategy="optim_grads", overlap_grad_reduce=False, overlap_param_gather=False),
    "grads-large-vocabulary": dict(strategy="optim_grads", tied=False, vocab=51200, layers=4),
    "optim": dict(strategy="optim"),
    "optim-tp2": dict(strategy="optim", tp=2, tied=False),
    "optim-bf16": dict(strategy="optim", fp32_reduce=False),
    "optim-no-overlap": dict(strategy="optim", overlap_grad_reduce=False, overlap_param_gather=False),
    "whole": dict(strategy="no_shard"),
    "whole-bf16": dict(strategy="no_shard", fp32_reduce=False, tp=2),
    "whole-no-overlap": dict(strategy="no_shard", overlap_grad_reduce=False, overlap_param_gather=False),
    "params-plain-optimizer": dict(distributed_optimizer=False),
}
MODERN = dict(LLAMA, rms_norm=True, transformer_engine=True)
ENGINE_CASES = {
    "engine": dict(transformer_engine=True),
    "engine-llama": dict(MODERN),
    "engine-llama-uniform": dict(MODERN, recompute="uniform", unit_size=20_000_000),
    "engine-llama-tp2-selective": dict(MODERN, tp=2, recompute="selective"),
    "engine-llama-cp2": dict(MODERN, cp=2, rank=1),
    "engine-llama-grads": dict(MODERN, strategy="optim_grads"),
    "engine-llama-fused": dict(MODERN, fused_accumulation=True),
}

if __name__ == "__main__":
    import megatron.core

    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "cases": []}
    only = sys.argv[2:]
    for name, over in (ENGINE_CASES if ENGINE else CASES).items():
        if only and name not in only:
            continue
        c = dict(BASE, **over)
        out = base.child(run, c)
        print(name, {key: out.get(key) for key in ("peak_allocated", "error")}, len(out.get("events", "").split()), flush=True)
        done["cases"].append({"id": name, "config": c, "outputs": out})
        with open(sys.argv[1], "w") as file:
            json.dump(done, file, indent=0)
