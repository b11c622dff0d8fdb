"""Keys and defaults of a DeepSpeed configuration, from its unpacked package: FOLDER VERSION."""

import ast

from sources import classes, command_line, constants, form, nested, write

# Sections that a pydantic model reads, and its class.
MODELS = {
    "zero_optimization": "DeepSpeedZeroConfig",
    "bf16": "DeepSpeedBF16Config",
    "fp16": "DeepSpeedFP16Config",
    "tensor_parallel": "TPTrainingConfig",
    "compile": "CompileConfig",
    "hybrid_engine": "HybridEngineConfig",
    "comms_logger": "CommsLoggerConfig",
}
# Sections that functions read from dictionaries: the module, and the dictionary's name in it.
READS = {
    ("deepspeed/runtime/config.py", "param_dict"): "",
    ("deepspeed/runtime/config.py", "data_types_params"): "data_types.",
    ("deepspeed/runtime/config.py", "checkpoint_params"): "checkpoint.",
    ("deepspeed/runtime/activation_checkpointing/config.py", "act_chkpt_config_dict"): "activation_checkpointing.",
    ("deepspeed/profiling/config.py", "flops_profiler_dict"): "flops_profiler.",
}


def shared(tree):
    """Names that the package's constants modules bind."""
    names = {}
    for path in ("runtime/constants", "runtime/activation_checkpointing/config", "profiling/constants"):
        names.update(constants(tree.module(f"deepspeed/{path}.py")))
    return names


def reads(tree):
    """`get_scalar_param(dictionary, KEY, DEFAULT)` and `dictionary.get(KEY, DEFAULT)`."""
    names, out = shared(tree), {}
    for (path, dictionary), section in READS.items():
        module = tree.module(path)
        for node in ast.walk(module):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "get_scalar_param" and len(node.args) == 3 and ast.unparse(node.args[0]) == dictionary:
                key, default = node.args[1:]
            elif called == f"{dictionary}.get" and len(node.args) == 2:
                key, default = node.args
            else:
                continue
            key = form(key, names).get("default")
            if isinstance(key, str):
                out[section + key] = {"type": "", **form(default, names), "at": f"{path}:{node.lineno}"}
    return out


def parameters(tree):
    """Keys of `optimizer.params` with a default: arguments of the optimizers' constructors."""
    out = {}
    for path, name in (("ops/adam/fused_adam.py", "FusedAdam"), ("ops/adam/cpu_adam.py", "DeepSpeedCPUAdam")):
        path = f"deepspeed/{path}"
        for node in ast.walk(tree.module(path)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                init = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
                words = init.args.args[-len(init.args.defaults) :]
                for word, default in zip(words, init.args.defaults):
                    out[f"{name}.{word.arg}"] = {"type": "", **form(default), "at": f"{path}:{default.lineno}"}
    return out


def main():
    tree, version = command_line("defaults_deepspeed.py FOLDER VERSION")
    found = classes(tree, tree.paths("deepspeed/runtime") + tree.paths("deepspeed/compile") + tree.paths("deepspeed/comm"))
    keys = reads(tree)
    for section, name in MODELS.items():
        for key, entry in nested(found, found[name], section + ".").items():
            keys[key] = entry
    write("deepspeed", version, f"deepspeed {version} from the package registry", keys, parts=parameters(tree))


if __name__ == "__main__":
    main()
