#!/usr/bin/env bash
# Library: MaxText 0.2.5 with JAX 0.12.0.1. It needs Python 3.12, and no TPU: only the configuration is read.
#
# Behaviour: a YAML configuration that names a model and writes sizes of its own beside it gets the model's sizes. MaxText lays
# configs/models/NAME.yml over the user's file, and says nothing. The same key on the command line is an error, unless
# override_model_config=True; in the file that switch changes nothing, since only words of the command line count as overrides.
#
# Seen: model_name llama3.1-8b with base_num_decoder_layers 4 and base_emb_dim 1024
#     in the file                                      32 layers, width 4,096
#     in the file, with override_model_config: true    32 layers, width 4,096
#     on the command line                              ValueError
#     on the command line, override_model_config=True   4 layers, width 1,024
#
# Guess: what a user's own file says beside a preset counts, as it does on the command line; or it is refused there, too.
#
# Why it matters: a run that was cut to four layers to try a layout on a few chips is the whole model, with eight times the layers'
# memory and time. Its file says otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.12 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.12.0.1 jaxlib==0.12.0.1 flax==0.12.6 orbax-checkpoint==0.12.8 omegaconf==2.3.0 \
  pydantic==2.14.4 pathwaysutils==0.1.13 pyyaml==6.0.4 jinja2==3.1.6 google-cloud-storage==3.17.1
"$folder/venv/bin/pip" install --quiet --no-deps maxtext==0.2.5
export JAX_PLATFORMS=cpu
cat > "$folder/sizes.py" <<'PY'
import contextlib, io, logging, sys
from maxtext.configs import pyconfig

logging.disable(logging.CRITICAL)
FOLDER = sys.argv[1]
HEAD = "base_config: base.yml\nmodel_name: llama3.1-8b\nrun_name: sizes\nenable_checkpointing: false\ndataset_type: synthetic\n"
SIZES = {"base_num_decoder_layers": 4, "base_emb_dim": 1024}

def read(name, keys, words=()):
    path = f"{FOLDER}/{name}.yml"
    with open(path, "w") as file:
        file.write(HEAD + "".join(f"{key}: {value}\n" for key, value in keys.items()))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config = pyconfig.initialize(["", path, "skip_jax_distributed_system=True", "hardware=cpu", *words])
    except ValueError:
        return "ValueError"
    return config.num_decoder_layers, config.emb_dim

words = [f"{key}={value}" for key, value in SIZES.items()]
same = True
for name, seen, expected in (
    ("in the file", read("file", SIZES), (32, 4096)),
    ("in the file, override_model_config: true", read("over", {**SIZES, "override_model_config": "true"}), (32, 4096)),
    ("on the command line", read("words", {}, words), "ValueError"),
    ("on the command line, override_model_config=True", read("both", {}, [*words, "override_model_config=True"]), (4, 1024)),
):
    print(f"{name:50} expected {expected}, seen {seen}", flush=True)
    same &= seen == expected
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
"$folder/venv/bin/python" "$folder/sizes.py" "$folder"
