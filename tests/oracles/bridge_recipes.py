"""Pretrain recipes of Megatron-Bridge 0.6.2: 100 drawn at random, the file that a run of each saves, and facts beside it.

    python bridge_recipes.py OUT [RECIPE ...]     # all 100 by default; OUT/given, OUT/saved and OUT/facts.json

`given` holds a recipe's configuration as the function returns it, `saved` the same as a run has it once it has started
(`runtime_config_update`, the tokenizer's words, then `to_yaml`). Recipes that name a chip nobody can buy yet are left out of the draw.

Needed: megatron-bridge 0.6.2 and megatron-core 0.19.2 on PYTHONPATH, the patched `megatron_core.py` and `transformer_engine_torch.py` of
this folder beside it (`megatron-019.patch`; they make Transformer Engine's Python importable), mamba_ssm 2.3.2, and the CUDA runtime of
those scripts that computes nothing. Configurations of models come from `scenarios/models` and `bridge_models.json`, not from the Hub.

Parameters are counted on the model that the recipe's own provider builds on one rank, in bf16, with the vocabulary padded as the recipe's
tensor ranks want it. What only a device or another package could say is asked of nobody: packages that are not there are empty names.
"""
import ast, copy, importlib, importlib.abc, importlib.machinery, json, os, pathlib, random, re, sys, types

HERE = pathlib.Path(__file__).resolve().parent
MODELS = pathlib.Path(os.environ.get("MODELS", HERE.parent.parent / "scenarios" / "models"))
NAME = re.compile(r"[a-z]\w*_pretrain_(\d+)gpu_([a-z]+\d+)_\w*config$")
UNRELEASED = {"vr200"}
# Asked for where they are imported. `fla` alone decides whether a module is there.
ABSENT = ("megatron.energon", "modelopt", "qwen_vl_utils", "open_clip", "imageio", "wandb", "webdataset", "easydict", "ftfy")
CAPABILITY = {"h100": (9, 0), "b200": (10, 0), "gb200": (10, 0), "b300": (10, 3), "gb300": (10, 3)}


def empty(name):
    """A class of a package that is not there, or a decorator that changes nothing."""
    if name[0].islower():
        return lambda *a, **more: a[0] if len(a) == 1 and callable(a[0]) else lambda decorated: decorated
    return type(name, (), {"__init__": lambda self, *a, **more: None, "__class_getitem__": classmethod(lambda cls, of: cls)})


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else finds: packages without content."""

    names = ("fla",)

    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        made = types.ModuleType(spec.name)
        made.__path__, made.__version__ = [], "0"

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return empty(name)

        made.__getattr__ = attribute
        return made

    def exec_module(self, module):
        pass


def listed():
    """All public recipes, as (name, package) to the file that defines it: functions, and names given to another chip's function."""
    import megatron.bridge

    root, found = pathlib.Path(megatron.bridge.__path__[0]), {}
    for package in ("recipes", "perf_recipes"):
        for file in sorted((root / package).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.FunctionDef):
                    name = node.name
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                    name = getattr(node.targets[0], "id", "")
                else:
                    continue
                match = NAME.match(name)
                if match and match[2] not in UNRELEASED:
                    found[name, package] = "megatron.bridge." + ".".join(file.relative_to(root).with_suffix("").parts)
    return found


def drawn(found, count=100, seed=62):
    return sorted(random.Random(seed).sample(sorted(found), count))


def hub():
    """Configurations by their names on the Hub: keys of `bridge_models.json`, on top of a file of `scenarios/models` where `like` names one."""
    known = json.loads((HERE / "bridge_models.json").read_text())

    def load(path, **more):
        from transformers import AutoConfig, PretrainedConfig

        if str(path) not in known:
            raise LookupError(f"no configuration of {path}")
        keys = dict(known[str(path)])
        if "like" in keys:
            keys = {**json.loads((MODELS / f"{keys.pop('like')}.json").read_text()), **keys}
        keys = {key: value for key, value in keys.items() if not key.startswith("_")}
        kind = keys.pop("model_type")
        try:
            made = AutoConfig.for_model(kind, **keys)
        except ValueError:
            made = PretrainedConfig(**keys)
            made.model_type = kind
        made._name_or_path = str(path)
        return made

    return load


