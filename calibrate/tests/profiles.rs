//! The shipped profiles against what the importer writes. The published tables are not in this repository: who has them runs
//! `WINDTUNNEL_COSTS=FOLDER cargo test -p windtunnel-calibrate --test calibrator profiles:: -- --ignored`.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "needs the published tables, in the folder that WINDTUNNEL_COSTS names"]
fn shipped_profiles_are_the_importers_to_the_byte() {
    let costs = std::env::var_os("WINDTUNNEL_COSTS").expect("WINDTUNNEL_COSTS names the folder of published tables");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("profiles");
    fs::create_dir_all(&out).unwrap();
    let importer = Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate"))
        .args(["import", "published", "--from"])
        .arg(costs)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert!(importer.status.success(), "{}", String::from_utf8_lossy(&importer.stderr));
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/cost/profiles");
    let mut checked = 0;
    for file in fs::read_dir(shipped).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let (ours, written) =
            (fs::read_to_string(&path).unwrap(), fs::read_to_string(out.join(path.file_name().unwrap())));
        let written = written.unwrap_or_else(|_| panic!("{}: the importer writes no such profile", path.display()));
        let at = ours.lines().zip(written.lines()).take_while(|(ours, written)| ours == written).count() + 1;
        assert!(ours == written, "{}:{at} is not what the importer writes", path.display());
        checked += 1;
    }
    assert!(checked > 0);
}
