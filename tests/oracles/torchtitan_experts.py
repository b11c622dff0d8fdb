"""Mixtures of experts under torchtitan, with no GPU: its MoE, token dispatchers, `apply_fsdp_to_decoder`, `apply_ac`,
clipping and balancing hook, rank 0 of a world, third step.

What only a device could say is said here: every expert gets as many copies of tokens as any other. Attention, norms and
loss are the plain ones of the other oracles. Packages that torchtitan imports and this program does not need are empty
stand-ins.

    TORCHTITAN=FOLDER python torchtitan_experts.py OUT.json [ids]      # the folder of a checkout of pytorch/torchtitan@6b960233
"""
import importlib.abc, importlib.machinery, json, os, subprocess, sys, types, warnings

import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

DEFAULTS = dict(
    world=8, ep=1, bs=1, seq=2048, ac="none", early_stop=False, clip=1, fused=True,
    dim=1024, layers=3, heads=16, kv_heads=4, ffn=3584, vocab=32000, dense_first=1,
    experts=16, top_k=4, width=512, shared=1024, score="softmax", norm=False, scale=1.0, balance=True, score_before=False,
    latent=None, chunks=0, labels=0, groups=None,
)
LATENT = dict(query_rank=0, rank=256, plain=64, rotated=64, value=128)
CASES = {
    "local": {},
    "local_sigmoid": dict(score="sigmoid", norm=True, scale=2.5, shared=0, dense_first=0),
    "local_shard1": dict(world=64),
    "local_full": dict(ac="full"),
    "local_full_stops": dict(ac="full", early_stop=True),
    "local_selective": dict(ac="selective"),
    "ep4": dict(ep=4),
    "ep8": dict(ep=8, norm=True),
    "ep2": dict(ep=2, score="sigmoid", norm=True, shared=0, dense_first=0),
    "ep4_full": dict(ep=4, ac="full"),
    "ep4_full_stops": dict(ep=4, ac="full", early_stop=True),
    "ep4_selective": dict(ep=4, ac="selective"),
    "ep4_latent": dict(ep=4, latent=LATENT, kv_heads=16, ac="none"),
    "ep4_latent_full": dict(ep=4, latent=dict(LATENT, query_rank=384), kv_heads=16, ac="full"),
    "ep4_chunked": dict(ep=4, chunks=4, bs=2),
    "ep4_shard1": dict(ep=4, world=64, bs=2),
    "ep4_groups": dict(ep=4, score="sigmoid", norm=True, scale=2.5, experts=64, width=128, bs=4, groups=(8, 4)),
    "local_groups_full": dict(score="sigmoid", experts=64, width=128, bs=4, groups=(8, 4), ac="full"),
}


class Nothing:
    """Stands for whatever is asked of a package that is not there."""

    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return a[0] if len(a) == 1 and callable(a[0]) and not k else self
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Nothing()
    def __or__(self, other): return self
    def __ror__(self, other): return self
    def __getitem__(self, key): return self
    def __mro_entries__(self, bases): return (object,)


class Package(types.ModuleType):
    __path__ = []
    __getattr__ = Nothing.__getattr__


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = {"spmd_types", "tyro", "torchdata", "datasets", "tokenizers", "torchao", "transformers", "PIL", "einops", "torchvision", "safetensors", "tiktoken"}

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None
    def create_module(self, spec): return Package(spec.name)
    def exec_module(self, module): pass


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
        self.h = c["dim"] // c["heads"]
        self.wq = nn.Linear(c["dim"], c["heads"] * self.h, bias=False)
        self.wk = nn.Linear(c["dim"], c["kv_heads"] * self.h, bias=False)
        self.wv = nn.Linear(c["dim"], c["kv_heads"] * self.h, bias=False)
        self.wo = nn.Linear(c["heads"] * self.h, c["dim"], bias=False)

    def forward(self, x, table):
        b, s, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = q.view(b, s, -1, self.h), k.view(b, s, -1, self.h), v.view(b, s, -1, self.h)
        q, k = rotate(q, k, table)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(o.transpose(1, 2).contiguous().view(b, s, -1))


class Flash(nn.Module):
    def forward(self, q, k, v, *, attention_masks=None, scale=None):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


