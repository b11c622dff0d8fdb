"""Writes into rows of Google's TPU recipes the arguments and the compiler's flags that their runs had.

Of Ironwood they stand in a row's own run_recipe.sh, of Trillium and v5p in MaxText's benchmarks/*_model_configs.py, at the
release that the row names. Logging, checkpoints and data are left out. The sequences of a device are those that the row's log
shows, where the recipe has another release's.

    git clone https://github.com/AI-Hypercomputer/tpu-recipes ../tpu-recipes
    git clone https://github.com/AI-Hypercomputer/maxtext ../maxtext
    python tests/receipts/arguments_maxtext.py ../tpu-recipes ../maxtext tests/receipts/public.jsonl
"""

import ast
import json
import re
import subprocess
import sys

LEFT_OUT = re.compile(
    r"^(run_name|base_output_directory|output_dir|dataset_|tokenizer_|reuse_example_batch|gcs_metrics|steps$|profile|"
    r"skip_first_n_steps|.*checkpoint|skip_jax_distributed|grain_|hf_|use_random_routing)"
)
# The release of benchmarks/ for rows that name none.
FIRST = "f3d8c667"
DEVICES = 2


def show(checkout, commit, path):
    return subprocess.check_output(["git", "-C", checkout, "show", f"{commit}:{path}"], text=True)


def exists(checkout, commit):
    done = subprocess.run(["git", "-C", checkout, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True)
    return done.returncode == 0


def kept(arguments):
    return {name: value for name, value in arguments.items() if not LEFT_OUT.match(name)}


def model_of(checkout, commit, chip, name):
    """A model of MaxText's benchmarks: its type, its keys and the names of its groups of flags."""
    tree = ast.parse(show(checkout, commit, f"benchmarks/maxtext_{chip}_model_configs.py"))
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and node.targets[0].id == name):
            continue
        call = next(n for n in ast.walk(node.value) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "MaxTextModel")
        words = {word.arg: word.value for word in call.keywords}
        flags = list(groups(words["xla_flags"]))
        table = words["tuning_params"]
        literal = [(key, value) for key, value in zip(table.keys, table.values) if not isinstance(value, ast.Call)]
        tuning = {ast.literal_eval(key): ast.literal_eval(value) for key, value in literal}
        return ast.literal_eval(words["model_type"]), tuning, flags
    return None


def groups(node):
    """Names of groups in a sum, in its order; one that takes the limit of VMEM as the flag that it writes."""
    if isinstance(node, ast.BinOp):
        yield from groups(node.left)
        yield from groups(node.right)
    elif isinstance(node, ast.Call):
        limit = next(word.value for word in node.keywords if word.arg == "vmem_limit")
        yield f"--xla_tpu_scoped_vmem_limit_kib={ast.literal_eval(limit)}"
    else:
        yield node.attr


def of_script(text):
    """Keys and flags of a run_recipe.sh."""
    body = re.search(r'MAXTEXT_ARGS="(.*?)"\n', text, re.S).group(1)
    words = [word for word in body.replace("\\\n", " ").split() if "=" in word and "$" not in word]
    flags = re.search(r'XLA_FLAGS="(.*?)"', text, re.S).group(1).replace("\\\n", " ").split()
    return {name: scalar(value.strip("'")) for name, value in (word.split("=", 1) for word in words)}, flags


def scalar(word):
    if word in ("True", "true", "False", "false"):
        return word in ("True", "true")
    try:
        return int(word)
    except ValueError:
        try:
            return float(word)
        except ValueError:
            return word


def recipe(checkout, row):
    """The run_recipe.sh of an Ironwood row, by its model, type, slice and sequence."""
    commit = row["source"]["commit"]
    files = subprocess.check_output(["git", "-C", checkout, "ls-tree", "-r", "--name-only", commit, "training/ironwood"], text=True)
    model = row["model"]["name"].replace("deepseek-v3", "deepseek3-671b")
    kind = "fp8" if row["precision"]["compute"].startswith("fp8") else "bf16"
    slice = {64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}[row["hardware"]["count"]]
    folder = f"training/ironwood/{model}/{row['batch']['seq_len'] // 1024}k-{kind}-tpu7x-{slice}/"
    found = [file for file in files.split() if file.startswith(folder) and file.endswith("run_recipe.sh")]
    return show(checkout, commit, found[0]) if found else None


def of_row(recipes, maxtext, row):
    switches = row.get("switches") or {}
    if row["source"]["path"].startswith("training/ironwood"):
        text = recipe(recipes, row)
        if text is None:
            return None
        arguments, flags = of_script(text)
        devices = DEVICES * row["hardware"]["count"]
        assert arguments["per_device_batch_size"] * devices == row["batch"]["global_batch"], row["id"]
        return arguments, flags
    name = switches.get("recipe_model_name")
    if name is None:
        return None
    version = row["framework"].get("version") or FIRST
    chip = "v5p" if row["hw_family"] == "v5p" else "trillium"
    found = model_of(maxtext, version if exists(maxtext, version) else FIRST, chip, name)
    if found is None:
        return None
    kind, arguments, flags = found
    # What the row has was read at the same release.
    arguments = {"model_name": kind, **switches.get("tuning_params", arguments)}
    tokens = row["batch"]["micro_batch"] * row["batch"]["seq_len"]
    each = tokens / arguments["max_target_length"]
    arguments["per_device_batch_size"] = int(each) if each == int(each) else each
    return arguments, flags


def main(recipes, maxtext, file):
    lines = []
    for line in open(file):
        row = json.loads(line)
        found = of_row(recipes, maxtext, row) if row["framework"].get("name") == "MaxText" else None
        if found and row["source"]["repo"] == "AI-Hypercomputer/tpu-recipes":
            arguments, flags = found
            switches = row.setdefault("switches", {})
            for old in ("tuning_params", "xla_flags", "recipe_model_name"):
                switches.pop(old, None)
            switches["full_model_args"] = kept(arguments)
            switches["env_vars"] = {"LIBTPU_INIT_ARGS": " ".join(flags)}
            line = json.dumps(row, separators=(",", ":")) + "\n"
        lines.append(line)
    open(file, "w").writelines(lines)


main(*sys.argv[1:])
