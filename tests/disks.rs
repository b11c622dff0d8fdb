//! ZeRO-Infinity: states and parameters in files, how often they cross, and what is refused.

use windtunnel::program::{Instr, Program, Work};

use crate::command::Folder;
use crate::make;
use crate::zero::ZERO;

/// A model with parts of 1 MiB and more, whose states are on disks of a rate.
pub fn on_disks(rate: &str, keys: &str) -> String {
    let text = ZERO.replace("\"h100-sxm-80gb\"", &format!("{:?}", make::disks(8, rate)));
    let text = text.replace("huggingface = \"config.json\"", "name = \"llama-3.1-8b\"\nlayers = 4");
    text.replace("accumulation = 2", "accumulation = 1")
        .replace("stage = 2\nreduce_bucket_size = 20_000\n", &format!("stage = 3\n{keys}"))
}

/// Bytes that a step reads from files, and writes to them.
fn filed(program: &Program) -> (u64, u64) {
    let files = program.step.iter().filter_map(|instr| match *instr {
        Instr::Launch { kernel, .. } => match program.kernel(kernel).work {
            Work::Disk { bytes, write } => Some((bytes.0, write)),
            _ => None,
        },
        _ => None,
    });
    files.fold(
        (0, 0),
        |(read, written), (bytes, write)| {
            if write { (read, written + bytes) } else { (read + bytes, written) }
        },
    )
}

#[test]
fn states_on_disks_cross_once_each_way_in_a_step_and_gradients_too() {
    let text = on_disks("8 GB/s", "offload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\" }\n");
    let part = make::parse(&text).job.model().params().total / 8;
    let (read, written) = filed(&make::program(&text));
    // Parameters in fp32, two moments, a gradient; norms are too small for files.
    assert_eq!(read, written);
    assert!(read.abs_diff(16 * part) < 1 << 16, "{read} {part}");
    let host = make::program(&text).host;
    assert!(host.files.0 >= read);
    let flown = make::fly(&text);
    assert!(flown.step.seconds() > 2.0 * read as f64 / 1e9, "{}", flown.step);
}

#[test]
fn the_defaults_of_a_table_in_a_table_are_one_value_that_can_be_written() {
    let text = on_disks("8 GB/s", "offload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\" }\n");
    let open = make::parse(&text).defaults();
    let [(_, aio)] = open.iter().filter(|(key, _)| key == "zero.aio").collect::<Vec<_>>()[..] else {
        panic!("{open:?}")
    };
    let names: Vec<&str> = aio.as_table().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["block_size", "intra_op_parallelism"]);
}

#[test]
fn parameters_on_disks_are_read_for_each_gather_and_written_when_stepped() {
    let files = "{ device = \"nvme\", nvme_path = \"/local_nvme\", max_in_cpu = 0, buffer_count = 40 }";
    let keys = format!(
        "stage3_max_reuse_distance = 0\nstage3_param_persistence_threshold = 5_000\n\
         offload_optimizer.device = \"cpu\"\noffload_param = {files}\n"
    );
    let text = on_disks("8 GB/s", &keys);
    let part = make::parse(&text).job.model().params().total / 8;
    let stays = make::parse(&text.replace(", max_in_cpu = 0", ""));
    assert!(stays.assumption_lines().iter().any(|line| line.contains("has room for all parameters")));
    let (read, written) = filed(&make::program(&text));
    assert!(written.abs_diff(2 * part) < 1 << 16, "{written} {part}");
    // Forward and backward, but what the last module of the forward and the first of the backward share.
    assert!(read > 2 * part + part / 2 && read <= 4 * part, "{read} {part}");
}

#[test]
fn reading_ahead_and_writing_behind_take_no_longer() {
    let step = |more: &str| {
        let table = format!(
            "offload_optimizer = {{ device = \"nvme\", nvme_path = \"/local_nvme\", buffer_count = 12{more} }}"
        );
        make::fly(&on_disks("4 GB/s", &format!("sub_group_size = 10_000_000\n{table}\n"))).step
    };
    let (read, write) = (", pipeline_read = true", ", pipeline_write = true");
    let both = step(&format!("{read}{write}"));
    let alone = step("");
    for one in [step(read), step(write)] {
        assert!(both < one && one < alone, "{both} {one} {alone}");
    }
}

