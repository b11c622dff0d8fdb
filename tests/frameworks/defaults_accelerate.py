"""Keys and defaults of an accelerate configuration file, from its unpacked wheel: FOLDER VERSION.

`keys` are the file's own (ClusterConfig). `launch` are arguments of `accelerate launch`, which the keys of
`fsdp_config` and its siblings become. `parts` are the plugins' fields; a field of None is read from the environment
that the launcher sets, and `environment` has the defaults of these reads.
"""

import ast

from sources import arguments, classes, command_line, constants, fields, form, write

DATACLASSES = "accelerate/utils/dataclasses.py"
PLUGINS = (
    "FullyShardedDataParallelPlugin",
    "DeepSpeedPlugin",
    "MegatronLMPlugin",
    "TorchDynamoPlugin",
    "TorchContextParallelConfig",
    "DeepSpeedSequenceParallelConfig",
)


def environment(tree):
    """Reads of environment variables in the plugins: `<Plugin>.<VARIABLE>` → default."""
    out = {}
    for owner in tree.module(DATACLASSES).body:
        if not isinstance(owner, ast.ClassDef):
            continue
        prefixes = {}
        for node in ast.walk(owner):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("env_prefix", "prefix"):
                prefixes[ast.unparse(node.targets[0])] = form(node.value).get("default", "")
        names = {**constants(tree.module(DATACLASSES)), **prefixes}
        for node in ast.walk(owner):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "parse_flag_from_env"):
                default = next((k.value for k in node.keywords if k.arg == "default"), node.args[1] if len(node.args) > 1 else None)
                fallback = {"default": False} if "flag" in ast.unparse(node.func) else {"default": None}
                variable = form(node.args[0], names).get("default")
                if variable:
                    entry = form(default, names) if default is not None else fallback
                    out.setdefault(f"{owner.name}.{variable}", {"type": "", **entry, "at": f"{DATACLASSES}:{node.lineno}"})
    return out


def main():
    tree, version = command_line("defaults_accelerate.py FOLDER VERSION")
    found = classes(tree, [DATACLASSES, "accelerate/commands/config/config_args.py", "accelerate/parallelism_config.py"])

    def table(name):
        return {k: {"type": t, **d, "at": where} for k, (t, d, _, where) in fields(found, found[name]).items()}

    parts = {f"{name}.{k}": v for name in (*PLUGINS, "ParallelismConfig") if name in found for k, v in table(name).items()}
    write(
        "accelerate",
        version,
        f"accelerate {version} from the package registry",
        table("ClusterConfig"),
        launch=arguments(tree, "accelerate/commands/launch.py"),
        parts=parts,
        environment=environment(tree),
    )


if __name__ == "__main__":
    main()
