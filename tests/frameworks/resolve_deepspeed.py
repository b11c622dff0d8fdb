"""What DeepSpeed makes of a ds_config: SOURCE NAME@RANKS…

Runs in an environment that has deepspeed, transformers and accelerate. `auto` is not DeepSpeed's: transformers' Trainer
fills it in from its own arguments and the model, here those of Trainer's defaults on a model of hidden size 4096.
"""

import json
import sys
import types

import resolved

SILENT = ("monitor_config", "autotuning", "elasticity", "flops_profiler_config", "comms_config", "nebula", "aio", "data_efficiency", "curriculum", "hybrid_engine", "timers", "log", "steps_per_print", "dump_state", "wall_clock", "memory_breakdown", "pld", "datastates", "checkpoint", "_param_dict", "mpu", "world_size")
HIDDEN = 4096


def filled(config):
    """The configuration with `auto` filled in as transformers' Trainer does."""
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    ours = HfTrainerDeepSpeedConfig(config)
    args = TrainingArguments(output_dir="out", use_cpu=True)
    given = types.SimpleNamespace(**{**args.__dict__, "world_size": 1, "bf16": config.get("bf16", {}).get("enabled") is True, "fp16": config.get("fp16", {}).get("enabled") is True})
    for name in ("train_batch_size", "get_warmup_steps"):
        setattr(given, name, getattr(args, name))
    ours.trainer_config_process(given)
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=HIDDEN))
    ours.trainer_config_finalize(given, model, 1000)
    return ours.config


def main():
    source, *names = sys.argv[1:]
    from deepspeed.runtime.config import DeepSpeedConfig

    for item in names:
        name, ranks = item.split("@")
        path = resolved.IMPORT / "configs" / "deepspeed" / f"{name}.json"
        text = path.read_text()
        more = {}
        try:
            config = json.loads(text)
            if '"auto"' in text:
                config, more = filled(config), {"auto": f"filled in by transformers' Trainer with its defaults, hidden size {HIDDEN}"}
            mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: int(ranks), get_model_parallel_world_size=lambda: 1)
            made = DeepSpeedConfig(config, mpu=mpu)
        except (Exception, SystemExit) as why:
            resolved.failed("deepspeed", name, why)
            continue
        keys = {}
        for key, value in vars(made).items():
            if not key.startswith(SILENT):
                dumped = value.model_dump() if hasattr(value, "model_dump") else vars(value) if type(value).__module__.startswith("deepspeed") and hasattr(value, "__dict__") else value
                keys[key] = dumped
        resolved.write("deepspeed", name, source, keys, ranks=int(ranks), **more)


if __name__ == "__main__":
    main()
