"""Memory, allocations and collectives of Megatron-Core's own training step, with no GPU.

Runs megatron-core on "cuda" tensors with PyTorch's real caching allocator, autograd and streams; the CUDA runtime and cuBLAS must be
replaced by stubs that do nothing (LD_PRELOAD), and collectives are those of the `fake` process group, so one process stands for any
rank of any world. Usage: python megatron_core.py OUT.json [CASE ...]. With TRANSFORMER_ENGINE=FOLDER in the environment, a checkout
of Transformer Engine 2.9, the cases of its modules are run, on the stand-in for its extension beside this file; with LOCAL_NORMS=1
besides, Apex's norms are there for blocks of Megatron's own modules.

What is not Megatron's: Apex's fused layer norm and Megatron's fused softmax are extensions for a real GPU; here they are functions
that allocate what those do. Fused elementwise functions (`jit_fuser`) are compiled by inductor, whose wrappers allocate as on a
GPU; the Triton kernels in them are neither compiled nor run. Without Apex the optimizer is torch.optim.AdamW.
"""
import functools, json, os, sys, types, warnings

warnings.filterwarnings("ignore")
import torch
import torch.cuda.memory as memory
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, shape, eps, memory_efficient=False):
        out, mean, rstd = torch.native_layer_norm(x, shape, w, b, eps)
        ctx.save_for_backward(x, w, b, mean, rstd)
        ctx.shape = list(shape)
        return out

    @staticmethod
    def backward(ctx, g):
        x, w, b, mean, rstd = ctx.saved_tensors
        backward = torch.ops.aten.native_layer_norm_backward
        return (*backward(g.contiguous(), x, ctx.shape, mean, rstd, w, b, [True, True, True]), None, None, None)


def module(name, **members):
    made = types.ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
    made.__spec__ = __import__("importlib").machinery.ModuleSpec(name, None)
    sys.modules[name] = made


ENGINE = os.environ.get("TRANSFORMER_ENGINE")
if ENGINE:
    import transformer_engine_torch

    transformer_engine_torch.load(ENGINE)
    module("fused_weight_gradient_mlp_cuda", wgrad_gemm_accum_fp32=lambda *a: None, wgrad_gemm_accum_fp16=lambda *a: None)
if not ENGINE or os.environ.get("LOCAL_NORMS"):
    module("apex")
    module("apex.normalization")
    module("apex.normalization.fused_layer_norm", FusedLayerNormAffineFunction=LayerNorm)
if not ENGINE:
    for name in ("scaled_masked_softmax_cuda", "scaled_upper_triang_masked_softmax_cuda", "scaled_softmax_cuda"):
        module(name, get_batch_per_block=lambda *a: 4, forward=lambda x, *a: torch.empty_like(x), backward=lambda g, p, *a: g)

import torch._inductor.config
import triton
from torch._inductor.async_compile import AsyncCompile
from triton.backends.compiler import GPUTarget


class Driver:
    """Answers for a chip that is not there."""

    is_active = staticmethod(lambda: True)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=0: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cuda", 0))
    get_device_interface = staticmethod(lambda: torch.cuda)


class Launched:
    """A generated kernel that does nothing."""

    def run(self, *arguments, **options):
        pass


triton.runtime.driver.set_active(Driver())
torch._inductor.config.compile_threads = 1
torch._inductor.config.force_disable_caches = True
AsyncCompile.triton = lambda self, *arguments, **options: Launched()

from megatron.core import parallel_state as ps
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

BASE = dict(
    world=8, rank=0, tp=2, sp=True, pp=1, vpp=None, cp=1, layers=4, hidden=1024, heads=16, kv=16, ffn=4096, vocab=51200,
    seq=2048, micro=1, micro_batches=4, dropout=0.1, recompute=None, recompute_layers=1, distributed_optimizer=True,
    overlap_grad_reduce=False, overlap_param_gather=False, swiglu=False, rope=False, bias=True, tied=True,
    clip=1.0, fp32_reduce=True, transformer_engine=False, fused_accumulation=False, rms_norm=False, fusions=True,
    fused_loss=False, cp_comm_type=None, hierarchical=None, mtp=0,
    layout=None,
)


