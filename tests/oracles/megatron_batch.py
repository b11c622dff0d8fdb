"""Writes megatron-batch.json: what the host asks of the device while a rank has a micro-batch read, release by release.

Run on the stubs: LD_PRELOAD=runtime_calls.so:libnullcuda.so python3 megatron_batch.py FOLDER > megatron-batch.json, where FOLDER
has a checkout of Megatron-LM for each of RELEASES. `get_batch` of `pretrain_gpt.py` and what it calls are those of the release;
what is replaced is who the rank is, and `torch.distributed.broadcast`, which is noted with its bytes. The rank is the first of its
tensor-parallel ranks, which reads. Of `runtime_calls.c`: `to device`, `to host`, `on device` copies with their bytes, `kernel`, and
`wait`, the host's for the stream.
"""

import ast
import ctypes
import json
import os
import sys
import types

import torch

RELEASES = {"2.5": "v2.5", "0.4": "core_v0.4.0", "0.5": "core_v0.15.0", "0.16": "core_v0.16.1"}
WHERE = dict(whole=(True, True, 1), first=(True, False, 4), middle=(False, False, 4), last=(False, True, 4))
SHAPES = [(1, 2048), (2, 1024)]

to_host = torch.Tensor.cpu
calls = ctypes.CDLL(None)
calls.noted.restype = ctypes.c_char_p


def functions(path, names, scope):
    """Defines functions of a file in a scope, without running the rest of it."""
    if os.path.exists(path):
        for node in ast.parse(open(path).read()).body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                node.decorator_list = []
                for argument in node.args.args:
                    argument.annotation = None
                node.returns = None
                exec(compile(ast.Module([node], []), path, "exec"), scope)


def record(folder, micro, seq, where, mask, cp):
    first, last, stages = WHERE[where]
    args = types.SimpleNamespace(micro_batch_size=micro, seq_length=seq, pipeline_model_parallel_size=stages, reset_position_ids=False,
        reset_attention_mask=False, eod_mask_loss=False, create_attention_mask_in_dataloader=mask, hybrid_context_parallel=False, sft=False, context_parallel_size=cp,
        mtp_num_layers=None)
    rank = types.SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: 0, get_tensor_model_parallel_src_rank=lambda: 0, get_tensor_model_parallel_group=lambda: None,
        get_context_parallel_world_size=lambda: cp, get_context_parallel_rank=lambda: 0, is_pipeline_first_stage=lambda *_, **__: first,
        is_pipeline_last_stage=lambda *_, **__: last)
    scope = dict(torch=torch, mpu=rank, parallel_state=rank, get_args=lambda: args, get_tokenizer=lambda: types.SimpleNamespace(eod=0),
        core_transformer_config_from_args=lambda _: None, is_first_or_last_pipeline_stage=lambda _: first or last,
        mtp_on_this_rank=lambda *_, **__: False, Optional=None, _MAX_DATA_DIM=5,
        get_tensor_model_parallel_rank=lambda: 0, get_tensor_model_parallel_src_rank=lambda: 0, get_tensor_model_parallel_group=lambda: None)
    data = ["_check_data_types", "_build_key_size_numel_dictionaries", "broadcast_data"]
    for path in ["megatron/mpu/data.py", "megatron/core/tensor_parallel/data.py"]:
        functions(f"{folder}/{path}", data, scope)
    rank.broadcast_data = scope.get("broadcast_data")
    scope["tensor_parallel"] = rank
    helpers = ["get_ltor_masks_and_position_ids", "get_batch_on_this_tp_rank", "get_batch_on_this_cp_rank"]
    for path in ["megatron/utils.py", "megatron/training/utils.py", "megatron/core/utils.py"]:
        functions(f"{folder}/{path}", helpers, scope)
    functions(f"{folder}/pretrain_gpt.py", ["get_batch"], scope)
    pinned = lambda *size, **kind: torch.ones(size, **kind).pin_memory()
    words = dict(dtype=torch.long)
    read = dict(text=torch.ones(micro, seq + 1, **words), tokens=pinned(micro, seq, **words), labels=pinned(micro, seq, **words),
        loss_mask=pinned(micro, seq), position_ids=pinned(micro, seq, **words))
    if mask:
        read["attention_mask"] = pinned(micro, 1, seq, seq, dtype=torch.bool)

    def broadcast(tensor, *_, **__):
        calls.note(b"broadcast", ctypes.c_size_t(tensor.numel() * tensor.element_size()))

    def sizes(tensor):
        """The device holds no values: those that the host has sent."""
        out = to_host(tensor)
        out[:2] = torch.tensor([micro, seq + 1])
        return out

    torch.distributed.broadcast, torch.Tensor.cpu = broadcast, sizes
    for _ in range(2):
        calls.forget()
        before = torch.cuda.memory_allocated()
        got = scope["get_batch"](iter([read]))
        noted = calls.noted().decode().splitlines()
        held = torch.cuda.memory_allocated() - before
        got = [None if part is None else part.untyped_storage().nbytes() for part in got]
    return dict(calls=noted, held=held, parts=got[:5])


if __name__ == "__main__":
    torch.zeros(1, device="cuda")
    cases = []
    for release, folder in RELEASES.items():
        for where in WHERE:
            for micro, seq in SHAPES:
                for mask in (True, False) if release in ("0.5", "0.16") else (True,):
                    for cp in (1, 2) if where == "whole" and release != "2.5" else (1,):
                        case = dict(release=release, where=where, micro=micro, seq=seq, mask=mask, cp=cp)
                        cases.append(case | record(f"{sys.argv[1]}/{folder}", micro, seq, where, mask, cp))
    print('{"cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]}")
