"""What torchtune makes of a recipe's YAML: FOLDER SOURCE NAME…, with an unpacked wheel.

The YAML is merged and interpolated as `tune run` does; the recipe's reads with a default are filled in from
defaults/torchtune-*.json; the model is built on the meta device. Needs torch, omegaconf; torchao is stood in for.
"""

import importlib.util
import json
import pathlib
import sys
import types
import unittest.mock

import resolved

RECIPES = {"full": "full_finetune_distributed", "lora": "lora_finetune_distributed"}


class Finder:
    """Finds an empty module for each package that the models import and do not need here."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name.split(".")[0] == "torchao" else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda attribute: type(attribute, (), {}) if attribute[0].isupper() else unittest.mock.MagicMock(name=attribute)
        return module

    def exec_module(self, module):
        pass


def main():
    folder, source, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, Finder())
    import torch
    from omegaconf import OmegaConf
    from torchtune.config import instantiate

    table = json.loads(next((pathlib.Path(__file__).parent / "defaults").glob("torchtune-*.json")).read_text())["keys"]
    for name in names:
        config = OmegaConf.load(resolved.IMPORT / "configs" / "torchtune" / f"{name}.yaml")
        recipe = RECIPES["lora" if "lora" in name else "full"]
        for key, entry in table.items():
            owner, _, key = key.partition(":")
            if owner == recipe and "default" in entry and OmegaConf.select(config, key) is None and "." not in key:
                OmegaConf.update(config, key, entry["default"])
        keys = OmegaConf.to_container(config, resolve=True)
        try:
            with torch.device("meta"):
                model = instantiate(config.model)
            keys["parameters"] = sum(p.numel() for p in model.parameters())
            keys["layers"] = len(model.layers)
        except Exception as why:
            print(f"note: {name}: no model: {type(why).__name__}: {why}")
        resolved.write("torchtune", name, source, keys, recipe=recipe)


if __name__ == "__main__":
    main()
