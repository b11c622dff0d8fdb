"""Writes into rows of Megatron-LM's functional tests the arguments that their model_config.yaml has.

A row names the commit and the file beside which model_config.yaml stands. What a step is made of is kept as the file has it;
logging, checkpoints, data and learning rates are left out, and of paths only the last name is kept.

    git clone https://github.com/NVIDIA/Megatron-LM ../Megatron-LM
    python tests/receipts/arguments.py ../Megatron-LM tests/receipts/public.jsonl     # PyYAML 6.0.3
"""

import json
import os
import re
import subprocess
import sys

import yaml


class Yaml12(yaml.SafeLoader):
    """Words that yq, which the tests' runner calls, takes for booleans and numbers."""


BOOL, FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"
Yaml12.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] != BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12.add_implicit_resolver(BOOL, re.compile(r"^(?:true|false|True|False)$"), list("tfTF"))
Yaml12.add_implicit_resolver(FLOAT, re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"), list("-+0123456789."))

LEFT_OUT = re.compile(
    r"^(log-|wandb-|tensorboard-|timing-log|save|load|exit-|eval-|data-|train-data|.*-path$|data$|mock|split$|logging|"
    r".*one-logger|app-tag|dataset-provider|no-load|no-save|finetune|manual-gc|auto-detect|ckpt-|dist-ckpt|"
    r"use-persistent|async-save|no-mmap|distributed-timeout|lr|min-lr|decoupled|adam-|num-workers|train-iters|"
    r"train-samples|init-method|seed)"
)
KEPT = {"data-parallel-sharding-strategy"}


def arguments(config):
    found = {}
    for name, value in config["MODEL_ARGS"].items():
        name = name.lstrip("-")
        if LEFT_OUT.match(name) and name not in KEPT:
            continue
        if isinstance(value, str) and "/" in value and "$" in value:
            value = value.rsplit("/", 1)[1]
        if not (isinstance(value, str) and "$" in value):
            found[name] = value
    return found


def main(checkout, file):
    lines = []
    for line in open(file):
        row = json.loads(line)
        framework = row["framework"]
        if framework.get("name") == "Megatron-LM" and str(framework.get("version")).startswith("golden"):
            folder = os.path.dirname(row["source"]["path"])
            at = f"{row['source']['commit']}:{folder}/model_config.yaml"
            config = yaml.load(subprocess.check_output(["git", "-C", checkout, "show", at], text=True), Yaml12)
            variables = config.get("ENV_VARS") or {}
            switches = row.setdefault("switches", {})
            switches["full_model_args"] = arguments(config)
            known = {name: value for name, value in variables.items() if "$" not in str(value)}
            if known:
                switches["env_vars"] = known
            line = json.dumps(row, separators=(",", ":")) + "\n"
        lines.append(line)
    open(file, "w").writelines(lines)


main(*sys.argv[1:])