/// What a run of a scenario is refused with.
fn refused(name: &str, text: &str) -> String {
    let folder = Folder::new(&format!("disks-{name}"));
    folder.write("my.toml", text);
    folder.write("config.json", include_str!("tiny/config.json"));
    folder.refuses(&["run", "my.toml"])
}

#[test]
fn a_number_of_buffers_that_is_proposed_is_not_refused_again() {
    let text = |buffers: u64| {
        let files = format!("nvme_path = \"/local_nvme\", max_in_cpu = 0, buffer_count = {buffers}");
        on_disks(
            "8 GB/s",
            &format!(
                "stage3_max_reuse_distance = 9_000_000_000\noffload_optimizer.device = \"cpu\"\n\
                 offload_param = {{ device = \"nvme\", {files} }}\n"
            ),
        )
    };
    for few in [1, 2, 7] {
        let said = refused(&format!("few-{few}"), &text(few));
        assert!(said.contains(&format!("zero.offload_param.buffer_count = {few} is too few")), "{said}");
        let (_, proposed) = said.split_once("write buffer_count = ").unwrap();
        let digits: String = proposed.chars().take_while(char::is_ascii_digit).collect();
        make::parse(&text(digits.parse().unwrap()));
    }
}

#[test]
fn what_disks_have_no_rules_for_is_refused_with_what_to_write() {
    let zero = |old: &str, new: &str| ZERO.replacen(old, new, 1);
    let cases = [
        (
            zero("stage = 2", "stage = 3\noffload_optimizer.device = \"nvme\""),
            "zero.offload_optimizer.device = \"nvme\" without nvme_path",
            "write zero.offload_optimizer.nvme_path",
        ),
        (
            zero("stage = 2", "stage = 2\noffload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\" }"),
            "below stage = 3 DeepSpeed keeps states in the host's memory",
            "device = \"cpu\", or stage = 3",
        ),
        (
            zero("stage = 2", "stage = 3\noffload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\" }"),
            "how fast the disks of a node of h100-sxm-80gb are read and written is not known",
            "node.disk_read and node.disk_write",
        ),
        (
            zero(
                "stage = 2",
                "stage = 3\noffload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\", ratio = 0.5 }",
            ),
            "groups stepped on the device with other groups on disks",
            "remove the key",
        ),
        (
            zero(
                "stage = 2",
                "stage = 3\noffload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\", max_in_cpu = 5 }",
            ),
            "there is no key `max_in_cpu` here",
            "`buffer_count`, `pipeline_read`",
        ),
        (
            on_disks(
                "8 GB/s",
                "sub_group_size = 1_000_000\noffload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\", pipeline_read = true }\n",
            ),
            "buffer_count = 4 is too few for its groups",
            "write buffer_count = 8",
        ),
        (
            on_disks(
                "8 GB/s",
                "offload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\" }\noffload_param = { device = \"nvme\", nvme_path = \"/local_nvme\", buffer_size = 5 }\n",
            ),
            "buffer_size = 5 is less than the largest part",
            "write buffer_size = 65667072",
        ),
        (
            on_disks(
                "8 GB/s",
                "stage3_max_reuse_distance = 9_000_000_000\noffload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\" }\n\
                 offload_param = { device = \"nvme\", nvme_path = \"/local_nvme\", max_in_cpu = 0, buffer_count = 1 }\n",
            ),
            "buffer_count = 1 is too few",
            "write buffer_count = ",
        ),
        (
            zero("stage = 2", "stage = 3\noffload_optimizer.device = \"cpu\"\naio.block_size = 5"),
            "nothing is in files",
            "device = \"nvme\"",
        ),
        (
            zero(
                "stage = 2",
                "stage = 3\noffload_optimizer = { device = \"nvme\", nvme_path = \"/local_nvme\" }\naio.use_gds = true",
            ),
            "zero.aio.use_gds = true has no rules",
            "write false",
        ),
    ];
    for (number, (text, problem, remedy)) in cases.iter().enumerate() {
        let said = refused(&number.to_string(), text);
        assert!(said.contains(problem) && said.contains("--> my.toml:"), "{number}\n{said}");
        assert!(said.contains(remedy), "{number}\n{said}");
    }
}