def offline():
    """Lets recipes find models' configurations here."""
    import transformers
    from megatron.bridge.models.conversion import auto_bridge

    load = hub()
    auto_bridge.safe_load_config_with_retry = load
    transformers.AutoConfig.from_pretrained = staticmethod(load)


def published(tokenizer):
    """Words of a tokenizer on the Hub: those of the model beside it."""
    config = hub()(tokenizer)
    return getattr(config, "text_config", config).vocab_size


def words(cfg):
    """How many words the model has, as `training/setup.py` says once there is a tokenizer (`_validate_and_set_vocab_size`)."""
    model, tokenizer = cfg.model, cfg.tokenizer
    if hasattr(model, "should_pad_vocab"):
        model.should_pad_vocab = tokenizer.use_tokenizer_vocab_size or model.vocab_size is None
        if model.should_pad_vocab:
            model.vocab_size = tokenizer.vocab_size or published(tokenizer.tokenizer_model)


def whole(cfg):
    """The model on one rank, as `provide` builds it."""
    import torch
    from megatron.bridge.utils.vocab_utils import calculate_padded_vocab_size
    from megatron.core.process_groups_config import ProcessGroupCollection

    model = copy.deepcopy(cfg.model)
    words = model.vocab_size
    if getattr(model, "should_pad_vocab", False):
        words = calculate_padded_vocab_size(words, model.make_vocab_size_divisible_by, model.tensor_model_parallel_size)
    alone = dict(
        vocab_size=words, should_pad_vocab=False, tensor_model_parallel_size=1, pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size=None,
        context_parallel_size=1, expert_model_parallel_size=1, expert_tensor_parallel_size=1, sequence_parallel=False, pipeline_model_parallel_layout=None,
        num_layers_in_first_pipeline_stage=None, num_layers_in_last_pipeline_stage=None, account_for_embedding_in_pipeline_split=False,
        account_for_loss_in_pipeline_split=False, fp8=None, fp8_param=False, fp4=None, fp4_param=False, tp_comm_overlap=False, perform_initialization=False, cuda_graph_impl="none",
        overlap_moe_expert_parallel_comm=False, quant_recipe=None, init_model_with_meta_device=False,
    )
    for key, value in alone.items():
        if hasattr(model, key):
            setattr(model, key, value)
    one_rank()
    model._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    torch.set_default_dtype(torch.bfloat16)
    made = model.provide(pre_process=True, post_process=True)
    return sum(one.numel() for one in made.parameters()), words


