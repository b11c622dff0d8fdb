"""What torchtitan 0.3.0's own trainer allocates and exchanges in a training step of Llama 3, with no GPU: rank 0 of 8.

    python torchtitan.py OUT.json [ids]

Run are torchtitan's `Trainer` itself (configuration, model, `parallelize_llama`, losses, optimizer container, clipping, CUDA graphs,
`train_step`) and PyTorch 2.15 under it, on the stubs of this folder's README and the process group `fake` (`comm.mode`). Instead of
what is missing there are:

- data: batches of token 0 and positions that count up, on the host, as torchtitan's loaders give them; no tokenizer.
- Triton kernels: inductor writes them, nobody compiles or runs them. FlexAttention is compiled with torchtitan's options but for
  `max_autotune` and `coordinate_descent_tuning`, which would time kernels; what they allocate while they do is gone after step 1.
- `attention="sdpa"`: no longer a choice of torchtitan for language models; its class is put in the configuration by hand, and offers
  flash attention alone, for cuDNN is not there.
- capture: `cudaStreamBeginCapture`, `cudaStreamEndCapture`, `cudaStreamIsCapturing` and `cudaStreamGetCaptureInfo` answer as for a stream
  that captures and streams that wait for an event of it, `cudaPointerGetAttributes` knows pinned memory, `cudaGraphLaunch` does nothing.

Three steps; without CUDA graphs the third is told of. With them, step 1 runs, step 2 is captured and replayed, step 3 replayed (where
gradients accumulate, all within the first step's micro-batches), and `steps` has all three; `peaks` are theirs. Peaks by phase: zero (gradients), fwd (inputs, mask and decoder), loss (chunks: forward and backward), bwd, clip,
opt; numbered by micro-batch. The ordered blocks (`events`: bytes, who asked, and under which FSDP hook or node of autograd) and the
collectives are those of one more step under the profiler, or, with CUDA graphs, of a capture: [kind, bytes of the larger side, dtype].
"""
import dataclasses, json, os, subprocess, sys, warnings

# This file has the name of the package.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != os.path.dirname(os.path.abspath(__file__))]
import torch

DEFAULTS = dict(
    flavor=None, world=8, layers=4, dim=1024, n_heads=16, n_kv_heads=4, hidden_dim=3584, vocab_size=32000, fuse_qkv=True, attention="flex",
    seq_len=2048, local_batch_size=1, accumulation=1, activation_checkpoint="selective", compile=False, components=["model", "loss"],
    num_chunks=8, disable_cuda_graphs=True, fsdp_reshard_after_forward="default", data_parallel_replicate_degree=1,
    spmd_backend="spmd_types", implementation="fused", max_norm=1.0, events=False,
)
CASES = {
    # torchtitan's defaults at a smaller size, without and with CUDA graphs, which are its default.
    "defaults": dict(events=True),
    "defaults_graphs": dict(disable_cuda_graphs=False, events=True),
    "none": dict(activation_checkpoint=None, events=True),
    "none_graphs": dict(activation_checkpoint=None, disable_cuda_graphs=False),
    "full": dict(activation_checkpoint="full", events=True),
    "full_graphs": dict(activation_checkpoint="full", disable_cuda_graphs=False),
    "sdpa": dict(attention="sdpa", events=True),
    "sdpa_none": dict(attention="sdpa", activation_checkpoint=None),
    "sdpa_full": dict(attention="sdpa", activation_checkpoint="full"),
    "plain_loss": dict(num_chunks=None, events=True),
    "plain_loss_none": dict(num_chunks=None, activation_checkpoint=None),
    "plain_loss_graphs": dict(num_chunks=None, disable_cuda_graphs=False),
    "chunks_1": dict(num_chunks=1),
    "chunks_2": dict(num_chunks=2),
    "chunks_4_none": dict(num_chunks=4, activation_checkpoint=None),
    "chunks_16": dict(num_chunks=16),
    "separate_qkv": dict(fuse_qkv=False, events=True),
    "separate_qkv_none": dict(fuse_qkv=False, activation_checkpoint=None),
    "separate_qkv_sdpa": dict(fuse_qkv=False, attention="sdpa"),
    # 0.2.2's mechanisms, but for positions.
    "as_before": dict(fuse_qkv=False, attention="sdpa", num_chunks=None, events=True),
    "accumulate_4": dict(accumulation=4, events=True),
    "accumulate_4_plain_loss": dict(accumulation=4, num_chunks=None),
    "accumulate_4_graphs": dict(accumulation=4, disable_cuda_graphs=False),
    "always": dict(fsdp_reshard_after_forward="always"),
    "never": dict(fsdp_reshard_after_forward="never", events=True),
    "always_plain_loss": dict(fsdp_reshard_after_forward="always", num_chunks=None),
    "never_plain_loss": dict(fsdp_reshard_after_forward="never", num_chunks=None),
    "hsdp": dict(data_parallel_replicate_degree=2, events=True),
    "hsdp_accumulate_2": dict(data_parallel_replicate_degree=2, accumulation=2),
    "ddp": dict(data_parallel_replicate_degree=8),
    "batch_2": dict(local_batch_size=2, events=True),
    "batch_2_none_wide": dict(local_batch_size=2, dim=2048, n_heads=16, n_kv_heads=8, hidden_dim=7168, layers=3, activation_checkpoint=None),
    "long_wide": dict(seq_len=4096, dim=2048, n_heads=16, n_kv_heads=8, hidden_dim=7168, layers=3),
    "heads_alike": dict(n_kv_heads=16, layers=3),
    "world_64": dict(world=64),
    "world_3": dict(world=3),
    "partial_dtensor": dict(spmd_backend="partial_dtensor"),
    "foreach": dict(implementation="foreach"),
    "bf16_states": dict(implementation="fused_opt_states_bf16"),
    "compile": dict(compile=True, events=True),
    "compile_none": dict(compile=True, activation_checkpoint=None),
    "compile_full": dict(compile=True, activation_checkpoint="full"),
    "compile_model": dict(compile=True, components=["model"]),
    "compile_sdpa": dict(compile=True, attention="sdpa"),
    "compile_graphs": dict(compile=True, disable_cuda_graphs=False),
    "compile_plain_loss": dict(compile=True, num_chunks=None),
    # As `llama3_8b` in torchtitan's registry has it.
    "llama3_8b": dict(flavor="8B", disable_cuda_graphs=False),
    "llama3_8b_eager": dict(flavor="8B"),
    "llama3_8b_none": dict(flavor="8B", activation_checkpoint=None),
    "llama3_8b_full": dict(flavor="8B", activation_checkpoint="full"),
}
COMMS = dict(
    _allgather_base_="all_gather", _reduce_scatter_base_="reduce_scatter", allreduce_="all_reduce", all_reduce="all_reduce", all_reduce_="all_reduce",
    all_gather_into_tensor="all_gather", all_gather_into_tensor_out="all_gather", reduce_scatter_tensor="reduce_scatter")


