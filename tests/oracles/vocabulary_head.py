"""Writes vocabulary-head.json: memory of a rank's parts of head and embedding in sail-sg/VocabularyParallelism.

Run with a checkout: python3 vocabulary_head.py CHECKOUT > vocabulary-head.json, under PyTorch whose allocator is real and
whose kernels need not be. The modules are the fork's own (`vocab_output.py`, `vocab_input.py`, `cross_entropy.py`); of
Megatron they are given the ranks' numbers and a group of one; no stand-in for a weight's gradient is asked for. Bytes allocated beside inputs and weights: the most in the
pass, and what is left after it while its results are held.
"""

import json
import sys
import types

import torch
import torch.distributed as dist

PATH = sys.argv[1].rstrip("/") + "/megatron/core/tensor_parallel/"
RANKS = 8
# Sizes that fill whole segments of the allocator, which counts what it does not split.
SHAPES = [(2048, 1, 3072, 4096), (2048, 1, 3072, 32768), (1024, 2, 1024, 2048), (4096, 1, 768, 8192)]


def package(name, **names):
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def load(name, file):
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    with open(PATH + file) as text:
        exec(compile(text.read(), file, "exec"), module.__dict__)
    return module


state = dict(
    get_tensor_model_parallel_group=lambda: dist.group.WORLD, get_model_parallel_group=lambda: dist.group.WORLD,
    get_tensor_model_parallel_rank=lambda: 0, get_tensor_model_parallel_world_size=lambda: 1,
    get_pipeline_model_parallel_rank=lambda: 0, get_pipeline_model_parallel_world_size=lambda: RANKS,
    get_global_memory_buffer=None,
)
for name in ("fork", "fork.core", "fork.core.tensor_parallel", "fork.core.transformer", "fork.core.dist_checkpointing", "megatron", "megatron.core"):
    package(name)
package("fork.core.transformer.utils", make_sharded_tensors_for_checkpoint=None)
package("fork.core.dist_checkpointing.mapping", ShardedStateDict=dict)
package(
    "fork.core.utils", make_tp_sharded_tensor_for_checkpoint=None,
    prepare_input_tensors_for_wgrad_compute=lambda a, b: (a.contiguous().view(-1, a.shape[-1]), b.contiguous().view(-1, b.shape[-1])),
)
package("megatron.core.parallel_state", **state)
package("megatron.core.model_parallel_config", ModelParallelConfig=object)
inside = "fork.core.tensor_parallel."
package(inside + "layers", _initialize_affine_weight_cpu=None, _initialize_affine_weight_gpu=None)
package(
    inside + "mappings", copy_to_tensor_model_parallel_region=None, reduce_from_tensor_model_parallel_region=lambda x: x,
    reduce_scatter_to_sequence_parallel_region=None,
)


class VocabUtility:
    @staticmethod
    def vocab_range_from_per_partition_vocab_size(words, rank, _):
        return rank * words, (rank + 1) * words

    @staticmethod
    def vocab_range_from_global_vocab_size(words, rank, ranks):
        return rank * words // ranks, (rank + 1) * words // ranks


package(inside + "utils", VocabUtility=VocabUtility, divide=lambda a, b: a // b)
load(inside + "cross_entropy", "cross_entropy.py")
store = load(inside + "vocab_output_store", "vocab_output_store.py").VocabOutputStore
# The extension that adds a weight's gradient to the main gradient takes no memory.
sys.modules["fused_weight_gradient_mlp_cuda"] = types.SimpleNamespace(wgrad_gemm_accum_fp16=lambda *_: None)
output = load(inside + "vocab_output", "vocab_output.py")
words_of = load(inside + "vocab_input", "vocab_input.py").VocabParallelInput


def measured(run):
    """What a pass leaves, and the most it takes, beside what was there."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    return result, {
        "left": torch.cuda.memory_allocated() - before,
        "peak": torch.cuda.max_memory_allocated() - before,
    }


def head(shape, fused, interlaced):
    tokens, batch, width, words = shape
    weight = torch.nn.Parameter(torch.empty(words, width, device="cuda", dtype=torch.float16))
    weight.main_grad = torch.empty_like(weight)
    hidden = torch.empty(tokens, batch, width, device="cuda", dtype=torch.float16, requires_grad=True)
    labels = torch.empty(tokens, batch, device="cuda", dtype=torch.int64)
    torch.mm(hidden.detach().view(-1, width), weight.detach().t())  # takes the workspace
    torch.cuda.synchronize()

    def forward():
        made = output._forward_impl(
            hidden, weight, labels, 0.0, True, True, False, None, None, fused, interlaced
        )
        return made, None if interlaced else store.forward_get()

    (made, results), ahead = measured(forward)
    gradient = torch.empty(tokens, batch, device="cuda", dtype=torch.float32)
    store.backward_store(gradient, gradient, gradient)
    del results
    # As the schedule has it, what a head has returned is let go of all but one number; its graph stays.
    seed = torch.empty_like(made)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    made.backward(seed)
    return {
        "forward": ahead,
        "backward_peak": torch.cuda.max_memory_allocated() - held,
        "backward_left": torch.cuda.memory_allocated() - held,
    }


def words(shape):
    tokens, batch, width, count = shape
    config = types.SimpleNamespace(deterministic_mode=False, use_cpu_initialization=False, params_dtype=torch.float16,
                                   perform_initialization=False)
    module = words_of(count * RANKS, width, init_method=None, config=config)
    ids = torch.empty(batch, tokens, device="cuda", dtype=torch.int64)
    made, ahead = measured(lambda: module(ids))
    return {"forward": ahead}


def main():
    dist.init_process_group("fake", rank=0, world_size=1)
    cases = []
    for shape in SHAPES:
        tokens, batch, width, count = shape
        case = {"sequence": tokens, "batch": batch, "width": width, "words": count}
        for name, fused, interlaced in [("Vocab1", False, False), ("Vocab2", True, False), ("Interlaced", False, True)]:
            case[name] = head(shape, fused, interlaced)
            torch.cuda.empty_cache()
        case["words_looked_up"] = words(shape)
        cases.append(case)
    print(json.dumps({"torch": torch.__version__, "cases": cases}, indent=1))


main()