class Latent(nn.Module):
    """torchtitan's latent attention, with flash attention inside."""

    def __init__(self, c):
        super().__init__()
        from torchtitan.models.common import ComplexRoPE
        from torchtitan.models.deepseek_v3 import _make_dsv3_attn_config
        l = c["latent"]
        rope = ComplexRoPE.Config(dim=l["rotated"], max_seq_len=c["seq"])
        config = _make_dsv3_attn_config(
            layer_id=0, dim=c["dim"], n_heads=c["heads"], q_lora_rank=l["query_rank"], kv_lora_rank=l["rank"], qk_nope_head_dim=l["plain"],
            qk_rope_head_dim=l["rotated"], v_head_dim=l["value"], attn_backend="flex", rope=rope)
        self.whole = config.build()
        self.whole.inner_attention = Flash()

    def forward(self, x, table):
        return self.whole(x, None)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False), nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def mixture(c):
    from torchtitan.models.common import config_utils as u
    none = {}
    experts = u.make_experts_config(
        dim=c["dim"], hidden_dim=c["width"], num_experts=c["experts"], top_k=c["top_k"], param_init=none,
        score_before_experts=c["score_before"], comm_backend="standard", non_blocking_capacity_factor=None)
    router = u.make_router_config(
        dim=c["dim"], num_experts=c["experts"], gate_param_init=none, top_k=c["top_k"], score_func=c["score"],
        route_norm=c["norm"], route_scale=c["scale"], num_expert_groups=c["groups"] and c["groups"][0], num_limited_groups=c["groups"] and c["groups"][1])
    shared = u.make_ffn_config(dim=c["dim"], hidden_dim=c["shared"], w1_param_init=none, w2w3_param_init=none) if c["shared"] else None
    return u.make_moe_config(
        num_experts=c["experts"], router=router, experts=experts, shared_experts=shared,
        load_balance_coeff=1e-3 if c["balance"] else None).build()


class Block(nn.Module):
    def __init__(self, c, experts):
        super().__init__()
        self.attention = Latent(c) if c["latent"] else Attention(c)
        self.moe_enabled = experts
        if experts: self.moe = mixture(c)
        else: self.feed_forward = FeedForward(c["dim"], c["ffn"])
        self.attention_norm, self.ffn_norm = nn.RMSNorm(c["dim"], eps=1e-5), nn.RMSNorm(c["dim"], eps=1e-5)

    def forward(self, x, table):
        h = x + self.attention(self.attention_norm(x), table)
        return h + (self.moe if self.moe_enabled else self.feed_forward)(self.ffn_norm(h))