def no_kernels():
    """Triton and inductor for a chip that is not there."""
    import torch._inductor.config, triton
    from torch._inductor.async_compile import AsyncCompile
    from triton.backends.compiler import GPUTarget

    class Driver:
        is_active = staticmethod(lambda: True)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device=0: 0)
        get_active_torch_device = staticmethod(lambda: torch.device("cuda", 0))
        get_device_interface = staticmethod(lambda: torch.cuda)

    class Launched:
        def run(self, *arguments, **options): pass

    triton.runtime.driver.set_active(Driver())
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.force_disable_caches = True
    AsyncCompile.triton = lambda self, *arguments, **options: Launched()


def configure(c):
    from torch.nn.attention import SDPBackend
    from torch.nn.attention.flex_attention import flex_attention
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
    from torchtitan.models.common.config_utils import decoder_vocab_size
    from torchtitan.models.llama3 import config_registry

    class Loader(BaseDataLoader):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config): pass
        def __init__(self, config, *, seq_len, local_batch_size, **rest): self.shape = (local_batch_size, seq_len)
        def state_dict(self): return {}
        def load_state_dict(self, state): pass
        def __iter__(self):
            while True:
                yield dict(input=torch.zeros(self.shape, dtype=torch.long), positions=torch.arange(self.shape[1]).repeat(self.shape[0], 1)), torch.zeros(self.shape, dtype=torch.long)

    class Tokenizer(BaseTokenizer):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config): pass
        def __init__(self, config, **rest): super().__init__()
        def encode(self, *a, **k): return []
        def decode(self, *a, **k): return ""
        def get_vocab_size(self): return 0

    options = dict(FlexAttention.inductor_configs, max_autotune=False, coordinate_descent_tuning=False)
    FlexAttention._compiled_flex_attn = torch.compile(flex_attention, options=options)
    ScaledDotProductAttention.sdpa_backends = [SDPBackend.FLASH_ATTENTION]
    config = config_registry.llama3_8b()
    if c["flavor"] is None:
        dim, heads = c["dim"], c["n_heads"]
        def sized(attn_backend, tp_gemm_backend):
            linear = llama3.Linear.Config(in_features=dim, out_features=c["vocab_size"], param_init=llama3._output_linear_init(dim))
            return llama3.Llama3Model.Config(
                dim=dim, vocab_size=c["vocab_size"], lm_head=linear,
                tok_embeddings=llama3.Embedding.Config(num_embeddings=c["vocab_size"], embedding_dim=dim, param_init=llama3._EMBEDDING_INIT),
                norm=llama3.RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
                layers=llama3._build_llama3_layers(
                    n_layers=c["layers"], dim=dim, n_heads=heads, n_kv_heads=c["n_kv_heads"], hidden_dim=c["hidden_dim"], fuse_qkv=c["fuse_qkv"],
                    rope=llama3.ComplexRoPE.Config(dim=dim // heads, max_seq_len=131072, theta=500000, scaling="llama"), attn_backend=attn_backend))
        llama3.llama3_configs["sized"] = sized
        config.model_spec = llama3.model_registry("sized")
        config.training.seq_len, config.training.local_batch_size = c["seq_len"], c["local_batch_size"]
        config.training.max_norm = c["max_norm"]
    else:
        model, training = config.model_spec.model, config.training
        first = model.layers[0]
        c.update(
            layers=len(model.layers), dim=model.dim, n_heads=first.attention.n_heads, n_kv_heads=first.attention.n_kv_heads,
            hidden_dim=first.feed_forward.w1.out_features, vocab_size=model.vocab_size, seq_len=training.seq_len, local_batch_size=training.local_batch_size)
    if c["attention"] == "sdpa":
        for layer in config.model_spec.model.layers: layer.attention.inner_attention = ScaledDotProductAttention.Config()
    plain = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))
    config.loss = ChunkedLossWrapper.Config(num_chunks=c["num_chunks"], loss_fn=plain) if c["num_chunks"] else plain
    config.activation_checkpoint = {"selective": SelectiveAC.Config, "full": FullAC.Config, None: lambda: None}[c["activation_checkpoint"]]()
    config.training.disable_cuda_graphs = c["disable_cuda_graphs"]
    config.training.global_batch_size = c["accumulation"] * c["local_batch_size"] * c["world"]
    config.compile.enable, config.compile.components = c["compile"], c["components"]
    config.parallelism.fsdp_reshard_after_forward = c["fsdp_reshard_after_forward"]
    config.parallelism.data_parallel_replicate_degree = c["data_parallel_replicate_degree"]
    config.parallelism.spmd_backend = c["spmd_backend"]
    config.optimizer.implementation = c["implementation"]
    config.comm.mode = "fake_backend"
    config.dataloader, config.tokenizer = Loader.Config(), Tokenizer.Config()
    config.profiler.enable_profiling = config.metrics.enable_tensorboard = False
    return config


class Phases:
    """Peaks and ends of a step's parts, told at their ends."""

    def __init__(self, trainer):
        from torchtitan.distributed import utils
        self.now, self.micro, self.many = {}, 0, trainer.gradient_accumulation_steps > 1
        loss = trainer.loss_fn
        self.after(trainer.optimizers, "zero_grad", "zero")
        def told(*args, **kwargs):
            self.mark("fwd")
            made = loss(*args, **kwargs)
            self.mark("loss")
            return made
        trainer.loss_fn = told
        def micro_batch_done():
            self.mark("bwd" if "loss" + self.number() in self.now else "replay")
            self.micro += 1
        self.after(trainer, "forward_backward_step", done=micro_batch_done)
        self.after(utils, "clip_grad_norm_", "clip")
        self.after(trainer.optimizers, "step", "opt")

    def after(self, owner, name, phase=None, done=None):
        plain = getattr(owner, name)
        def told(*args, **kwargs):
            made = plain(*args, **kwargs)
            done() if done else self.mark(phase)
            return made
        setattr(owner, name, told)

    def number(self): return str(self.micro) if self.many else ""

    def mark(self, name):
        s = torch.cuda.memory_stats()
        name += self.number() if name in ("fwd", "loss", "bwd", "replay") else ""
        self.now[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"], reserved=s["reserved_bytes.all.peak"])
        torch.cuda.reset_peak_memory_stats()

    def take(self):
        self.now, self.micro, taken = {}, 0, self.now
        return taken


def told_of(profile, trace):
    """Blocks in order, each with the operator that asked for it and the FSDP hook or node of autograd around that, and collectives."""
    from torch._C._profiler import _EventType
    asked, collectives, around = {}, [], ("FSDP::", "autograd::engine", "Optimizer")
    def names(node):
        operator = region = ""
        while node is not None:
            if node.tag == _EventType.TorchOp:
                if node.name.startswith(around): region = region or node.name
                elif not operator and "Backward" not in node.name and node.name != "step": operator = node.name
            node = node.parent
        return [operator, region.replace("autograd::engine::evaluate_function: ", "")]
    def size_of(node):
        flat = []
        for given in node.extra_fields.inputs: flat += [t for t in (given if isinstance(given, list) else [given]) if hasattr(t, "sizes")]
        def bytes_of(t): return torch.Size(t.sizes).numel() * t.dtype.itemsize
        widest = max(flat, key=bytes_of)
        return [bytes_of(widest), str(widest.dtype).split(".")[1]]
    def walk(node):
        if node.tag == _EventType.Allocation and node.extra_fields.alloc_size > 0:
            asked.setdefault(node.extra_fields.ptr, []).append((node.start_time_ns, node.parent))
        if node.tag == _EventType.TorchOp:
            space, _, rest = node.name.partition("::")
            if "c10d" in space and rest in COMMS:
                collectives.append((node.start_time_ns, [COMMS[rest], *size_of(node)]))
                return
        for child in node.children: walk(child)
    for root in profile.profiler.kineto_results.experimental_event_tree(): walk(root)
    for waiting in asked.values(): waiting.sort(key=lambda told: -told[0])
    collectives.sort(key=lambda told: told[0])
    events, live = [], {}
    for e in trace:
        if e["action"] == "alloc":
            live[e["addr"]] = names(asked[e["addr"]].pop()[1]) if asked.get(e["addr"]) else ["", ""]
            events.append(["+", e["size"], *live[e["addr"]]])
        elif e["action"] == "free_completed":
            events.append(["-", e["size"], *live.pop(e["addr"], ["before", ""])])
    return events, [told for _, told in collectives]


def pools():
    by = {}
    for segment in torch.cuda.memory_snapshot():
        kind = ("default" if tuple(segment["segment_pool_id"]) == (0, 0) else "graphs") + ("" if segment["stream"] == 0 else " of side streams")
        known = by.setdefault(kind, dict(reserved=0, allocated=0))
        known["reserved"] += segment["total_size"]
        known["allocated"] += segment["allocated_size"]
    return by


def run(c):
    warnings.filterwarnings("ignore")
    os.environ.update(NGPU=str(c["world"]), RANK="0", LOCAL_RANK="0")
    no_kernels()
    trainer = configure(c).build()
    built = torch.cuda.memory_stats()
    phases = Phases(trainer)
    batches, graphs = trainer.batch_generator(trainer.dataloader), not c["disable_cuda_graphs"]
    def step():
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        torch.cuda.reset_peak_memory_stats()
        trainer.train_step(batches)
        return phases.take()
    def told():
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profile:
            with torch.profiler.record_function("step"): step_phases = step()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        return step_phases, *told_of(profile, trace)
    # The second micro-batch of all is captured.
    captures = (0 if c["accumulation"] > 1 else 1) if graphs else 3
    steps = []
    for number in range(4):
        if number == 3: reserved, kept = max(p["reserved"] for s in steps for p in s.values()), pools()
        if number == captures: known, events, collectives = told()
        else: known = step()
        steps.append(known)
    del steps[3]
    out = dict(
        config=c, parameters=sum(p.numel() for p in trainer.model_parts[0].parameters()), after_build=built["allocated_bytes.all.current"],
        peak_allocated=max(p["peak"] for p in steps[2].values()), peak_reserved=reserved,
        peaks=[max(p["peak"] for p in s.values()) for s in steps], phases=steps[2], collectives=collectives, events=events, pools=kept)
    if graphs: out["steps"] = steps
    return out


def child(c):
    """Each case runs in a process of its own."""
    with subprocess.Popen([sys.executable, __file__, "--case", json.dumps(c)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        out, said = p.communicate()
    return json.loads(out.splitlines()[-1]) if p.returncode == 0 else dict(config=c, error=said.decode()[-3000:])


if __name__ == "__main__":
    if sys.argv[1] == "--case":
        print(json.dumps(run(json.loads(sys.argv[2]))))
        sys.exit()
    out, wanted = sys.argv[1], sys.argv[2:]
    cases = []
    for name, over in CASES.items():
        if wanted and name not in wanted: continue
        got = dict(id=name, **child({**DEFAULTS, **over}))
        print(name, got.get("error") or (got["peak_allocated"], got["peak_reserved"], len(got["events"]), len(got["collectives"])), flush=True)
        if not got["config"]["events"]: got.pop("events", None)
        cases.append(got)
        with open(out, "w") as file: json.dump(dict(note="torchtitan 0.3.0, torch " + torch.__version__, cases=cases), file, separators=(",", ":"))
