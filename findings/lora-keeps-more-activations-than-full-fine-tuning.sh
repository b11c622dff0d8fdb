#!/usr/bin/env bash
# Libraries: peft 0.21.2 around transformers 5.24.0 and torch 2.15.0.
#
# Behaviour: peft makes adapters of a bf16 model in fp32 (`autocast_adapter_dtype=True` is the default). Each adapted linear casts its
# input to fp32, each for itself, and autograd keeps that copy for the adapter's gradient. Query, key and value projections share one
# bf16 input in full fine-tuning; with adapters there are three fp32 copies of it.
#
# Seen: bytes that autograd keeps for backward in one forward of a Llama with 2 layers, width 512, 256 tokens, adapters of rank 16 on
# all linears, parameters left out, without dropout or recomputation. CPU kernels; the fp32 copies are made on any device.
#     full fine-tuning                          12,409,856 B
#     LoRA                                      17,223,680 B, 1.39 times as much
#     LoRA with autocast_adapter_dtype=False    10,424,320 B, 0.84 times as much
#
# Guess: LoRA needs less memory than full fine-tuning in every part. Frozen linears keep no input, adapters have few parameters, so
# what is kept for backward becomes smaller, as it does in the last row.
#
# Why it matters: weights' gradients and optimizer states go away under LoRA, and long sequences then decide what fits. For the sizes
# of Llama 3.1 8B (32 layers, width 4,096, feed-forward 14,336) the fp32 copies alone are, by 4 * (6 * width + feed-forward) a token
# and layer, 40.8 GB at 8,192 tokens without recomputation. `autocast_adapter_dtype=False` avoids them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet peft==0.21.2 transformers==5.24.0 torch==2.15.0
cat > "$folder/kept.py" <<'PY'
import sys
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(vocab_size=1000, hidden_size=512, intermediate_size=1408, num_hidden_layers=2, num_attention_heads=8,
                     num_key_value_heads=2, attn_implementation="sdpa")

def kept(lora, **options):
    """Bytes of all storages that autograd saves in a forward, each counted once, without those of parameters and buffers."""
    model = LlamaForCausalLM(CONFIG).to(torch.bfloat16)
    if lora:
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"), **options)
    model.train()
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    saved = {}
    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(input_ids=torch.zeros(1, 256, dtype=torch.long), use_cache=False).logits
    return sum(storage.nbytes() for storage in saved.values())

full = kept(False)
print(f"full fine-tuning       kept {full:,} B")
same = True
for name, expected, arguments in (("LoRA", 1.39, {}), ("LoRA, bf16 adapters", 0.84, dict(autocast_adapter_dtype=False))):
    seen = kept(True, **arguments)
    print(f"{name:22} kept {seen:,} B; times full fine-tuning expected {expected:.2f}, seen {seen / full:.2f}")
    same &= abs(seen / full - expected) < 0.01
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" -W ignore "$folder/kept.py"
