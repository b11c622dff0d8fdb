"""Pipelines of `torch.distributed.pipelining` whose stages are `fully_shard` roots, with no GPU: one pipeline rank of a world at
a time, third step. Stages are cut, wrapped and stepped as torchtitan does it (`distributed/pipeline_parallel.py`,
`distributed/fsdp.py`, `trainer.py` at b5bcd76c), on the Llama of the other oracles.

    python fsdp2_pipeline.py OUT.json [ids]        # TORCHTITAN=FOLDER of a checkout records its split of modules, too
"""
import ast, contextlib, json, os, subprocess, sys, tempfile, time, warnings

import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

DEFAULTS = dict(
    schedule="1F1B", csv=None, pp=2, virtual=1, dp=1, tp=1, micro=4, bs=1, seq=2048, ac="none", clip=0, reshard=False, wrap="titan",
    dim=1024, heads=16, kv_heads=4, ffn=3584, vocab=32000, layers=None,
)
CASES = {
    "gpipe": dict(schedule="GPipe", layers=[2, 2]),
    "1f1b": dict(layers=[2, 2]),
    "1f1b_pp4": dict(pp=4, layers=[1, 2, 2, 1], micro=6),
    "gpipe_dp2": dict(schedule="GPipe", layers=[2, 2], dp=2),
    "1f1b_dp2": dict(layers=[2, 2], dp=2),
    "1f1b_dp2_block": dict(layers=[2, 2], dp=2, wrap="block"),
    "1f1b_dp2_full": dict(layers=[2, 2], dp=2, ac="full"),
    "1f1b_dp2_always": dict(layers=[2, 2], dp=2, reshard=True),
    "1f1b_pp4_dp2_clip": dict(pp=4, layers=[1, 2, 2, 1], micro=5, dp=2, clip=1),
    "interleaved": dict(schedule="Interleaved1F1B", virtual=2, layers=[1, 1, 1, 1]),
    "interleaved_dp2": dict(schedule="Interleaved1F1B", virtual=2, layers=[1, 1, 1, 1], dp=2),
    "interleaved_dp2_full": dict(schedule="Interleaved1F1B", virtual=2, layers=[1, 2, 2, 1], dp=2, ac="full"),
    "interleaved_pp4_dp2": dict(schedule="Interleaved1F1B", pp=4, virtual=2, layers=[1] * 8, dp=2, micro=8),
    "interleaved_three": dict(schedule="Interleaved1F1B", virtual=4, layers=[1] * 8, dp=2),
    "1f1b_tp2_dp2": dict(layers=[2, 2], dp=2, tp=2),
    "interleaved_tp4_dp2_full": dict(schedule="Interleaved1F1B", virtual=2, layers=[1, 1, 1, 1], dp=2, tp=4, ac="full", clip=1),
    "looped_bfs_dp2": dict(schedule="LoopedBFS", virtual=2, layers=[1, 1, 1, 1], dp=2),
    "zero_bubble_dp2": dict(schedule="InterleavedZeroBubble", virtual=2, layers=[1, 1, 1, 1], dp=2),
    "zbv_dp2": dict(schedule="ZBVZeroBubble", virtual=2, layers=[1, 1, 1, 1], dp=2),
    "dual_pipe_v_dp2": dict(schedule="DualPipeV", virtual=2, layers=[1, 1, 1, 1], dp=2),
    "zbv": dict(schedule="ZBVZeroBubble", virtual=2, layers=[1, 1, 1, 1]),
    "zbv_pp4_dp2_clip": dict(schedule="ZBVZeroBubble", pp=4, virtual=2, layers=[1, 2, 1, 1, 1, 1, 1, 1], micro=8, dp=2, clip=1),
    "dual_pipe_v_pp4_dp2": dict(schedule="DualPipeV", pp=4, virtual=2, layers=[1] * 8, micro=10, dp=2),
    "zero_bubble_pp4_dp2": dict(schedule="InterleavedZeroBubble", pp=4, virtual=2, layers=[1, 2, 2, 1, 1, 1, 1, 0], micro=8, dp=2),
    "zbv_tp2_dp2": dict(schedule="ZBVZeroBubble", virtual=2, layers=[1, 1, 1, 1], dp=2, tp=2),
    "zbv_dp2_block": dict(schedule="ZBVZeroBubble", virtual=2, layers=[1, 1, 1, 2], dp=2, wrap="block", bs=2),
    # Read from a file: one stage a rank, the same with some backwards in halves, there and back.
    "csv_dp2": dict(layers=[2, 2], dp=2, csv="0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"),
    "csv_halves_dp2": dict(layers=[2, 2], dp=2, csv="0F0,0F1,0B0,0F2,0I1,0F3,0B2,0W1,0B3\n1F0,1B0,1F1,1I1,1F2,1W1,1I2,1F3,1B3,1W2\n"),
    "csv_v_dp2": dict(schedule="ZBVZeroBubble", virtual=2, layers=[1, 1, 1, 1], dp=2, micro=3,
                      csv="0F0,0F1,0F2,3F0,3F1,3F2,3B0,3B1,3B2,0B0,0B1,0B2\n1F0,1F1,1F2,2F0,2F1,2F2,2B0,2B1,2B2,1B0,1B1,1B2\n"),
}
SPLITS = [(stages, layers, first, last) for stages, layers in ((2, 3), (2, 16), (4, 32), (8, 32), (8, 80), (16, 126), (3, 7), (4, 5))
          for first, last in ((1, 1), (0, 0), (2, 1), (1, 2))]