def config_of(c):
    recompute = {}
    if c["recompute"] in ("uniform", "block"):
        recompute = dict(recompute_granularity="full", recompute_method=c["recompute"], recompute_num_layers=c["recompute_layers"])
    if c["recompute"] == "selective":
        recompute = dict(recompute_granularity="selective")
    if c["mtp"]:
        recompute["mtp_num_layers"] = c["mtp"]
    if c["layout"]:
        recompute["pipeline_model_parallel_layout"] = c["layout"]
    return TransformerConfig(
        num_layers=c["layers"], hidden_size=c["hidden"], num_attention_heads=c["heads"], num_query_groups=c["kv"],
        ffn_hidden_size=c["ffn"], tensor_model_parallel_size=c["tp"], pipeline_model_parallel_size=c["pp"],
        virtual_pipeline_model_parallel_size=c["vpp"], sequence_parallel=c["sp"] and c["tp"] > 1,
        context_parallel_size=c["cp"], cp_comm_type=c["cp_comm_type"], bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        hidden_dropout=c["dropout"], attention_dropout=c["dropout"], gated_linear_unit=c["swiglu"],
        activation_func=torch.nn.functional.silu if c["swiglu"] else torch.nn.functional.gelu, add_bias_linear=c["bias"],
        bias_activation_fusion=c["fusions"], bias_dropout_fusion=c["fusions"], masked_softmax_fusion=c["fusions"],
        cross_entropy_loss_fusion=bool(c["fused_loss"]), cross_entropy_fusion_impl="te" if c["fused_loss"] == "te" else "native",
        normalization="RMSNorm" if c["rms_norm"] else "LayerNorm", gradient_accumulation_fusion=c["fused_accumulation"], batch_p2p_comm=True,
        deallocate_pipeline_outputs=True, perform_initialization=False, **recompute,
    )


def decoder_spec(c, config, spec, vp_stage):
    """What its blocks are: all of a kind."""
    return spec


def build(c):
    config, chunks = config_of(c), c["vpp"] or 1
    spec = get_gpt_layer_with_transformer_engine_spec() if c["transformer_engine"] else get_gpt_layer_local_spec()
    models = []
    for chunk in range(chunks):
        where = dict(ignore_virtual=False, vp_stage=chunk) if c["vpp"] else {}
        ahead = {}
        if c["mtp"]:
            vp_stage = chunk if c["vpp"] else None
            ahead["mtp_block_spec"] = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=c["transformer_engine"], vp_stage=vp_stage)
        model = GPTModel(
            config, decoder_spec(c, config, spec, chunk if c["vpp"] else None), c["vocab"], c["seq"], pre_process=ps.is_pipeline_first_stage(**where),
            post_process=ps.is_pipeline_last_stage(**where), fp16_lm_cross_entropy=False, parallel_output=True,
            share_embeddings_and_output_weights=c["tied"], position_embedding_type="rope" if c["rope"] else "learned_absolute",
            vp_stage=chunk if c["vpp"] else None, **ahead,
        )
        model.model_type = ModelType.encoder_or_decoder
        models.append(Float16Module(config, model.cuda()))
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=c["fp32_reduce"], overlap_grad_reduce=c["overlap_grad_reduce"],
        overlap_param_gather=c["overlap_param_gather"], use_distributed_optimizer=c["distributed_optimizer"],
        check_for_nan_in_grad=False, bucket_size=40_000_000 if c["overlap_grad_reduce"] else None,
    )
    models = [DistributedDataParallel(config, ddp, model, disable_bucketing=at > 0) for at, model in enumerate(models)]
    config.finalize_model_grads_func = finalize_model_grads
    if c["overlap_grad_reduce"]:
        hooks = [model.no_sync for model in models]
        config.no_sync_func = hooks if len(hooks) > 1 else hooks[0]
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, clip_grad=c["clip"],
        use_distributed_optimizer=c["distributed_optimizer"], overlap_param_gather=c["overlap_param_gather"],
    )
    optimizer = get_megatron_optimizer(settings, models, use_gloo_process_groups=False)
    config.grad_scale_func = optimizer.scale_loss
    return models, optimizer


