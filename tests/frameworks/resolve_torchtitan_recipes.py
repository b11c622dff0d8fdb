"""What torchtitan since 0.3 makes of a command line, where a configuration is a Python object: FOLDER SOURCE NAME….

tests/import/configs/torchtitan/NAME.args holds the arguments. Needs torch, tyro and spmd_types.
"""

import dataclasses
import sys

import resolved


def table(value):
    """A configuration object as nested tables; each says its class, since a field may hold one of several."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {f.name: table(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in ("param_init", "sharding_config")}
        return {"class": type(value).__qualname__, **out}
    if isinstance(value, (list, tuple)) and value and dataclasses.is_dataclass(value[0]):
        return runs([table(v) for v in value])
    if isinstance(value, dict):
        return {k: table(v) for k, v in value.items()}
    return resolved.plain(value)


def runs(items):
    """A list of tables with equal ones written once: {"0,2,4": table, "1,3": table}; "0-31" where all are neighbours."""
    groups = []
    for i, item in enumerate(items):
        group = next((g for g in groups if g[1] == item), None)
        if group:
            group[0].append(i)
        else:
            groups.append(([i], item))
    return {label(at): item for at, item in groups}


def label(at):
    """Positions as text."""
    neighbours = len(at) > 1 and at[-1] - at[0] == len(at) - 1
    return f"{at[0]}-{at[-1]}" if neighbours else ",".join(map(str, at))


def parameters(config):
    """The parameters of the model that the configuration builds, on the meta device."""
    import torch

    with torch.device("meta"):
        return sum(p.numel() for p in config.model_spec.model.build().parameters())


def main():
    folder, source, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    import torchtitan.tools.utils as utils
    from torchtitan.config import ConfigManager

    utils.has_cuda_capability = lambda major, minor: True  # float8 asks for a GPU before it configures itself
    for name in names:
        arguments = (resolved.IMPORT / "configs" / "torchtitan" / f"{name}.args").read_text().split()
        try:
            config = ConfigManager().parse_args(arguments)
        except (Exception, SystemExit) as why:
            resolved.failed("torchtitan", name, why)
            continue
        keys = table(config)
        try:
            keys["parameters"] = parameters(config)
        except Exception as why:
            print(f"note: {name}: parameters not counted: {type(why).__name__}: {why}")
        resolved.write("torchtitan", name, source, keys)


if __name__ == "__main__":
    main()
