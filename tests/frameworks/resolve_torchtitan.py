"""What torchtitan makes of a TOML: FOLDER SOURCE NAME…, with the folder of one version's sources.

The framework's own parser reads tests/import/configs/torchtitan/NAME.toml; its model table gives the flavor's sizes;
its model is built on the meta device and its parameters are counted. Needs torch and tyro.
"""

import copy
import inspect
import pathlib
import sys

import defaults_torchtitan
import resolved
import sources


def parse(path):
    """The job's configuration, by whichever parser this version has."""
    argument = [f"--job.config_file={path}"]
    try:
        from torchtitan.config import ConfigManager

        return ConfigManager().parse_args(argument)
    except ImportError:
        pass
    try:
        from torchtitan.config_manager import ConfigManager

        return ConfigManager().parse_args(argument)
    except ImportError:
        from torchtitan.config_manager import JobConfig

        config = JobConfig()
        config.parse_args([f"--job.config_file={path}"])
        return config


def sections(config):
    """The configuration as nested tables."""
    if hasattr(config, "to_dict"):
        return config.to_dict()
    out = {}  # until late 2024 a section was a class made of the parsed arguments
    for name, section in vars(config).items():
        if name != "parser":
            out[name] = {k: getattr(section, k) for k in dir(section) if not k.startswith("_")}
    return out


# Words of the tokenizers that the presets name, where the size of the vocabulary comes from the tokenizer.
WORDS = {"llama2": 32000, "llama3": 128256, "llama4": 202048}


class Tokenizer:
    """Stands in for a tokenizer: only its number of words is asked for."""

    def __init__(self, words):
        self.n_words = words


def model(config):
    """The flavor's sizes, and its parameters as the framework counts them on the meta device."""
    import torch

    import torchtitan.models  # noqa: F401
    from torchtitan.protocols.train_spec import get_train_spec

    name, flavor = config.model.name, config.model.flavor
    spec = get_train_spec(name)
    arguments = copy.deepcopy(spec.model_args[flavor] if hasattr(spec, "model_args") else spec.config[flavor])
    if hasattr(arguments, "update_from_config"):
        wanted = [p for p in inspect.signature(arguments.update_from_config).parameters.values() if p.default is p.empty and p.kind != p.VAR_KEYWORD]
        arguments.update_from_config(*(config, Tokenizer(WORDS.get(name, -1)))[: len(wanted)])
    cls = getattr(spec, "model_cls", None) or spec.cls
    with torch.device("meta"):
        built = cls.from_model_args(arguments) if hasattr(cls, "from_model_args") else cls(arguments)
    return {**resolved.plain(arguments), "parameters": sum(p.numel() for p in built.parameters())}


def written(folder, config):
    """The flavor's sizes as the sources write them, where today's torch cannot import that version's models."""
    tree = sources.Tree(folder)
    table = defaults_torchtitan.flavors(tree, sources.classes(tree, tree.paths("torchtitan")))
    name = config.model.name
    found = {k: v for k, v in table.items() if k.endswith("." + config.model.flavor)}
    for named in (lambda k, v: k.startswith(name), lambda k, v: f"/{name}/" in v["at"]):
        for key, sizes in found.items():
            if named(key, sizes):
                return {"table": key, **sizes}
    return None


def restore():
    """Names that torch has dropped since, and that older models import for paths that are not taken here."""
    from torch.distributed.tensor.experimental import _attention

    if not hasattr(_attention, "create_cp_block_mask"):
        _attention.create_cp_block_mask = None


def main():
    folder, source, *names = sys.argv[1:]
    sizes = "--no-model" not in names
    names = [n for n in names if n != "--no-model"]
    sys.path.insert(0, folder)
    restore()
    for name in names:
        path = resolved.IMPORT / "configs" / "torchtitan" / f"{name}.toml"
        try:
            config = parse(pathlib.Path(path))
        except (Exception, SystemExit) as why:
            resolved.failed("torchtitan", name, why)
            continue
        keys = sections(config)
        try:
            if not sizes:
                raise LookupError("--no-model")
            keys["model_args"] = model(config)
        except Exception as why:
            print(f"note: {name}: sizes as written, since {type(why).__name__}: {why}")
            if sizes:
                keys["model_args"] = written(folder, config)
        resolved.write("torchtitan", name, source, keys)


if __name__ == "__main__":
    main()