def loss_of(mask, out):
    losses, mask = out.float().view(-1), mask.view(-1).float()
    total, count = torch.sum(losses * mask), mask.sum().clone().detach().to(torch.int)
    return total, count, {"lm loss": torch.cat([total.clone().detach().view(1), count.view(1)])}


def forward_step(c, iterator, model, return_schedule_plan=False):
    whole = dict(dtype=torch.long, device="cuda")
    part = c["seq"] // c["cp"]
    tokens, labels, positions = (torch.zeros(c["micro"], part, **whole) for _ in range(3))
    mask = torch.zeros(c["micro"], 1, part, c["seq"], dtype=torch.bool, device="cuda")
    loss_mask = torch.ones(c["micro"], part, device="cuda")
    more = dict(loss_mask=loss_mask) if c["mtp"] else {}
    if return_schedule_plan:
        # With `overlap_moe_expert_parallel_comm` the schedule runs the model part by part.
        return model.build_schedule_plan(tokens, positions, mask, labels=labels, **more), functools.partial(loss_of, loss_mask)
    return model(tokens, positions, mask, labels=labels, **more), functools.partial(loss_of, loss_mask)


def step(c, models, optimizer, mark):
    chunks = c["vpp"] or 1
    for model in models:
        model.zero_grad_buffer()
    optimizer.zero_grad()
    mark("zero")
    get_forward_backward_func()(
        forward_step_func=functools.partial(forward_step, c), data_iterator=[None] * chunks if c["vpp"] else None,
        model=models if c["vpp"] else models[0], num_microbatches=c["micro_batches"], seq_length=c["seq"],
        micro_batch_size=c["micro"], forward_only=False,
    )
    mark("forward-backward")
    optimizer.step()
    mark("optimizer")


def sizes(held):
    """Bytes of the tensors in an argument of a call, one by one."""
    if isinstance(held, torch.Tensor):
        return [held.numel() * held.element_size()]
    return [size for one in held for size in sizes(one)] if isinstance(held, (list, tuple)) else []


