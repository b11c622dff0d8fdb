//! What the importer makes of launch scripts, of sizes beside a model, and of chips that are two devices.

use crate::import::{ImportError, Imported, Machine, Request, find, import, recognise};

const FILE: &str = "base_config: \"base.yml\"\nmodel_name: \"llama3.1-8b\"\nper_device_batch_size: 2\nmax_target_length: 8192\n\
                       remat_policy: \"full\"\nattention: \"flash\"\ngcs_metrics: true\n";

/// A script as Google's recipes for TPU7x are: the command is one word of a launcher's.
const RECIPE: &str = "#!/bin/bash\nexport BUCKET=\"\"\nexport NAME=\"$(date +%Y)\"\n# --xla_tpu_rwb_fusion=true\nXLA_FLAGS=\" \\\n  \
                      --xla_tpu_scoped_vmem_limit_kib=65536 \\\n  --xla_enable_async_all_gather=true \"\n\
                      MAXTEXT_ARGS=\"\\\nmodel_name=llama3.1-70b \\\nper_device_batch_size=0.125 \\\n\
                      ici_context_parallelism=8 \\\nici_fsdp_parallelism=-1 \\\nmax_target_length=131072 \\\n\
                      opt_type=adam_pax \\\nrun_name=${NAME}\"\nxpk workload create \\\n  --device-type=tpu7x-4x8x8 \\\n  \
                      --command=\"set -e && export LIBTPU_INIT_ARGS='${XLA_FLAGS}' && python3 -m \
                      maxtext.trainers.pre_train.train maxtext/configs/base.yml ${MAXTEXT_ARGS} | tee train.log\"\n";

fn slice(on: &str, slice: &str) -> Machine {
    Machine { on: Some(on.to_owned()), slice: Some(slice.to_owned()), ..Machine::default() }
}

fn maxtext(text: &str, machine: Machine) -> Result<Imported, ImportError> {
    let importer = recognise("run.sh", text).expect("it is not ambiguous").expect("it is MaxText's");
    import(importer, &Request { file: "run.sh", text, machine, ..Request::default() })
}

#[test]
fn a_command_that_a_launcher_is_handed_is_read_with_its_flags_and_devices_of_half_a_chip() {
    let imported = maxtext(RECIPE, slice("tpu-v7x", "4x8x8")).expect("it is read");
    let number = |key: &str| imported.get(key).and_then(toml::Value::as_integer);
    // 512 devices of 256 chips: 64 that shard, of 8 that share a sequence.
    assert_eq!((number("mesh.fsdp"), number("mesh.context"), number("batch.micro")), (Some(64), Some(8), Some(1)));
    let flags = imported.get("xla.flags").expect("it has flags").to_string();
    assert_eq!(flags, "[\"xla_tpu_scoped_vmem_limit_kib=65536\", \"xla_enable_async_all_gather=true\"]");
    let text = imported.text();
    assert!(text.contains("sequence = 131072 # max_target_length, run.sh:13"), "{text}");
    imported.scenario().expect("it is a scenario");
    let on_v6e = maxtext(RECIPE, slice("tpu-v6e", "16x16")).expect("it is read");
    assert_eq!(on_v6e.degree("mesh.context"), 8, "a chip of v6e is one device");
}

#[test]
fn what_only_a_shell_knows_is_no_default() {
    let text = RECIPE.replace("per_device_batch_size=0.125", "per_device_batch_size=${1}");
    let error = maxtext(&text, slice("tpu-v7x", "4x8x8")).expect_err("nobody knows it").to_string();
    assert!(error.contains("per_device_batch_size is \"(only the shell knows)\""), "{error}");
}

