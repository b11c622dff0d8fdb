"""How many parameters each of MaxText's models has, by the shapes of its own train state: FOLDER VERSION [MODEL…].

FOLDER holds an unpacked wheel. Nothing is allocated: the state is traced. Needs what MaxText's trainer imports: jax, flax,
omegaconf, pydantic, aqtp, qwix, orbax-checkpoint, pathwaysutils. A model that MaxText itself refuses has its reason instead.
"""

import json
import pathlib
import re
import sys

# Sizes beside a model's name.
BESIDE = [
    "qwen3-30b-a3b base_num_decoder_layers=2",
    "qwen3-30b-a3b base_num_decoder_layers=2 base_moe_mlp_dim=1536",
    "deepseek2-16b num_experts=32 shared_experts=4",
    "deepseek2-16b q_lora_rank=1024 kv_lora_rank=256",
    "deepseek3-671b first_num_dense_layers=1",
    "llama3.1-8b base_mlp_dim=8192 vocab_size=32000 logits_via_embedding=true",
    "qwen3-next-80b-a3b gdn_num_value_heads=64",
    "gpt-oss-20b num_experts=16 num_experts_per_tok=2",
    "gemma2-2b base_num_decoder_layers=2",
    "mixtral-8x7b num_experts=16",
    "qwen3-8b global_parameter_scale=2",
]


def main():
    folder, version, *asked = sys.argv[1:]
    sys.path.insert(0, folder)
    import jax
    from flax import nnx
    from maxtext.configs import pyconfig
    from maxtext.utils import max_utils, maxtext_utils, model_creation_utils

    configs = pathlib.Path(folder) / "maxtext" / "configs"
    base = str(configs / "base.yml")
    counts = {}
    for line in [path.stem for path in sorted((configs / "models").glob("*.yml"))] + BESIDE:
        name, *words = line.split()
        if asked and name not in asked:
            continue
        given = [*words, f"model_name={name}", "run_name=run", "base_output_directory=out", "skip_jax_distributed_system=true"]
        given += ["hardware=cpu", "attention=dot_product", "per_device_batch_size=1", "max_target_length=128", "override_model_config=true"]
        try:
            config = pyconfig.initialize(["train", base, *given])
            mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
            with mesh:
                model = nnx.eval_shape(lambda: model_creation_utils.from_config(config, mesh=mesh, rngs=nnx.Rngs(0)))
                counts[line] = int(max_utils.calculate_num_params_from_pytree(nnx.state(model, nnx.Param)))
        except (Exception, SystemExit) as why:
            first = re.sub(r"/\S*/", "", str(why).strip().splitlines()[0] if str(why).strip() else "")
            counts[line] = f"{type(why).__name__}: {first}"[:200]
        print(line, counts[line], file=sys.stderr)
    print(json.dumps({"framework": "maxtext", "version": version, "parameters": counts}, indent=1))


if __name__ == "__main__":
    main()