class Collectives(TorchDispatchMode):
    """Notes collectives in host order: name, and bytes of each tensor of the larger side."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if name.startswith("c10d."):
            larger = max(map(sizes, args), key=sum, default=[])
            self.log.append(f"{name.split('.')[1].strip('_')}:{'+'.join(map(str, larger or [0]))}")
        return func(*args, **(kwargs or {}))


def begin(c):
    dist.init_process_group("fake", rank=c["rank"], world_size=c["world"], store=FakeStore())
    torch.cuda.set_device(0)
    ps.initialize_model_parallel(
        c["tp"], c["pp"], c["vpp"], context_parallel_size=c["cp"], hierarchical_context_parallel_sizes=c["hierarchical"],
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(1)
    return build(c)


def peaks(c):
    models, optimizer = begin(c)
    out = {"parameters": sum(p.numel() for model in models for p in model.parameters())}
    out["after_setup"] = torch.cuda.memory_allocated()
    memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    starts, phases = [], {}

    def mark(name):
        phases[name] = {"peak": torch.cuda.max_memory_allocated(), "end": torch.cuda.memory_allocated()}
        torch.cuda.reset_peak_memory_stats()

    for _ in range(3):
        starts.append(len(memory._snapshot()["device_traces"][0]))
        torch.cuda.reset_peak_memory_stats()
        step(c, models, optimizer, mark)
    out["phases"] = phases
    out["peak_allocated"] = max(phase["peak"] for phase in phases.values())
    out["peak_reserved"] = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    if c["events"]:
        live, events = {}, []
        for at, event in enumerate(memory._snapshot()["device_traces"][0]):
            if event["action"] == "alloc":
                live[event["addr"]] = event["size"]
                sign, size = "+", event["size"]
            elif event["action"] == "free_requested":
                sign, size = "-", live.pop(event["addr"], 0)
            else:
                continue
            if at >= starts[2] and size:
                events.append(f"{sign}{size}")
        out["events"] = " ".join(events)
    return out


def collectives(c):
    models, optimizer = begin(c)
    step(c, models, optimizer, lambda name: None)
    log = []
    with Collectives(log):
        step(c, models, optimizer, lambda name: log.append(f"end:{name}"))
    return {"collectives": " ".join(log)}


def child(run, c):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            answer = run(c)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text) if text else {"error": "the process died"}


LLAMA = dict(swiglu=True, bias=False, rope=True, tied=False, dropout=0.0, kv=4, ffn=2816)
CASES = {
    "gpt": dict(events=True),
    "gpt-one-rank": dict(tp=1, world=1, events=True),
    "gpt-dp8": dict(tp=1),
    "gpt-no-sp": dict(sp=False, events=True),
    "gpt-tp4": dict(tp=4),
    "gpt-micro-2": dict(micro=2),
    "gpt-one-micro-batch": dict(micro_batches=1, events=True),
    "gpt-no-dropout": dict(dropout=0.0, events=True),
    "gpt-uniform": dict(recompute="uniform", events=True),
    "gpt-uniform-2": dict(recompute="uniform", recompute_layers=2),
    "gpt-block-2": dict(recompute="block", recompute_layers=2),
    "gpt-selective": dict(recompute="selective", events=True),
    "gpt-no-distributed-optimizer": dict(distributed_optimizer=False, events=True),
    "gpt-bf16-reduce": dict(fp32_reduce=False),
    "gpt-overlap-reduce": dict(overlap_grad_reduce=True),
    "gpt-overlap-both": dict(overlap_grad_reduce=True, overlap_param_gather=True),
    "gpt-overlap-pp2": dict(overlap_grad_reduce=True, overlap_param_gather=True, pp=2),
    "gpt-no-clip": dict(clip=0.0),
    "gpt-untied": dict(tied=False),
    "llama": dict(LLAMA, events=True),
    "llama-no-sp": dict(LLAMA, sp=False),
    "llama-mha": dict(LLAMA, kv=16),
    "llama-tp8": dict(LLAMA, tp=4, kv=4),
    "llama-uniform": dict(LLAMA, recompute="uniform"),
    "llama-selective": dict(LLAMA, recompute="selective"),
    "llama-seq4096": dict(LLAMA, seq=4096),
    "pp2-first": dict(pp=2, rank=0, events=True),
    "pp2-last": dict(pp=2, rank=4, events=True),
    "pp4-first": dict(pp=4, rank=0, micro_batches=8, layers=8),
    "pp4-second": dict(pp=4, rank=2, micro_batches=8, layers=8),
    "pp4-third": dict(pp=4, rank=4, micro_batches=8, layers=8),
    "pp4-last": dict(pp=4, rank=6, micro_batches=8, layers=8),
    "pp2-vpp2-first": dict(pp=2, vpp=2, rank=0, layers=8, events=True),
    "pp2-vpp2-last": dict(pp=2, vpp=2, rank=4, layers=8),
    "pp4-vpp2-first": dict(pp=4, vpp=2, rank=0, layers=8, micro_batches=8),
    "pp4-vpp2-last": dict(pp=4, vpp=2, rank=6, layers=8, micro_batches=8),
    "pp2-few-micro-batches": dict(pp=2, rank=0, micro_batches=1),
    "pp2-selective": dict(pp=2, rank=0, recompute="selective"),
    "pp2-llama-first": dict(LLAMA, pp=2, rank=0),
    "pp2-llama-last": dict(LLAMA, pp=2, rank=4),
    "pp2-no-sp": dict(pp=2, rank=0, sp=False),
}

SMALL = dict(layers=2, micro_batches=2, events=True)
UNFUSED_CASES = {
    "gpt-unfused": dict(SMALL, fusions=False),
    "llama-unfused": dict(SMALL, **LLAMA, fusions=False),
    "gpt-fused-loss": dict(SMALL, fused_loss=True),
}
ENGINE_BASE = dict(SMALL, transformer_engine=True)
ENGINE_CASES = {
    "engine-gpt": dict(ENGINE_BASE),
    "engine-gpt-fused": dict(ENGINE_BASE, fused_accumulation=True),
    "engine-gpt-fused-one-rank": dict(ENGINE_BASE, fused_accumulation=True, tp=1, world=1),
    "engine-gpt-no-sp": dict(ENGINE_BASE, sp=False),
    "engine-gpt-uniform": dict(ENGINE_BASE, recompute="uniform"),
    "engine-gpt-micro-2": dict(ENGINE_BASE, micro=2),
    "engine-llama": dict(ENGINE_BASE, **LLAMA, rms_norm=True),
    "engine-llama-fused": dict(ENGINE_BASE, **LLAMA, rms_norm=True, fused_accumulation=True),
    "engine-llama-selective": dict(ENGINE_BASE, **LLAMA, rms_norm=True, recompute="selective"),
    "engine-llama-mha": dict(ENGINE_BASE, **{**LLAMA, "kv": 16}, rms_norm=True),
}

# Ranks that share a sequence; of a ring the last, which holds the most.
SHARED = dict(ENGINE_BASE, dropout=0.0, tp=1)
SHARED_LLAMA = dict(ENGINE_BASE, **LLAMA, rms_norm=True, tp=2)
for ranks in (2, 4):
    for way in ("p2p", "all_gather", "a2a"):
        ENGINE_CASES[f"engine-{way}-{ranks}"] = dict(SHARED, cp=ranks, rank=ranks - 1, cp_comm_type=way)
        ENGINE_CASES[f"engine-llama-{way}-{ranks}"] = dict(SHARED_LLAMA, cp=ranks, rank=2 * ranks - 2, cp_comm_type=way)
ENGINE_CASES["engine-llama-a2a-4"]["kv"] = 8
for way in ("all_gather", "a2a"):
    again = dict(SHARED_LLAMA, cp=2, rank=2, cp_comm_type=way, recompute="selective")
    ENGINE_CASES[f"engine-llama-{way}-selective"] = again
ENGINE_CASES["engine-a2a+p2p-4"] = dict(SHARED, cp=4, rank=3, cp_comm_type="a2a+p2p", hierarchical=[2, 2])
ENGINE_CASES["engine-a2a+p2p-8"] = dict(SHARED, cp=8, rank=7, cp_comm_type="a2a+p2p", hierarchical=[2, 4])
ENGINE_CASES["engine-llama-a2a+p2p-4"] = dict(SHARED_LLAMA, cp=4, rank=6, cp_comm_type="a2a+p2p", hierarchical=[2, 2])

if __name__ == "__main__":
    import megatron.core

    done = {"torch": torch.__version__, "megatron_core": megatron.core.__version__, "cases": []}
    only = sys.argv[2:]
    for name, over in (ENGINE_CASES if ENGINE else {**CASES, **UNFUSED_CASES}).items():
        if only and name not in only:
            continue
        c = dict(BASE, **{"events": False, **over})
        out = child(peaks, c)
        out.update(child(collectives, c))
        print(name, {key: out.get(key) for key in ("peak_allocated", "peak_reserved", "error")}, len(out.get("collectives", "").split()), flush=True)
        done["cases"].append({"id": name, "config": {k: v for k, v in c.items() if k != "events"}, "outputs": out})
        with open(sys.argv[1], "w") as file:
            json.dump(done, file, indent=0)