class Model(nn.Module):
    enable_weight_tying = False

    def __init__(self, c):
        super().__init__()
        self.tok_embeddings = nn.Embedding(c["vocab"], c["dim"])
        half = c["dim"] // c["heads"] // 2
        self.register_buffer("table", torch.empty(c["seq"], half, dtype=torch.complex64), persistent=False)
        self.layers = nn.ModuleDict({str(i): Block(c, i >= c["dense_first"]) for i in range(c["layers"])})
        self.skips = c["chunks"] > 0
        self.norm, self.lm_head = nn.RMSNorm(c["dim"], eps=1e-5), nn.Linear(c["dim"], c["vocab"], bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values(): h = layer(h, self.table)
        h = self.norm(h)
        return h if self.skips else self.lm_head(h)


def build(c):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torchtitan.config import ActivationCheckpointConfig
    from torchtitan.distributed.activation_checkpoint import apply_ac
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
    world, ep = c["world"], c["ep"]
    whole = init_device_mesh("cuda", (world,), mesh_dim_names=("world",))
    dense = whole._unflatten(0, (world,), ("fsdp",))["fsdp"]
    edp = None
    with torch.device("meta"): model = Model(c)
    if ep > 1:
        sparse = whole._unflatten(0, (world // ep, ep), ("efsdp", "ep"))
        edp = sparse["efsdp"]
        for block in model.layers.values():
            if not block.moe_enabled: continue
            experts = block.moe.experts
            for name, weight in list(experts.named_parameters()):
                experts.register_parameter(name, nn.Parameter(distribute_tensor(weight, sparse["ep"], [Shard(0)])))
            experts.token_dispatcher.wire_meshes(ep_mesh=sparse["ep"], tp_mesh=None)
    if c["ac"] != "none": apply_ac(model, ActivationCheckpointConfig(mode=c["ac"], early_stop=c["early_stop"]))
    apply_fsdp_to_decoder(model, dense, torch.bfloat16, torch.float32, False, ep_degree=ep, edp_mesh=edp)
    model.to_empty(device="cuda")
    return model, whole


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


COMMS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce", "all_to_all_single": "all_to_all", "all_reduce": "all_reduce"}


def run(c):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.components.optimizer import register_moe_load_balancing_hook
    from torchtitan.distributed import utils
    import torch.cuda.memory as M
    warnings.filterwarnings("ignore")
    torch.backends.cuda.enable_cudnn_sdp(False); torch.backends.cuda.enable_mem_efficient_sdp(False); torch.backends.cuda.enable_math_sdp(False)
    dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    model, whole = build(c)
    copies = c["bs"] * c["seq"] * c["top_k"]
    plain = torch.Tensor.tolist
    torch.Tensor.tolist = lambda t: [copies // c["ep"]] * c["ep"] if t.shape == (c["ep"],) and c["ep"] > 1 else plain(t)
    optimizer = torch.optim.AdamW(list(model.parameters()), lr=1e-4, foreach=not c["fused"], fused=c["fused"])
    dims = types.SimpleNamespace(spmd_backend="default", get_optional_mesh=lambda name: whole)
    register_moe_load_balancing_hook(optimizer, [model], dims)
    chunked = None
    if c["chunks"]:
        from torchtitan.components.loss import ChunkedCELoss
        chunked = ChunkedCELoss(ChunkedCELoss.Config(num_chunks=c["chunks"]))
        chunked.set_lm_head(model.lm_head)
    x, y = (torch.zeros(c["bs"], c["seq"], dtype=torch.long, device="cuda") for _ in range(2))
    collectives, phases, on = [], {}, {"v": False, "op": ""}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            if any(kind.__name__ == "DTensor" for kind in kinds): return NotImplemented
            name = func._schema.name
            M._set_memory_metadata(name)
            made = func(*args, **(kwargs or {}))
            M._set_memory_metadata("")
            kind = COMMS.get(name.split("::")[1]) if "c10d" in name else None
            if on["v"] and kind:
                flat = [t for t in torch.utils._pytree.tree_leaves((args, made)) if isinstance(t, torch.Tensor)]
                size = max(t.numel() * t.element_size() for t in flat)
                groups = [a for a in args if isinstance(a, (torch.ScriptObject, str))]
                ranks = next((g.size() if hasattr(g, "size") else None for g in groups if not isinstance(g, str)), None)
                collectives.append([kind, size, str(flat[0].dtype).split(".")[1]])
            return made

    def mark(name):
        nonlocal phases
        s = torch.cuda.memory_stats()
        phases[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"], reserved=s["reserved_bytes.all.peak"])
        torch.cuda.reset_peak_memory_stats()

    def step():
        if chunked: loss = chunked(model(x), y, 1.0)
        else: loss = cross_entropy(model(x), y)
        mark("fwd")
        loss.backward()
        del loss
        mark("bwd")
        if c["clip"]:
            utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True, ep_enabled=c["ep"] > 1)
            mark("clip")
        optimizer.step()
        mark("opt")
        optimizer.zero_grad()
        mark("zero")

    # A mode that watches operators keeps autograd from adding in place: memory is read in a step without it.
    step(); step()
    torch.cuda.reset_peak_memory_stats()
    M._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    step()
    trace, known = M._snapshot()["device_traces"][0], dict(phases)
    M._record_memory_history(enabled=None)
    if c["labels"]: M._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    on["v"] = True
    with Watch(): step()
    if c["labels"]: trace = M._snapshot()["device_traces"][0]
    phases = known
    events, names = [], {}
    for e in trace:
        if e["action"] == "alloc":
            names[e["addr"]] = e.get("user_metadata", "")
            events.append(["+", e["size"], e.get("user_metadata", "")])
        elif e["action"] == "free_completed":
            events.append(["-", e["size"], names.pop(e["addr"], "before")])
    peak = max(p["peak"] for p in phases.values())
    return dict(config=c, peak_allocated=peak, peak_reserved=max(p["reserved"] for p in phases.values()),
                phases=phases, collectives=collectives, events=events, params=sum(p.numel() for p in model.parameters()))


def child(c):
    """Each case runs in a process of its own."""
    with subprocess.Popen([sys.executable, __file__, "--case", json.dumps(c)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        out, said = p.communicate()
    return json.loads(out.splitlines()[-1]) if p.returncode == 0 else dict(config=c, error=said.decode()[-3000:])


if __name__ == "__main__":
    # PyTorch looks for `spmd_types` too, and goes on without it.
    import torch.distributed.fsdp, torch.distributed.tensor.experimental
    sys.meta_path.append(Absent())
    sys.path.insert(0, os.environ["TORCHTITAN"])
    import torchtitan.distributed.fsdp, torchtitan.models.common.config_utils, torchtitan.components.optimizer
    if sys.argv[1] == "--case":
        print(json.dumps(run(json.loads(sys.argv[2]))))
        sys.exit()
    out, wanted, verbose = sys.argv[1], sys.argv[2:], os.environ.get("VERBOSE")
    cases = []
    for name, over in CASES.items():
        if wanted and name not in wanted: continue
        got = dict(id=name, **child({**DEFAULTS, **over, "labels": int(bool(verbose))}))
        print(name, got.get("error") or (got["peak_allocated"], len(got["events"]), len(got["collectives"])), flush=True)
        if "events" in got and not verbose:
            left_out = {"fsdp::split_with_sizes_copy"}
            got["events"] = " ".join(f"{sign}{size}" for sign, size, op in got["events"] if op not in left_out)
        cases.append(got)
    json.dump(dict(note="torchtitan@6b960233, torch " + torch.__version__, cases=cases), open(out, "w"), indent=None if verbose else 1)
