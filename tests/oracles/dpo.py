"""What steps of direct preference optimization (DPO) allocate and compute, on a GPU that is not there.

`trl` cases: transformers' own decoders and the loss of TRL 1.13.0 itself (`DPOTrainer._compute_loss`), all tokens of the completion, no
padding. Under `fully_shard` each layer and the root of the policy, and of the reference the root alone, as `prepare_fsdp` does it.
`tune` cases: the Llama of `lora.py`, its logits in fp32 as torchtune's decoder returns them, and the loops of torchtune 0.6.1's recipes
(`full_dpo_distributed.py`, `lora_dpo_distributed.py`) around the package's own `get_batch_log_probs` and `DPOLoss`.
Third step of AdamW; then FLOPs of one more by `FlopCounterMode`. The CUDA runtime and cuBLAS are stubs that do nothing (LD_PRELOAD),
collectives are those of the `fake` process group; PyTorch, transformers, peft, TRL and torchtune's functions are the real ones.

    TORCHTUNE=/path/to/torchtune-0.6.1 python dpo.py OUT.json [ids]
"""
import importlib.util, json, os, pickle, sys, types, warnings
from contextlib import contextmanager, nullcontext

import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

import lora
from lora import ALL, CONFIGS, QV

BASE = dict(lora.BASE, code="tune", dtype="bf16", bs=1, seq=1024, reference="model", output=None, store="bf16", reshard=True, auto=False, events=False)
TUNE8, TRL = dict(world=8), dict(code="trl", dtype="fp32")
TRL8 = dict(TRL, world=8)
CASES = {
    "tune-single": dict(events=True),
    "tune-single-pairs": dict(bs=2),
    "tune-single-checkpointed": dict(ac="full"),
    "tune-fsdp2": dict(TUNE8, events=True),
    "tune-fsdp2-mixed": dict(TUNE8, mp="mixed"),
    "tune-fsdp2-checkpointed": dict(TUNE8, ac="full"),
    "tune-fsdp2-selective": dict(TUNE8, ac="selective_op", mp="mixed"),
    "tune-fsdp2-ends": dict(TUNE8, wrap="ends", bs=2),
    "tune-fsdp2-hsdp": dict(TUNE8, hsdp=2),
    "tune-lora": dict(rank=16, modules=ALL, reference="adapters_off", events=True),
    "tune-lora-checkpointed": dict(rank=8, modules=QV, reference="adapters_off", ac="full"),
    "tune-lora-fsdp2": dict(TUNE8, rank=16, modules=ALL, reference="adapters_off", events=True),
    "tune-lora-fsdp2-checkpointed": dict(TUNE8, rank=16, modules=ALL, reference="adapters_off", ac="full", bs=2),
    "tune-lora-fsdp2-ends": dict(TUNE8, rank=16, modules=QV, reference="adapters_off", wrap="ends"),
    "trl-single": dict(TRL, events=True),
    "trl-single-pairs": dict(TRL, bs=2),
    "trl-single-checkpointed": dict(TRL, ac="full"),
    "trl-single-fp32": dict(TRL, store="fp32", events=True),
    "trl-single-qwen2": dict(TRL, model="qwen2"),
    "trl-precomputed": dict(TRL, reference="precomputed"),
    "trl-lora": dict(TRL, rank=16, modules=ALL, reference="adapters_off", events=True),
    "trl-lora-checkpointed": dict(TRL, rank=16, modules=ALL, reference="adapters_off", ac="full", inputs=True),
    "trl-lora-precomputed": dict(TRL, rank=16, modules=QV, reference="precomputed"),
    "trl-qlora": dict(TRL, rank=16, modules=ALL, reference="adapters_off", base="nf4", bs=2),
    "trl-fsdp2": dict(TRL8, mp="mixed", events=True),
    "trl-fsdp2-bf16": dict(TRL8),
    "trl-fsdp2-kept": dict(TRL8, mp="mixed", reshard=False),
    "trl-fsdp2-checkpointed": dict(TRL8, mp="mixed", ac="full", bs=2),
    "trl-fsdp2-precomputed": dict(TRL8, mp="mixed", reference="precomputed"),
}


class Tune(lora.Llama):
    """torchtune's decoder returns logits in fp32 (`TransformerDecoder.unembed`)."""
    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values(): h = layer(h, self.freqs)
        return self.unembed(h)

    def unembed(self, h):
        h = self.norm(h)
        output = self.output(h).float()
        return output


class Adapter(lora.LoRALinear):
    """With the switch that `disable_adapter` turns."""
    disabled = False

    def forward(self, x): return F.linear(x, self.weight, None) if self.disabled else super().forward(x)


def torchtune():
    """Functions of the package, from their files: the whole of 0.6.1 does not import beside torchao 0.18."""
    def stub(name, **have):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(have)
    stub("torchtune", rlhf=None)
    stub("torchtune.data", CROSS_ENTROPY_IGNORE_IDX=-100)
    stub("torchtune.utils")
    stub("torchtune.utils._logging", deprecated=lambda **_: lambda made: made)

    def load(path):
        spec = importlib.util.spec_from_file_location(path, os.path.join(os.environ["TORCHTUNE"], "torchtune/rlhf", path))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return load("sequence_processing.py").get_batch_log_probs, load("loss/dpo.py").DPOLoss()