V = ("ZBVZeroBubble", "DualPipeV")


def rotate(xq, xk, table):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    table = table[: xq.shape[1]].view(1, xq.shape[1], 1, -1)
    xq_out = torch.view_as_real(xq_ * table).flatten(3)
    xk_out = torch.view_as_real(xk_ * table).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.d = c["dim"] // c["heads"]
        linear = lambda heads: nn.Linear(c["dim"], heads * self.d, bias=False)
        self.wq, self.wk, self.wv = linear(c["heads"]), linear(c["kv_heads"]), linear(c["kv_heads"])
        self.wo = nn.Linear(c["heads"] * self.d, c["dim"], bias=False)

    def forward(self, x, table):
        b, s, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q = q.view(b, s, -1, self.d); k = k.view(b, s, -1, self.d); v = v.view(b, s, -1, self.d)
        q, k = rotate(q, k, table)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        o = o.transpose(1, 2).contiguous().view(b, s, -1)
        return self.wo(o)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False), nn.Linear(dim, hidden, bias=False)

    def forward(self, x): return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c["dim"], c["ffn"])
        self.attention_norm, self.ffn_norm = nn.RMSNorm(c["dim"], eps=1e-5), nn.RMSNorm(c["dim"], eps=1e-5)

    def forward(self, x, table):
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


def block(c, layer): return Block(c)


class Stage(nn.Module):
    """What is left of torchtitan's decoder on one stage: what it lacks is None."""

    def __init__(self, c, stage):
        super().__init__()
        layers, last = c["layers"], len(c["layers"]) - 1
        self.tok_embeddings = nn.Embedding(c["vocab"], c["dim"]) if stage == 0 else None
        half = c["dim"] // c["heads"] // 2
        self.register_buffer("table", torch.empty(c["seq"], half, dtype=torch.complex64), persistent=False)
        first = sum(layers[:stage])
        self.layers = nn.ModuleDict({str(i): block(c, i) for i in range(first, first + layers[stage])})
        self.norm = nn.RMSNorm(c["dim"], eps=1e-5) if stage == last else None
        self.lm_head = nn.Linear(c["dim"], c["vocab"], bias=False) if stage == last else None

    def forward(self, x):
        h = self.tok_embeddings(x) if self.tok_embeddings is not None else x
        for layer in self.layers.values(): h = layer(h, self.table)
        h = self.norm(h) if self.norm is not None else h
        return self.lm_head(h) if self.lm_head is not None else h


def split(m, mesh):
    """Tensor parallelism as torchtitan plans it: sequences are split between blocks, the loss is taken of split words."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
    part, whole = Shard(1), Replicate()
    ends = {"tok_embeddings": RowwiseParallel(input_layouts=whole, output_layouts=part), "norm": SequenceParallel(),
            "lm_head": ColwiseParallel(input_layouts=part, output_layouts=Shard(-1), use_local_output=False)}
    parallelize_module(m, mesh, {name: plan for name, plan in ends.items() if getattr(m, name) is not None})
    for layer in m.layers.values():
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(part, None), desired_input_layouts=(whole, None)),
            "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=part),
            "feed_forward": PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(whole,)),
            "feed_forward.w1": ColwiseParallel(), "feed_forward.w3": ColwiseParallel(), "feed_forward.w2": RowwiseParallel(output_layouts=part)})


def wrapped(c, stage, mesh):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    with torch.device("meta"): m = Stage(c, stage)
    if c["tp"] > 1: split(m, mesh["tp"])
    mesh = mesh["dp"]
    if c["ac"] == "full":
        for k in list(m.layers.keys()): m.layers[k] = checkpoint_wrapper(m.layers[k], early_stop=False)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    shard = lambda module, reshard: fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    if c["wrap"] == "titan":
        if m.tok_embeddings is not None: shard(m.tok_embeddings, c["reshard"])
        if m.lm_head is not None: shard([m.norm, m.lm_head], c["reshard"])
    for layer in m.layers.values(): shard(layer, c["reshard"])
    fully_shard(m, mesh=mesh, mp_policy=policy)
    m.to_empty(device="cuda")
    return m


def clip(parts, mesh):
    """Gradients of all ranks of the pipeline have one norm (`distributed/utils.py`, `clip_grad_norm_`)."""
    params = [p for part in parts for p in part.parameters()]
    norm = torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None], 2.0, False, True)
    norm = norm.full_tensor()
    norm **= 2.0
    dist.all_reduce(norm, group=mesh["pp"].get_group())
    norm **= 0.5
    torch.nn.utils.clip_grads_with_norm_(params, 1.0, norm, True)


def before_step(parts): """What a framework does to its model before the optimizer's step."""


