"""What axolotl makes of a YAML file: FOLDER SOURCE NAME…, with an unpacked wheel.

The framework's schema fills in and checks; the machine is answered as eight H100s. Needs what axolotl's schema imports:
torch, transformers, accelerate, datasets, addict. Values that come from a model on a hub are not resolved.
"""

import sys

import yaml

import resolved

# Keys without effect on memory or time.
SILENT = ("trl", "vllm", "use_otel", "otel", "ray_", "use_ray", "resources_per", "dataset", "datasets", "save", "merge_", "eval", "logging", "val_set", "lisa", "wandb", "output_dir", "shuffle", "tokenizer", "load_best", "message_")
MACHINE = {"bf16": True, "fp8": True, "n_gpu": 8, "n_node": 1, "compute_capability": "sm_90", "tf32": True}


def main():
    folder, source, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    import torch
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    for name in names:
        path = resolved.IMPORT / "configs" / "axolotl" / f"{name}.yaml"
        try:
            given = DictDefault(yaml.safe_load(path.read_text()))
            made = validate_config(given, capabilities=MACHINE, env_capabilities={"torch_version": torch.__version__.split("+")[0]})
        except (Exception, SystemExit) as why:
            resolved.failed("axolotl", name, why)
            continue
        resolved.write("axolotl", name, source, {k: v for k, v in made.to_dict().items() if not k.startswith(SILENT)})


if __name__ == "__main__":
    main()
