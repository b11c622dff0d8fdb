"""What libtpu makes of MaxText's own train step with dropless experts, and of models whose scan has several layers, without a TPU.

usage: xla_dropless.py NAME compile_topology=v6e-8 model_name=… KEY=VALUE…   (one line of JSON on standard output)

pip install maxtext==0.2.5 jax==0.12.0.1 libtpu==0.0.51. Packages that synthetic data never ask for (TensorFlow, datasets) may be missing.
Run with JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0 TPU_ACCELERATOR_TYPE=v6e-8.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from unittest.mock import MagicMock

ABSENT = ("tensorflow", "tensorflow_datasets", "tensorflow_text", "librosa", "mlperf_logging", "datasets", "seqio", "array_record",
          "ml_goodput_measurement", "cloud_accelerator_diagnostics", "google.cloud", "google_cloud_mldiagnostics")


class Stand(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that read data, which a synthetic batch needs none of."""

    def find_spec(self, name, path=None, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__spec__, module.__file__ = spec.name, [], spec, None
        return module

    def exec_module(self, module):
        pass


def main():
    name, words = sys.argv[1], sys.argv[2:]
    sys.meta_path.append(Stand())
    import jax
    import numpy
    import maxtext
    from maxtext.trainers.pre_train import train_compile

    found = {"name": name, "words": words}

    def compiled(step, arguments, keywords, mesh, into, out, static, donated, config, rules):
        state = jax.tree_util.tree_leaves_with_path(arguments[0])
        of_model = [leaf for path, leaf in state if "model" in jax.tree_util.keystr(path).split("]")[0]]
        found["parameters"] = int(sum(numpy.prod(leaf.shape) for leaf in of_model))
        with jax.set_mesh(mesh), rules:
            jitted = jax.jit(step, in_shardings=into, out_shardings=out, static_argnums=static, donate_argnums=donated)
            lowered = jitted.lower(*arguments, **keywords)
        options = train_compile.max_utils.parse_libtpu_flags_to_dict(config.compile_xla_flags)
        made = lowered.compile(compiler_options=options)
        memory = made.memory_analysis()
        found["argument"] = memory.argument_size_in_bytes
        found["peak"] = memory.peak_memory_in_bytes
        return made

    train_compile.jit_and_compile = compiled
    fixed = ["run_name=x", "base_output_directory=" + os.devnull, "enable_checkpointing=false", "dataset_type=synthetic",
             "override_model_config=true", "log_config=false", "steps=10"]
    slices = [] if any(word.startswith("compile_topology_num_slices") for word in words) else ["compile_topology_num_slices=1"]
    base = os.path.join(os.path.dirname(maxtext.__file__), "configs", "base.yml")
    train_compile.main(["train_compile", base, *fixed, *slices, *words])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