#[test]
fn sizes_beside_a_model_count_on_the_command_line_and_not_in_a_file() {
    let file = format!("{FILE}base_num_decoder_layers: 4\n");
    let imported = maxtext(&file, slice("tpu-v6e", "4x4")).expect("it is read");
    assert!(imported.get("model.config.num_hidden_layers").is_none());
    assert!(imported.notes.iter().any(|note| note.contains("base_num_decoder_layers of the file changes nothing")));
    // The model's file says what base.yml does, and lies over the user's all the same.
    let imported = maxtext(&format!("{FILE}head_dim: 64\n"), slice("tpu-v6e", "4x4")).expect("it is read");
    assert!(imported.get("model.config.head_dim").is_none());
    assert!(imported.notes.iter().any(|note| note.contains("head_dim of the file changes nothing")));
    let words = ["base_num_decoder_layers=4".to_owned(), "override_model_config=True".to_owned()];
    let importer = find("maxtext").expect("there is one");
    let request = Request {
        file: "a.yml",
        text: FILE,
        overrides: &words,
        machine: slice("tpu-v6e", "4x4"),
        ..Request::default()
    };
    let imported = import(importer, &request).expect("it is read");
    assert_eq!(imported.get("model.config.num_hidden_layers").and_then(toml::Value::as_integer), Some(4));
    let own = "python3 -m MaxText.train base.yml base_emb_dim=4096 base_num_decoder_layers=8 per_device_batch_size=2\n";
    let imported = maxtext(own, slice("tpu-v6e", "4x4")).expect("it is read");
    let model = imported.model().expect("it is a model");
    assert_eq!((model.width, model.layers.count(), model.heads()), (4096, 8, 16), "base.yml's own heads");
    assert_eq!(imported.degree("batch.sequence"), 2048, "base.yml's own length");
}

#[test]
fn what_may_matter_is_not_said_to_be_without_effect() {
    let file = format!(
        "{FILE}wi_tile_fwd_mlp_dim: 256\nactivations_in_float32: true\nnum_slices: 2\nlearning_rate: 1.0e-4\nsa_block_q_dkv: 512\n"
    );
    let imported = maxtext(&file, slice("tpu-v6e", "4x4")).expect("it is read");
    let matters: Vec<&str> = imported.unmodelled.iter().map(|left| left.key.as_str()).collect();
    assert_eq!(
        matters,
        ["activations_in_float32", "num_slices", "wi_tile_fwd_mlp_dim"],
        "sa_block_q_dkv is base.yml's"
    );
    let idle = imported.idle.join("; ");
    assert!(idle.contains("learning_rate (numbers in a rule that costs the same with each value)"), "{idle}");
    let text = imported.text();
    assert!(text.contains("not_simulated = ["), "{text}");
}

#[test]
fn a_scan_without_a_policy_keeps_as_much_as_one_that_recomputes_all() {
    let none = FILE.replace("remat_policy: \"full\"", "remat_policy: \"none\"");
    let imported = maxtext(&none, slice("tpu-v6e", "4x4")).expect("it is read");
    assert_eq!(imported.get("xla.remat_policy").and_then(toml::Value::as_str), Some("full"));
    assert!(imported.notes.iter().any(|note| note.contains("write scan_layers=false to keep all")));
    let imported = maxtext(&format!("{none}scan_layers: false\n"), slice("tpu-v6e", "4x4")).expect("it is read");
    assert_eq!(imported.get("xla.remat_policy").and_then(toml::Value::as_str), Some("none"));
}

#[test]
fn what_no_interval_holds_is_refused_with_the_way_by_the_compiler() {
    for (line, said) in [
        ("dtype: float32", "dtype = float32"),
        ("optimizer_memory_host_offload: True", "optimizer states in the host's memory"),
        ("parameter_memory_host_offload: true", "parameters in the host's memory"),
    ] {
        let error = maxtext(&format!("{FILE}{line}\n"), slice("tpu-v6e", "4x4")).expect_err("refused").to_string();
        assert!(error.contains(said) && error.contains("compile-check --program"), "{error}");
    }
    maxtext(&format!("{FILE}dtype: bfloat16\n"), slice("tpu-v6e", "4x4")).expect("it is read");
}