def facts(name, package, module, out):
    """Writes both files of a recipe and returns what is known of it."""
    import torch

    gpus, chip = int(NAME.match(name)[1]), NAME.match(name)[2]
    os.environ.update(WORLD_SIZE=str(gpus), RANK="0", LOCAL_RANK="0")
    torch.cuda.get_device_capability = lambda *a, **more: CAPABILITY[chip]
    known = {"recipe": name, "package": package, "gpus": gpus, "chip": chip}
    try:
        cfg = getattr(importlib.import_module(module), name)()
        precision = cfg.mixed_precision if isinstance(cfg.mixed_precision, str) else None
        cfg.to_yaml(str(out / "given" / f"{name}.yaml"))
        if getattr(cfg.dataset, "fast_cache_load", False) and not cfg.dataset.path_to_cache:
            # What nobody starts these without: where the data lie.
            cfg.dataset.path_to_cache = "cache"
    except Exception as error:
        return {**known, "not_made": f"{type(error).__name__}: {str(error)[:400]}"}
    from megatron.bridge.training.config import runtime_config_update

    try:
        runtime_config_update(cfg)
        words(cfg)
        cfg.to_yaml(str(out / "saved" / f"{name}.yaml"))
    except Exception as error:
        known["not_started"] = f"{type(error).__name__}: {str(error)[:400]}"
        if os.environ.get("TRACE"):
            import traceback; traceback.print_exc()
    model, mixed = cfg.model, cfg.mixed_precision
    get = lambda key, other=None: getattr(model, key, other)
    known.update(
        provider=f"{type(model).__module__}.{type(model).__name__}", tp=get("tensor_model_parallel_size"), pp=get("pipeline_model_parallel_size"),
        cp=get("context_parallel_size"), ep=get("expert_model_parallel_size"), etp=get("expert_tensor_parallel_size"),
        vp=get("virtual_pipeline_model_parallel_size"), sequence=get("seq_length"), global_batch=cfg.train.global_batch_size,
        micro_batch=cfg.train.micro_batch_size, precision={
            "name": precision, **{key: str(getattr(mixed, key, None)) for key in ("bf16", "fp8", "fp8_recipe", "fp4", "fp4_recipe", "fp8_param_gather", "grad_reduce_in_fp32", "first_last_layers_bf16")}
        },
        recompute={key: get(f"recompute_{key}") for key in ("granularity", "method", "num_layers", "modules")},
        graphs={"impl": get("cuda_graph_impl"), "modules": [str(getattr(one, "name", one)) for one in (get("cuda_graph_modules") or get("cuda_graph_scope") or [])]},
        optimizer={"name": cfg.optimizer.optimizer, "precision_aware": cfg.optimizer.use_precision_aware_optimizer, "distributed": cfg.optimizer.use_distributed_optimizer,
                   "exp_avg": str(cfg.optimizer.exp_avg_dtype), "exp_avg_sq": str(cfg.optimizer.exp_avg_sq_dtype), "offload": cfg.optimizer.optimizer_cpu_offload},
        megatron_fsdp=bool(cfg.ddp.use_megatron_fsdp or cfg.dist.use_megatron_fsdp),
    )
    refused = mesh_refused(cfg.model, gpus)
    if refused:
        known["mesh_refused"] = refused
    try:
        if "not_started" in known:
            words(cfg)
        known["parameters"], known["words"] = whole(cfg)
        known["counted"] = "the provider's own model"
    except Exception as error:
        known["not_built"] = f"{type(error).__name__}: {str(error)[:400]}"
        if os.environ.get("TRACE"):
            import traceback; traceback.print_exc()
    return known


def mesh_refused(model, gpus):
    """Which of Megatron-Core's two products does not divide the GPUs that the recipe's name says (`parallel_state.initialize_model_parallel`)."""
    tp, pp, cp = (getattr(model, f"{axis}_parallel_size") for axis in ("tensor_model", "pipeline_model", "context"))
    ep, etp = model.expert_model_parallel_size or 1, model.expert_tensor_parallel_size or tp
    wrong = [f"{name} = {size}" for name, size in (("tp*pp*cp", tp * pp * cp), ("etp*ep*pp", etp * ep * pp)) if gpus % size]
    return ", ".join(wrong)


def child(run, *arguments):
    """Runs a function in a process of its own: recipes set variables of the environment."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            answer = run(*arguments)
        except BaseException as error:
            answer = {"recipe": str(arguments[0]), "not_made": f"{type(error).__name__}: {str(error)[:400]}"}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe, default=str)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"recipe": str(arguments[0]), "not_made": "the process died"}


def one_rank():
    """Groups of a world of one, for building modules."""
    import torch
    import torch.distributed as dist
    import megatron_experts
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    megatron_experts.CASE = dict(tp=1, ep=1, etp=1)
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    torch.cuda.set_device(0)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1)


def prepare():
    sys.meta_path.append(Absent())
    sys.path.insert(0, str(HERE))
    import megatron_core  # noqa: F401  Transformer Engine on its stand-in
    import megatron_hybrid  # noqa: F401  and mamba_ssm's Python

    for name in ("transformer_engine", "mamba_ssm"):
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    Absent.names += ABSENT
    import megatron.bridge.recipes.llama.h100.llama3  # noqa: F401
    import megatron.bridge.training.config  # noqa: F401

    offline()


if __name__ == "__main__":
    out, only = pathlib.Path(sys.argv[1]), sys.argv[2:]
    for folder in ("given", "saved"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    prepare()
    found = listed()
    print(len(found), "recipes", flush=True)
    file = out / "facts.json"
    done = {one["recipe"]: one for one in json.loads(file.read_text())} if file.exists() else {}
    for name, package in drawn(found):
        if only and name not in only or not only and name in done:
            continue
        done[name] = child(facts, name, package, found[name, package], out)
        print(name, {key: value for key, value in done[name].items() if key.startswith("not_") or key == "parameters"}, flush=True)
        file.write_text(json.dumps(sorted(done.values(), key=lambda one: one["recipe"]), indent=1))