def run(c, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    import torch.cuda.memory as M
    warnings.filterwarnings("ignore")
    torch.backends.cuda.enable_cudnn_sdp(False); torch.backends.cuda.enable_mem_efficient_sdp(False); torch.backends.cuda.enable_math_sdp(False)
    of_stage = c["dp"] * c["tp"]
    dist.init_process_group("fake", rank=rank * of_stage, world_size=c["pp"] * of_stage, store=FakeStore())
    mesh = init_device_mesh("cuda", (c["pp"], c["dp"], c["tp"]), mesh_dim_names=("pp", "dp", "tp"))
    count = c["pp"] * c["virtual"]
    mine = (rank, count - 1 - rank) if c["schedule"] in V else range(rank, count, c["pp"])
    hidden = torch.empty(c["bs"], c["seq"] // c["tp"], c["dim"], dtype=torch.bfloat16, device="meta").requires_grad_()
    tokens = torch.empty(c["bs"], c["seq"], dtype=torch.long, device="meta")
    logits = torch.empty(c["bs"], c["seq"], c["vocab"], dtype=torch.bfloat16, device="meta").requires_grad_()
    parts = [wrapped(c, stage, mesh) for stage in mine]
    stages = [PipelineStage(part, stage, count, torch.device("cuda"), input_args=hidden if stage else tokens,
                            output_args=logits if stage == count - 1 else hidden, group=mesh["pp"].get_group())
              for part, stage in zip(parts, mine)]
    kind = schedules._PipelineScheduleRuntime if c["csv"] else schedules.get_schedule_class(c["schedule"])
    def loss_fn(logits, labels):
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, n_microbatches=c["micro"], loss_fn=loss_fn, scale_grads=False)
    if c["csv"]:
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write(c["csv"]); file.flush()
            schedule._load_csv(file.name)
    optimizers = [torch.optim.AdamW(list(part.parameters()), lr=1e-4, fused=True) for part in parts]
    data = [torch.zeros(c["bs"], c["seq"], dtype=torch.long, device="cuda") for _ in range(2 * c["micro"])]
    order, phases, actions = [], {}, []

    def bytes_of(t): return t.numel() * t.element_size()

    def say(*words): order.append(" ".join(map(str, words)))

    def watch(module, name, tell):
        plain = getattr(module, name)
        def told(*args, **kwargs):
            tell(*args, **kwargs)
            return plain(*args, **kwargs)
        setattr(module, name, told)

    watch(dist, "all_gather_single", lambda output=None, *a, output_tensor=None, **k: say("AG", bytes_of(output if output is not None else output_tensor)))
    watch(dist, "reduce_scatter_single", lambda output=None, input=None, *a, **k: say("RS", bytes_of(input)))
    def p2p(ops, desc=None):
        if ops: say("+".join(f"{'send' if op.op is dist.isend else 'recv'}{op.group_peer}" for op in ops), bytes_of(ops[0].tensor))
    watch(schedules, "_batch_p2p", p2p)

    # The engine's thread lets go of a graph, and of the gradients it has found, after the caller has gone on: wait for it.
    plain_grad = torch.autograd.grad
    def grad(*args, **kwargs):
        made = plain_grad(*args, **kwargs)
        time.sleep(0.002)
        return made
    torch.autograd.grad = grad

    def sample(name):
        s = torch.cuda.memory_stats()
        actions.append([name, s["allocated_bytes.all.peak"], s["allocated_bytes.all.current"]])
        phases.setdefault("peak", []).append(s["allocated_bytes.all.peak"])
        phases.setdefault("reserved", []).append(s["reserved_bytes.all.peak"])
        torch.cuda.reset_peak_memory_stats()

    def computes(stage, name, letter):
        plain = getattr(stage, name)
        def told(micro, *args, **kwargs):
            word = "I" if letter == "B" and kwargs.get("full_backward") is False else letter
            sample(f"before {stage.stage_index}{word}{micro}")
            say(f"{stage.stage_index}{word}{micro}")
            made = plain(micro, *args, **kwargs)
            sample(f"{stage.stage_index}{word}{micro}")
            return made
        setattr(stage, name, told)

    for stage in stages:
        computes(stage, "forward_one_chunk", "F")
        computes(stage, "backward_one_chunk", "B")
        computes(stage, "backward_weight_one_chunk", "W")

    def step():
        for list_ in (order, actions): list_.clear()
        phases.clear()
        first, last = 0 in mine, count - 1 in mine
        losses = [] if last else None
        with loss_parallel() if c["tp"] > 1 else contextlib.nullcontext(): schedule.step(arg_mbs=[(x,) for x in data[: c["micro"]]] if first else None, kwarg_mbs=[{}] * c["micro"],
                      target_mbs=data[c["micro"]:] if last else None, losses=losses, return_outputs=False)
        # The loop's name for the step's loss, which holds what the losses' graphs hold, outlives the optimizer's step.
        losses = [loss.to_local() if c["tp"] > 1 else loss for loss in losses or []]
        loss = torch.sum(torch.stack(losses)) if last else None
        del losses
        sample("forward-backward")
        if c["clip"]:
            clip(parts, mesh)
            sample("clip")
        before_step(parts)
        for optimizer in optimizers: optimizer.step()
        sample("opt")
        del loss
        for optimizer in optimizers: optimizer.zero_grad()
        sample("zero")

    step(); step()
    torch.cuda.reset_peak_memory_stats()
    M._record_memory_history(enabled="all", context="alloc" if os.environ.get("VERBOSE") else None, stacks="python", max_entries=10_000_000)
    step()
    snapshot = M._snapshot()
    events = []
    for e in snapshot["device_traces"][0]:
        if e["size"] > 1 << 20 and e["action"] in ("alloc", "free_completed"):
            events.append(("+" if e["action"] == "alloc" else "-") + str(e["size"]) + frames(e))
    return dict(peak_allocated=max(phases["peak"]), peak_reserved=max(phases["reserved"]), order=list(order), actions=list(actions), events=events)


def frames(e):
    """Where in Python a block was taken, for a look by eye."""
    said = [f"{f['filename'].rsplit('/', 1)[-1]}:{f['line']}:{f['name']}" for f in e.get("frames", []) if "site-packages/torch/nn/modules" not in f["filename"]]
    return " @ " + " < ".join(said[:4]) if said else ""


def splits():
    """torchtitan's own split of modules: `_generate_llm_fqn_per_model_part`, blocks of each stage, or that it refuses."""
    text = open(os.path.join(os.environ["TORCHTITAN"], "torchtitan/distributed/pipeline_parallel.py")).read()
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if getattr(node, "name", "") == "_generate_llm_fqn_per_model_part"]
    known = {}
    exec(compile(tree, "pipeline_parallel.py", "exec"), known)
    out = []
    for stages, layers, first, last in SPLITS:
        try: blocks = [sum(name.startswith("layers.") for name in part) for part in known["_generate_llm_fqn_per_model_part"](stages, layers, first, last)]
        except ValueError: blocks = None
        out.append(dict(stages=stages, layers=layers, first=first, last=last, blocks=blocks))
    return out


