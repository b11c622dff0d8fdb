"""The registry of torchtitan since 0.3, whose configurations and flavors are Python: FOLDER VERSION.

Writes defaults/torchtitan-VERSION-registry.json. `keys` has, for every `--module M --config C`, the keys that differ
from Trainer.Config's defaults. `flavors` has the sizes of each model, layer groups by position, and its parameters as
torchtitan counts them on the meta device. Needs torch, tyro and spmd_types.
"""

import importlib
import inspect
import sys

import resolved
import resolve_torchtitan_recipes as recipes
import sources

MODULES = ("llama3", "deepseek_v3", "qwen3", "qwen3_5", "gpt_oss", "kimi_k2_7")
SIZES = {
    "class", "dim", "vocab_size", "n_heads", "n_kv_heads", "head_dim", "in_features", "out_features", "hidden_dim", "bias", "num_experts",
    "num_shared_experts", "top_k", "score_func", "route_norm", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "enable_weight_tying", "normalized_shape", "num_embeddings", "embedding_dim", "sliding_window_size", "theta", "mask_type",
}


def configs(name, defaults):
    """Every configuration function of a module that takes no argument: name → keys that differ from the defaults."""
    module = importlib.import_module(f"torchtitan.models.{name}.config_registry")
    out = {}
    for function, value in inspect.getmembers(module, inspect.isfunction):
        if value.__module__ != module.__name__ or function.startswith("_") or inspect.signature(value).parameters:
            continue
        try:
            config = value()
        except Exception as why:
            print(f"note: {name}.{function}: {type(why).__name__}: {why}")
            continue
        table = recipes.table(config)
        flavor = table.pop("model_spec")["flavor"]
        flat = resolved.flat(resolved.plain(table))
        line = inspect.getsourcelines(value)[1]
        changed = {k: v for k, v in flat.items() if k not in defaults or defaults[k] != v}
        out[f"{name}:{function}"] = {"flavor": flavor, **changed, "at": f"torchtitan/models/{name}/config_registry.py:{line}"}
    return out


def flavors(name):
    """Every flavor of a module: name → sizes."""
    import torch

    module = importlib.import_module(f"torchtitan.models.{name}")
    table = next(v for k, v in vars(module).items() if k.endswith("_configs") and isinstance(v, dict))
    out = {}
    for flavor in table:
        model = module.model_registry(flavor).model
        sizes = {k: v for k, v in resolved.flat(resolved.plain(recipes.table(model))).items() if k.rsplit(".", 1)[-1] in SIZES and v is not None}
        try:
            with torch.device("meta"):
                sizes["parameters"] = sum(p.numel() for p in model.build().parameters())
        except Exception as why:
            print(f"note: {name} {flavor}: parameters not counted: {type(why).__name__}: {why}")
        out[f"{name}:{flavor}"] = sizes
    return out


def main():
    folder, version = sys.argv[1:]
    sys.path.insert(0, folder)
    import torchtitan.tools.utils as utils

    utils.has_cuda_capability = lambda major, minor: True  # float8 asks for a GPU before it configures itself
    from torchtitan.trainer import Trainer

    table = recipes.table(Trainer.Config())
    table.pop("model_spec")
    defaults = resolved.flat(resolved.plain(table))
    keys, sizes = {}, {}
    for name in MODULES:
        try:
            keys.update(configs(name, defaults))
            sizes.update(flavors(name))
        except ImportError as why:
            print(f"note: {name}: {why}")
    sources.write("torchtitan", f"{version}-registry", f"torchtitan {version} from the package registry", keys, flavors=sizes)


if __name__ == "__main__":
    main()
