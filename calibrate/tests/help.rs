//! The calibrator's half of `docs/commands.md`, and its exit codes.

#[path = "../../tests/help.rs"]
mod page;

const NAME: &str = "windtunnel-calibrate";
const BINARY: &str = env!("CARGO_BIN_EXE_windtunnel-calibrate");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[test]
fn the_page_of_commands_has_the_help_of_every_command() {
    page::the_page_has_the_help_of_every_command(NAME, BINARY, ROOT);
}

#[test]
fn every_exit_code_is_explained() {
    page::every_exit_code_is_explained(NAME, BINARY, ROOT);
}

#[test]
fn quiet_leaves_points_and_errors_and_no_count_of_them() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("quiet");
    std::fs::create_dir_all(&folder).unwrap();
    let table = "op,gpu,nodes,num_gpus,bytes,dtype,time_us,algbw_GBps,busbw_GBps,time_us_inplace,busbw_inplace_GBps,nccl_version,fabric,site,\
                 config,source\nalltoall,H100 80GB HBM3,1.0,8.0,1024,float,13.67,0.0,0.0,13.03,0.0,2.18.3,NVSwitch,DGX,,a/b@c:d\n";
    std::fs::write(folder.join("table.csv"), table).unwrap();
    let run = |line: &str| {
        let mut command = std::process::Command::new(BINARY);
        command.args(line.split(' ')).current_dir(&folder).output().unwrap()
    };
    let (loud, quiet) = (run("import csv table.csv"), run("import csv table.csv --quiet"));
    assert!(loud.status.success() && String::from_utf8_lossy(&loud.stderr).contains("2 points"));
    assert!(quiet.status.success() && quiet.stderr.is_empty() && quiet.stdout == loud.stdout);
    let wrong = run("--quiet import csv missing.csv");
    assert!(wrong.status.code() == Some(2) && String::from_utf8_lossy(&wrong.stderr).contains("missing.csv"));
}