def child(c, rank):
    """Each rank runs in a process of its own."""
    with subprocess.Popen([sys.executable, __file__, "--case", json.dumps(c), str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        out, said = p.communicate()
    return json.loads(out.splitlines()[-1]) if p.returncode == 0 else dict(error=said.decode()[-3000:])


if __name__ == "__main__":
    if sys.argv[1] == "--case":
        print(json.dumps(run(json.loads(sys.argv[2]), int(sys.argv[3]))))
        sys.exit()
    out, wanted = sys.argv[1], sys.argv[2:]
    cases = []
    for name, over in CASES.items():
        if wanted and name not in wanted: continue
        config = {**DEFAULTS, **over}
        ranks = [child(config, rank) for rank in range(config["pp"])]
        print(name, [r.get("error") or (r["peak_allocated"], len(r["events"])) for r in ranks], flush=True)
        if not os.environ.get("VERBOSE"):
            # What is held at each action is for a look by eye.
            for r in ranks: r.pop("actions", None); r["events"] = " ".join(r.get("events", []))
        cases.append(dict(id=name, config=config, ranks=ranks))
    made = dict(note="torch " + torch.__version__, cases=cases)
    if "TORCHTITAN" in os.environ: made["splits"] = splits()
    json.dump(made, open(out, "w"), indent=1 if os.environ.get("VERBOSE") else None)
