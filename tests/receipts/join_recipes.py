"""Adds to rows of Megatron-Bridge's performance tables what the recipe of their release says beside what the table prints.

    python join_recipes.py CLONE_OF_MEGATRON_BRIDGE ROWS.jsonl     rewrites ROWS.jsonl; rows that have a recipe keep it

A table prints the mesh and the batch. Recompute, CUDA graphs, offloading and how experts' rows travel stand in the release's
`scripts/performance/configs/*_workload_base_configs.py`. A row's recipe is the one of its model, chip and precision whose mesh is the
printed one, at the release's tag or else at the commit of the table; its batch may differ, and `match` says how many of eight figures
agree. A row whose mesh no recipe has gets none.
"""
import json, re, subprocess, sys

TAGS = {"26.02.01": ["v0.3.1", "v0.3.0"], "25.11": ["v0.2.0", "v0.2.1", "v0.2.2"]}
MODELS = {"LLAMA3_8B": "LLAMA3_8B", "LLAMA3_70B": "LLAMA3_70B", "LLAMA3.1_405B": "LLAMA31_405B", "DeepSeekV3": "DEEPSEEK_V3",
          "GPT OSS 120B": "GPT_OSS_120B", "Qwen3_30B_a3B": "QWEN3_30B_A3B", "Qwen3_235B_a22B": "QWEN3_235B_A22B", "Kimi_K2": "KIMI_K2",
          "Nemotron_3_Nano": "NEMOTRON_3_NANO"}
PRECISIONS = {"BF16": "BF16", "FP8": "FP8_CS", "FP8-CS": "FP8_CS", "FP8-MX": "FP8_MX", "MXFP8": "FP8_MX", "NVFP4": "NVFP4"}
BATCH = {"num_gpus": ("hardware", "count"), "global_batch_size": ("batch", "global_batch"), "micro_batch_size": ("batch", "micro_batch")}
MESH = {"tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "virtual_pipeline_model_parallel_size": "vpp",
        "context_parallel_size": "cp", "expert_model_parallel_size": "ep"}


class Config(dict):
    def __init__(self, **given):
        super().__init__(given)


def recipes(clone, ref, known={}):
    """Name to file and settings, of all recipes at a tag or commit."""
    git = lambda *words: subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=True).stdout
    if ref not in known:
        known[ref] = {}
        for file in git("ls-tree", "-r", "--name-only", ref, "scripts/performance/configs").split():
            if file.endswith("workload_base_configs.py"):
                names = dict(WorkloadBaseConfig=Config, replace=lambda base, **more: Config(**{**base, **more}))
                exec(re.sub(r"^(from|import) .*$", "", git("show", f"{ref}:{file}"), flags=re.M), names)
                known[ref].update({name: (file, dict(one)) for name, one in names.items() if isinstance(one, Config)})
    return known[ref]


def found(clone, row):
    """The closest recipe of a row's model, chip and precision: how many figures differ, and what it is called."""
    model = MODELS.get(row["model"]["name"].split(" (")[0])
    precision = PRECISIONS.get(row["precision"]["compute"])
    best = None
    for ref in TAGS.get(row["framework"]["version"].split()[0], []) + [row["source"]["commit"]]:
        for name, (file, config) in recipes(clone, ref).items() if model and precision else ():
            words = name.removeprefix(f"{model}_")
            if words == name or precision not in words or row["hw_family"] not in words.split("_") or re.search("SFT|LORA", words):
                continue
            mesh = [key for key, own in MESH.items() if (row["parallel"].get(own) or 1) != (config.get(key) or 1)]
            if bool(row["parallel"].get("fsdp")) != bool(config.get("use_megatron_fsdp")):
                mesh.append("fsdp")
            batch = [key for key, (part, own) in BATCH.items() if row[part].get(own) != (config.get(key) or 1)]
            if best is None or len(mesh) + len(batch) < best[0]:
                best = len(mesh) + len(batch), mesh, dict(name=name, file=file, ref=ref, config=config)
    return best


def main(clone, path):
    lines, joined = [], 0
    for line in open(path, encoding="utf8"):
        row = json.loads(line)
        ours = row["framework"]["name"].startswith("Megatron-Bridge") and row["framework"]["version"].split()[0] in TAGS
        best = found(clone, row) if ours and "recipe" not in row.get("switches", {}) else None
        if best and not best[1]:
            apart, _, recipe = best
            ref = recipe.pop("ref")
            config = recipe.pop("config")
            at = {"tag" if ref.startswith("v") else "commit": ref}
            row.setdefault("switches", {})["recipe"] = {**recipe, **at, "match": f"{8 - apart}/8", "config": config}
            told = [key for key in ("cpu_offloading_num_layers", "recompute_modules") if config.get(key)]
            row["recompute"] = json.dumps({told[0]: config[told[0]]}) if told else "none in recipe (base default)"
            line, joined = json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n", joined + 1
        lines.append(line)
    open(path, "w", encoding="utf8").writelines(lines)
    print(joined, "rows have a recipe that had none")


main(*sys.argv[1:])
