"""What Megatron-LM makes of a launch script or a test case: FOLDER SOURCE NAME…, with a checkout of the framework.

A script is run by bash with `torchrun` printing its arguments; a YAML file's MODEL_ARGS become arguments as the
framework's own test runner makes them. The framework parses and validates them on as many ranks as the script starts,
or the fewest that hold the parallel degrees; then it makes its TransformerConfig. Needs what defaults_megatron.py
needs, and PyYAML. GPU capability and Transformer Engine's version are answered as an H100 with a current one.
"""

import importlib
import math
import os
import shlex
import subprocess
import sys

import yaml

import resolved

# Beginnings of names without effect on memory or time.
SILENT = tuple(
    """
    log_ logging tensorboard wandb one_logger use_one_logger app_tag timing timers barrier_with print_ config_logger
    profile use_pytorch_prof torch_profile nvtx record_memory memory_snapshot straggler disable_straggler workload run_workload
    save load ckpt async_save async_strategy non_persistent dist_ckpt replication auto_detect finetune pretrained no_load no_save verify
    data_path data_args data_cache data_parallel_random train_data valid test_data dataloader mock_data multiple_validation per_split blend num_dataset mmap fim object_storage mid_level
    vocab_file merge_file tokenizer tiktoken split num_workers block_data sample_rate eod reset_ create_attention
    eval full_valid validation skip_train test_mode exit iteration consumed skipped phase
    lr min_lr head_lr decoupled override_opt use_checkpoint adam sgd muon lion soap weight_decay start_ end_weight apply_wd
    loss_scale initial_loss hysteresis init_method embedding_init perform_init seed te_rng
    rank world_size distributed_timeout dist_url adlr autoresume inprocess rerun result_rejected error_injection fault enable_ft calc_ft
    rl_ inference retro retriever ict biencoder bert_ query_ indexer titles vision img_ patch_ swin dino mask_ num_classes classes
    grpo perform_rl langrl teacher export_ modelopt kitchen heterogeneous yaml hf_ huggingface enable_msc manual_gc gc_
    mscale rotary rope beta_ original_max softmax_type qk_clip moe_aux moe_z moe_input_jitter moe_router_bias mtp_loss mamba linear_ dsa_
    experimental_attention glu_linear activation_func_clamp
    """.split()
)


# Kernels of Transformer Engine that the config only asks to be there.
STAND_INS = {
    "megatron.core.models.common.embeddings.rope_utils": ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"),
    "megatron.core.transformer.moe.moe_utils": ("fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index", "fused_sort_chunks_by_index_with_probs", "fused_unpermute"),
}


def from_script(path):
    """(arguments, ranks, environment) of a launch script."""
    program = 'torchrun() { printf "%s\\n" "$@"; }; source ' + shlex.quote(str(path)) + ' A B C D E; echo "WORLD=$WORLD_SIZE"'
    lines = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.splitlines()
    script = next(i for i, line in enumerate(lines) if line.endswith(".py"))
    return lines[script + 1 : -1], int(lines[-1].removeprefix("WORLD=")), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def from_case(path):
    """(arguments, None, environment) of a functional test's model_config.yaml."""
    case = yaml.load(path.read_text(), yaml.BaseLoader)
    arguments = []
    for flag, value in case["MODEL_ARGS"].items():
        value = value.strip()
        if value == "true":
            arguments.append(flag)
        elif value.startswith("["):
            arguments += [flag, *value.strip("[]").split()]
        elif value not in ("", "null"):
            arguments += [flag, value.replace("\\", "")]
    return arguments, None, dict(case["ENV_VARS"])


def degree(arguments, flag):
    """The value of an integer flag, or 1."""
    return int(arguments[arguments.index(flag) + 1]) if flag in arguments else 1


def ranks(arguments):
    """The fewest ranks that hold the parallel degrees."""
    dense = math.prod(degree(arguments, f"--{k}-model-parallel-size") for k in ("tensor", "pipeline")) * degree(arguments, "--context-parallel-size")
    expert_tensor = degree(arguments, "--expert-tensor-parallel-size" if "--expert-tensor-parallel-size" in arguments else "--tensor-model-parallel-size")
    sparse = expert_tensor * degree(arguments, "--expert-model-parallel-size") * degree(arguments, "--pipeline-model-parallel-size")
    return math.lcm(dense, sparse)


def prepare():
    """Answers what validation asks of a machine, as an H100 would."""
    import torch

    from megatron.training import arguments, utils

    torch.cuda.get_device_capability = lambda *a: (9, 0)
    arguments.get_device_arch_version = utils.get_device_arch_version = lambda: 9
    arguments.is_te_min_version = lambda version: True
    for module, names in STAND_INS.items():
        module = importlib.import_module(module)
        for name in names:
            if getattr(module, name, None) is None:
                setattr(module, name, object())


def resolve(name):
    """The validated arguments, and what the config that the model is built with adds to them."""
    from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
    script = resolved.IMPORT / "configs" / "megatron" / f"{name}.sh"
    given, world, environment = from_script(script) if script.exists() else from_case(script.with_suffix(".yaml"))
    fewest = ranks(given)
    size = fewest if world is None or world % fewest else world
    os.environ.update(environment, WORLD_SIZE=str(size), RANK="0")
    sys.argv = ["pretrain.py", *given]
    args = parse_args()
    validate_args(args)
    keys = {k: v for k, v in vars(args).items() if not k.startswith(SILENT)}
    if args.tokenizer_type == "NullTokenizer":  # others read a file
        keys["padded_vocab_size"] = padded(args)
    config = vars(core_transformer_config_from_args(args))
    told = {k: v for k, v in config.items() if k not in keys and not k.startswith(SILENT)}
    return {"world_size": size, "args": keys, "config": told}, world


def padded(args):
    """Rows of the embedding, as the framework's tokenizer and padding make them from --vocab-size."""
    try:
        from megatron.training.tokenizer.tokenizer import build_tokenizer
    except ImportError:
        from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    build_tokenizer(args)
    return args.padded_vocab_size


def main():
    folder, source, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    prepare()
    for name in names:
        try:
            keys, world = resolve(name)
        except (Exception, SystemExit) as why:
            resolved.failed("megatron", name, why)
            continue
        more = {"note": f"the script starts {world} ranks, too few for its parallel degrees"} if world and world != keys["world_size"] else {}
        resolved.write("megatron", name, source, keys, **more)


if __name__ == "__main__":
    main()
