//! Switches of FSDP2, checkpoints and optimizers that contradict each other, or that PyTorch refuses.

use crate::bad_input::refused;

/// What is added to the tiny scenario, and words that the answer must hold.
const REFUSED: &[(&str, &[&str])] = &[
    // Accumulation.
    ("[fsdp]\nreshard_after_backward = false", &["my.toml:17:26", "are stale", "\"last_micro_batch\""]),
    ("[fsdp]\nreshard_after_backward = \"never\"", &["my.toml:17:26", "last_micro_batch"]),
    ("all_reduce_every_micro_batch = false", &["my.toml:16:32", "mesh.dp_replicate above 1"]),
    // Units.
    ("[fsdp]\nwrap = { together = 9 }", &["my.toml:17:8", "together = 9", "write 2 to 3"]),
    ("[fsdp]\nwrap = { lists = [[0, 1], 1] }", &["my.toml:17:8", "names block 1 twice", "once"]),
    ("[fsdp]\nwrap = { lists = [[0, 7]] }", &["my.toml:17:8", "names block 7", "blocks 0 to 2"]),
    ("[fsdp]\nwrap = { lists = [] }", &["my.toml:17:8", "names no block"]),
    ("[fsdp]\nwrap = { modules = [\"mlp\"] }", &["my.toml:17:21", "no module \"mlp\"", "\"feed_forward\""]),
    (
        "[fsdp]\nwrap = { modules = [\"attention\", \"attention.wq\"] }",
        &["my.toml:17:34", "a unit inside a unit", "name one of the two"],
    ),
    (
        "[fsdp]\nwrap = { modules = [\"attention\"] }\n[activation_checkpointing]\npolicy = \"full\"\nuse_reentrant = true",
        &["my.toml:20:17", "units inside layers", "use_reentrant = false"],
    ),
    ("[fsdp]\nwrap = { together = 2 }\nforward_prefetch = 1", &["my.toml:17:8", "explicit prefetches"]),
    ("[fsdp]\nends = [\"tail\"]", &["my.toml:17:9", "no end \"tail\"", "\"norm_and_head\""]),
    ("[fsdp]\nends = [\"head\", \"norm_and_head\"]", &["my.toml:17:9", "names a module twice"]),
    ("[fsdp]\nwrap = \"torchtitan\"\nends = [\"head\"]", &["my.toml:18:8", "remove fsdp.ends"]),
    ("[fsdp]\nhead_reshard_after_forward = true", &["my.toml:17:30", "no unit of its own", "norm_and_head"]),
    ("[fsdp]\nshard_dim_1 = [\"w9\"]", &["my.toml:17:15", "\"w9\"", "attention.wo.weight"]),
    (
        "[fsdp]\nshard_dim_1 = [\"wo\"]\nreshard_after_forward = 2",
        &["my.toml:17:15", "_reassemble_all_gather_outputs", "reshard_after_forward = true"],
    ),
    // Checkpoints.
    (
        "[activation_checkpointing]\npolicy = { layers = [0, 9] }",
        &["my.toml:17:10", "no layer 9 of the model's 3", "layers 0 to 2"],
    ),
    ("[activation_checkpointing]\npolicy = { layers = [[2, 2]] }", &["my.toml:17:10", "[2, 2] is no range"]),
    ("[activation_checkpointing]\npolicy = { layers = [] }", &["my.toml:17:10", "names no layer"]),
    ("[activation_checkpointing]\npolicy = { first = 0 }", &["my.toml:17:10", "first = 0", "1 to 3"]),
    ("[activation_checkpointing]\npolicy = { save = [] }", &["my.toml:17:10", "\"full\""]),
    ("[activation_checkpointing]\npolicy = { save = [\"bmm\"] }", &["my.toml:17:20", "\"bmm\"", "\"every_second_mm\""]),
    (
        "[activation_checkpointing]\npolicy = { save = [\"mm\", \"every_second_mm\"] }",
        &["my.toml:17:10", "remove one of the two"],
    ),
    (
        "[activation_checkpointing]\npolicy = { save = [\"mm\"] }\n[compile]\nblocks = true",
        &["my.toml:17:10", "compiled", "\"selective_op\""],
    ),
    (
        "[activation_checkpointing]\npolicy = \"selective_op\"\nuse_reentrant = true",
        &["my.toml:18:17", "PyTorch refuses a selective policy", "use_reentrant = false"],
    ),
    ("[activation_checkpointing]\nuse_reentrant = true", &["my.toml:17:17", "no layer is checkpointed"]),
    // Optimizers.
    (
        "[optimizer]\nname = \"sgd\"\nimplementation = \"fused\"",
        &["my.toml:18:18", "does not have a sharding strategy registered", "\"foreach\""],
    ),
    ("[optimizer]\nmomentum = 0.9", &["my.toml:17:12", "a setting of sgd", "name = \"sgd\""]),
    ("[optimizer]\nname = \"sgd\"\nmomentum = -0.9", &["my.toml:18:12", "out of range"]),
    ("[optimizer]\nname = \"sgd\"\nnesterov = true", &["my.toml:18:12", "needs a momentum", "momentum = 0.9"]),
    ("[optimizer]\nname = \"sgd\"\namsgrad = true", &["my.toml:18:11", "no second moments", "name = \"adam\""]),
    ("[optimizer]\nweight_decay = -1.0", &["my.toml:17:16", "out of range", "0.0 (none) or more"]),
    ("[optimizer]\nmaster_weights = true", &["my.toml:17:18", "stored in fp32", "precision.storage = \"bf16\""]),
    // Compiled models.
    (
        "[compile]\nmodel = true\n[fsdp]\nwrap = \"root\"",
        &["my.toml:17:9", "compiled to one graph", "compile.blocks = true"],
    ),
    ("[compile]\nmodel = true\nblocks = false", &["my.toml:17:9", "compile.blocks is false"]),
    ("[loss]\nkind = \"bf16\"\nunnamed_logits = true", &["my.toml:18:18", "once they are cast", "remove"]),
];

#[test]
fn switches_that_cannot_be_are_answered_with_their_place_and_a_remedy() {
    for (at, (added, words)) in REFUSED.iter().enumerate() {
        let said = refused(&format!("switch-{at}"), "", added);
        for word in *words {
            assert!(said.contains(word), "{added}\n{word:?} is not in\n{said}");
        }
    }
}