def tune_steps(c, policy, reference, batch, optimizer, mark):
    """The loops of `full_dpo_distributed.py` and `lora_dpo_distributed.py`; logging is left out."""
    get_batch_log_probs, loss_fn = torchtune()

    def full_forward(model, batch):
        input_ids, labels = batch
        half = input_ids.shape[0] // 2
        all_logits = model(input_ids)
        chosen = get_batch_log_probs(all_logits[:half], labels[:half], return_average_logprobs=False)
        rejected = get_batch_log_probs(all_logits[half:], labels[half:], return_average_logprobs=False)
        chosen_logits, rejected_logits = all_logits[:half], all_logits[half:]
        return chosen, rejected, chosen_logits, rejected_logits

    def lora_forward(model, batch):
        input_ids, labels = batch
        half = input_ids.shape[0] // 2
        all_logits = model(input_ids)
        log_probs = get_batch_log_probs(all_logits, labels)
        chosen, rejected = log_probs[:half], log_probs[half:]
        chosen_logits, rejected_logits = all_logits[:half], all_logits[half:]
        return chosen, rejected, chosen_logits, rejected_logits

    @contextmanager
    def disable_adapter(model):
        adapters = [module for module in model.modules() if isinstance(module, Adapter)]
        for adapter in adapters: adapter.disabled = True
        yield
        for adapter in adapters: adapter.disabled = False

    concatenated_forward = lora_forward if c["rank"] else full_forward
    running_loss = 0
    while True:
        yield
        policy_chosen, policy_rejected, chosen_logits, rejected_logits = concatenated_forward(policy, batch)
        chosen_mean, rejected_mean = chosen_logits.detach().mean(), rejected_logits.detach().mean()
        del chosen_logits, rejected_logits
        mark("fwd")
        if c["rank"]:
            with torch.no_grad(), disable_adapter(policy):
                reference_chosen, reference_rejected, _, _ = concatenated_forward(policy, batch)
        else:
            with torch.no_grad():
                reference_chosen, reference_rejected, reference_chosen_logits, reference_rejected_logits = concatenated_forward(reference, batch)
            del reference_chosen_logits, reference_rejected_logits
        loss, chosen_rewards, rejected_rewards = loss_fn(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
        accuracies = (chosen_rewards > rejected_rewards).float()
        loss = loss.mean()
        loss = loss / 1
        mark("ref")
        loss.backward()
        mark("bwd")
        optimizer.step()
        mark("opt")
        optimizer.zero_grad(set_to_none=True)
        mark("zero")


class Marked:
    """A model that says when its forward begins."""
    def __init__(self, model, mark): self.model, self.mark = model, mark

    def __getattr__(self, name): return getattr(self.model, name)

    def __call__(self, **arguments):
        self.mark("fwd")
        return self.model(**arguments)


def trl_steps(c, policy, reference, batch, optimizer, mark):
    """`DPOTrainer._compute_loss` in what `Trainer.training_step` does with it."""
    from collections import defaultdict
    import trl.trainer.dpo_trainer as module
    module.is_peft_model = lambda model: hasattr(getattr(model, "model", model), "peft_config") or hasattr(model, "peft_config")
    same = lambda tensor: tensor
    accelerator = types.SimpleNamespace(device=torch.device("cuda"), gather=same, gather_for_metrics=same, unwrap_model=same)
    trainer = types.SimpleNamespace(
        model=Marked(policy, mark), ref_model=Marked(reference, mark) if reference else None, accelerator=accelerator,
        args=types.SimpleNamespace(gradient_checkpointing_kwargs=dict(use_reentrant=c["reentrant"])), aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=c["reference"] == "precomputed", f_divergence_type="reverse_kl", loss_types=["sigmoid"], loss_weights=[1.0],
        beta=0.1, label_smoothing=0.0, use_weighting=False, _metrics=dict(train=defaultdict(list)), _total_train_tokens=0, _tp_size=1)
    plain = torch.Tensor.__getitem__

    def by_mask(tensor, index):
        """How many numbers a mask selects cannot be read from the device: all of them."""
        if not (isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.is_cuda): return plain(tensor, index)
        found = torch.empty(index.numel(), index.dim(), dtype=torch.long, device="cuda")
        return plain(tensor, tuple(found[:, at] for at in range(index.dim())))
    torch.Tensor.__getitem__ = by_mask
    while True:
        yield
        loss = module.DPOTrainer._compute_loss(trainer, policy, batch, False)
        loss = loss / 1
        if c["reference"] == "precomputed": mark("fwd")
        else: mark("ref")
        loss.backward()
        loss = loss.detach()
        mark("bwd")
        optimizer.step()
        mark("opt")
        optimizer.zero_grad()
        mark("zero")


def transformers_model(c):
    """Under `fully_shard` of layers and root; parameters in bf16 or fp32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM
    wide = c["mp"] == "mixed" or c["store"] == "fp32"

    def make():
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIGS[c["model"]]), dtype=torch.float32 if wide else torch.bfloat16)

    def place(m):
        tied = m.get_output_embeddings().weight is m.get_input_embeddings().weight
        m.to_empty(device="cuda")
        if tied: m.get_output_embeddings().weight = m.get_input_embeddings().weight
    kw = dict(reshard_after_forward=c["reshard"])
    if c["mp"] == "mixed": kw["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy, reference = make(), make() if c["reference"] == "model" else None
    if c["ac"] == "full": policy.gradient_checkpointing_enable(dict(use_reentrant=c["reentrant"]))
    policy.train()
    if c["world"] > 1:
        for layer in policy.model.layers: fully_shard(layer, **kw)
        fully_shard(policy, **{**kw, "reshard_after_forward": None})
        if reference: fully_shard(reference, **kw)
    for m in [policy, reference]:
        if m: place(m)
    if reference: reference.eval()
    return policy, reference


def models(c):
    if c["code"] == "tune":
        lora.Llama, lora.LoRALinear = Tune, Adapter
        policy = lora.build_tune(c)
        return policy, None if c["rank"] else lora.build_tune({**c, "ac": "none"})
    return (lora.build_peft(c), None) if c["rank"] else transformers_model(c)


def run(c):
    import torch.cuda.memory as M
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils.flop_counter import FlopCounterMode
    torch.backends.cuda.enable_cudnn_sdp(False)
    if c["code"] == "tune": torch.backends.cuda.enable_mem_efficient_sdp(False)
    plain_bool = torch.Tensor.__bool__
    torch.Tensor.__bool__ = lambda t: True if t.is_cuda else plain_bool(t)
    if c["world"] > 1: dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    policy, reference = models(c)
    if reference:
        for p in reference.parameters(): p.requires_grad_(False)
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=c["fused"], foreach=not c["fused"])
    numbers = lambda: torch.zeros(2 * c["bs"], c["seq"], dtype=torch.long, device="cuda")
    if c["code"] == "tune": batch = (numbers(), numbers())
    else: batch = dict(input_ids=numbers(), attention_mask=numbers(), completion_mask=numbers())
    if c["reference"] == "precomputed":
        batch.update({key: torch.zeros(c["bs"], device="cuda") for key in ["ref_chosen_logps", "ref_rejected_logps"]})
    phases = {}

    def mark(name):
        s = torch.cuda.memory_stats()
        phases[name] = dict(peak=s["allocated_bytes.all.peak"], end=s["allocated_bytes.all.current"])
        torch.cuda.reset_peak_memory_stats()

    mark("init")
    steps = (tune_steps if c["code"] == "tune" else trl_steps)(c, policy, reference, batch, optimizer, mark)
    for _ in range(3): next(steps)
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    torch.cuda.reset_peak_memory_stats()
    if c["events"]: M._record_memory_history(enabled="all", context=None, max_entries=1 << 20)
    next(steps)
    reserved = max(reserved, torch.cuda.memory_stats()["reserved_bytes.all.peak"])
    got = dict(c)
    if c["events"]:
        trace = M._snapshot()["device_traces"][0]
        M._record_memory_history(enabled=None)
        sign = dict(alloc=1, free_requested=-1)
        got["events"] = [sign[e["action"]] * e["size"] for e in trace if e["action"] in sign and e["size"] >= 1 << 20]
    else: del got["events"]
    if c["code"] == "trl": got["config"] = CONFIGS[c["model"]]
    of_phases = {k: v for k, v in phases.items() if k != "init"}
    got.update(trained=sum(p.numel() for p in trained), peak_allocated=max(p["peak"] for p in of_phases.values()), peak_reserved=reserved,
               phases=of_phases, init=phases["init"]["end"])
    counter = FlopCounterMode(display=False)
    with counter: next(steps)
    got["flops"] = counter.get_total_flops()
    # The counter does not see into the operator that unpacks and multiplies in forward.
    packed = sum(x.in_features * x.out_features for x in policy.modules() if type(x).__name__ == "Linear4bit")
    runs = (2 if c["ac"] == "full" else 1) + (c["reference"] == "adapters_off")
    got["uncounted"] = 2 * 2 * c["bs"] * c["seq"] * packed * runs
    return got


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    import torch.distributed.fsdp, torch.testing._internal.distributed.fake_pg, torch.distributed.algorithms._checkpoint.checkpoint_wrapper
    import transformers
    from importlib.metadata import version
    lora.run = run
    out, wanted = sys.argv[1], sys.argv[2:]
    cases = []
    for name, over in CASES.items():
        if wanted and not any(name.startswith(w) for w in wanted): continue
        got = dict(id=name, **lora.child({**BASE, **over}))
        print(name, got.get("error") or (got["peak_allocated"], got["trained"], got["flops"]), flush=True)
        cases.append(got)
    packages = ["trl", "peft", "transformers", "torch"]
    note = "torchtune 0.6.1, " + ", ".join(f"{package} {version(package)}" for package in packages)
    with open(out, "w") as file:
        file.write('{"note": %s, "cases": [\n%s\n]}\n' % (json.dumps(note), ",\n".join(json.dumps(case) for case in cases)))
