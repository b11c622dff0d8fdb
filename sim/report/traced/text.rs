//! A trace's summary for a person.

use std::fmt;

use super::super::format::{percent, table_within};
use super::super::text::Page;
use super::kernels::KernelRow;
use super::summary::{SpentRow, StepRow, Summary};
use crate::units::{Bytes, Time, thousands};

/// Kernels that are listed.
const KERNELS: usize = 15;
/// Steps that are listed.
const STEPS: usize = 12;
/// Gaps that are listed.
const GAPS: usize = 5;

impl Summary {
    /// The report for a person, on a page so wide, with colours or without.
    pub fn text(&self, width: usize, colour: bool) -> String {
        let mut page = Page::new(width, colour);
        // Writing to a string cannot fail.
        let _ = self.write(&mut page);
        page.text()
    }

    fn write(&self, page: &mut Page) -> fmt::Result {
        page.title(&self.file)?;
        self.what(page)?;
        self.steps(page)?;
        self.time(page)?;
        self.kernels(page)?;
        self.gaps(page)?;
        if !self.unknown.is_empty() {
            page.heading("What the file does not tell")?;
            for note in &self.unknown {
                page.item(note)?;
            }
        }
        Ok(())
    }

    fn what(&self, page: &mut Page) -> fmt::Result {
        page.gap()?;
        page.line("format", self.format)?;
        if let Some(rank) = self.rank {
            let world = self.world.map_or(String::new(), |world| format!(" of {world}"));
            page.line("rank", &format!("{rank}{world}"))?;
        }
        for (count, device) in alike(self) {
            page.line("device", &if count > 1 { format!("{device}, {count} of them") } else { device })?;
        }
        let versions: Vec<String> = self.versions.iter().map(|(what, version)| format!("{what} {version}")).collect();
        if !versions.is_empty() {
            page.line("software", &versions.join(", "))?;
        }
        for group in self.groups.iter().take(8) {
            let purpose = group.purpose.as_ref().map_or(String::new(), |purpose| format!(" ({purpose})"));
            let size = group.size.map_or(String::new(), |size| format!(", {size} ranks"));
            page.line("group", &format!("{}{purpose}{size}", group.name))?;
        }
        let counts = self.counts;
        let kernels = counts.compute + counts.collectives;
        let of = |count: usize| thousands(count as u64);
        page.line(
            "kernels",
            &format!(
                "{}, of these {} collectives; {} have their launch, {} an operator, {} shapes",
                of(kernels),
                of(counts.collectives),
                of(counts.launched),
                of(counts.with_operator),
                of(counts.with_shapes)
            ),
        )?;
        page.line("copies", &of(counts.copies))?;
        page.line("length", &format!("{} from the first event to the last", time(self.duration_ns, 1)))
    }

    fn steps(&self, page: &mut Page) -> fmt::Result {
        page.heading("Steps")?;
        let several = self.steps.iter().any(|step| step.device != self.steps[0].device);
        let row = |step: &StepRow| {
            let spent = step.spent;
            let name = step.name.clone().unwrap_or_else(|| "whole trace".to_owned());
            let ends = if step.is_whole { "" } else { "with its last kernel" };
            vec![
                step.number.to_string(),
                if several { format!("{name}, device {}", step.device) } else { name },
                time(step.host_ns, 1),
                time(spent.total_ns, 1),
                share(sum(&[spent.compute_ns, spent.overlapped_ns]), spent),
                share(spent.exposed_ns, spent),
                share(sum(&[spent.host_late_ns, spent.waiting_ns, spent.unknown_ns]), spent),
                ends.to_owned(),
            ]
        };
        let rows = self.steps.iter().take(STEPS).map(row).collect();
        let header = ["", "mark", "host", "device", "compute", "exposed", "idle", "ends"];
        page.lines(&table_within(&header, rows, &[0, 2, 3, 4, 5, 6], page.width()))?;
        if self.steps.len() > STEPS {
            page.sentence(&format!("{} more are in --json.", self.steps.len() - STEPS))?;
        }
        Ok(())
    }

    fn time(&self, page: &mut Page) -> fmt::Result {
        let (all, windows) = (self.spent, self.chosen.windows as u64);
        page.heading(&format!("Time of one step, {}", self.chosen_text()))?;
        let parts = [
            ("compute", all.compute_ns),
            ("compute beside collectives", all.overlapped_ns),
            ("exposed collectives", all.exposed_ns),
            ("copies alone", all.copies_ns),
            ("idle: the host was late", all.host_late_ns),
            ("idle: launched, and waiting", all.waiting_ns),
            ("idle: launch unknown", all.unknown_ns),
        ];
        let row = |(name, ns): (&str, u64)| vec![name.to_owned(), time(ns, windows), share(ns, all)];
        let mut rows: Vec<Vec<String>> = parts.into_iter().filter(|&(_, ns)| ns > 0).map(row).collect();
        rows.push(row(("step", all.total_ns)));
        page.lines(&table_within(&["", "time", "of step"], rows, &[1, 2], page.width()))?;
        page.gap()?;
        let row = |class: &super::kernels::ClassRow| {
            vec![
                class.class.to_owned(),
                per_step(class.count, windows),
                time(class.time_ns, windows),
                share(class.time_ns, all),
            ]
        };
        let rows = self.classes.iter().map(row).collect();
        page.lines(&table_within(&["kernels", "count", "time", "of step"], rows, &[1, 2, 3], page.width()))?;
        page.sentence("Kernels that run beside each other count each.")
    }

    fn kernels(&self, page: &mut Page) -> fmt::Result {
        page.heading("Kernels with the most time")?;
        let (all, windows) = (self.spent, self.chosen.windows as u64);
        let row = |row: &KernelRow| {
            let operator =
                row.operator.as_ref().filter(|_| !row.shapes.starts_with(row.operator.as_deref().unwrap_or("?")));
            let operator = match (&row.operator, operator) {
                (None, _) => Some("no operator".to_owned()),
                (Some(_), operator) => operator.map(|name| short(name, 60)),
            };
            let words = [operator, Some(row.shapes.clone())];
            let what: Vec<String> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
            vec![
                what.join(" "),
                short(&row.kernel, 40),
                per_step(row.count, windows),
                time(row.time_ns, row.count),
                share(row.time_ns, all),
            ]
        };
        let rows = self.kernels.iter().take(KERNELS).map(row).collect();
        let header = ["operator and shapes", "kernel", "count", "mean", "of step"];
        page.lines(&table_within(&header, rows, &[2, 3, 4], page.width()))
    }

    fn gaps(&self, page: &mut Page) -> fmt::Result {
        if self.host_gaps.is_empty() {
            return Ok(());
        }
        page.heading("What the host did while the device had nothing to do")?;
        let (all, windows) = (self.spent, self.chosen.windows as u64);
        let row = |gap: &super::kernels::GapRow| {
            vec![
                short(&gap.before, 70),
                per_step(gap.count, windows),
                time(gap.time_ns, windows),
                share(gap.time_ns, all),
            ]
        };
        let rows = self.host_gaps.iter().take(GAPS).map(row).collect();
        page.lines(&table_within(&["before", "gaps", "time", "of step"], rows, &[1, 2, 3], page.width()))
    }

    /// Which steps the times are of: "step 12", "the mean of whole steps 10, 11, 12", "the mean of 4 devices in step 0".
    fn chosen_text(&self) -> String {
        let steps = &self.chosen.steps;
        let listed = match steps.as_slice() {
            [only] => format!("step {only}"),
            [first, .., last] if steps.len() > 6 => format!("steps {first} to {last}"),
            _ => format!("steps {}", steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
        };
        let whole = if self.chosen.are_whole && steps.len() > 1 { "whole " } else { "" };
        match self.chosen.windows {
            1 => listed,
            windows if steps.len() == 1 => format!("the mean of {windows} devices in {listed}"),
            windows if windows > steps.len() => format!("the mean of {whole}{listed} and of devices"),
            _ => format!("the mean of {whole}{listed}"),
        }
    }
}

/// Devices that ran something, or all where none did; those with the same words once.
fn alike(summary: &Summary) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = vec![];
    let any = summary.devices.iter().any(|device| device.ran);
    for device in summary.devices.iter().filter(|device| device.ran || !any) {
        let name = device.name.clone().unwrap_or_else(|| "not described".to_owned());
        let sms = device.sms.map_or(String::new(), |sms| format!(", {sms} SMs"));
        let memory = device.memory_bytes.map_or(String::new(), |bytes| format!(", {:.1} GiB", Bytes(bytes).gib()));
        let text = format!("{name}{sms}{memory}");
        match found.iter_mut().find(|(_, known)| *known == text) {
            Some((count, _)) => *count += 1,
            None => found.push((1, text)),
        }
    }
    found
}

/// A time, divided by a count.
fn time(ns: u64, by: u64) -> String {
    Time((u128::from(ns) * 1000 / u128::from(by.max(1))).min(u128::from(u64::MAX)) as u64).to_string()
}

fn sum(times: &[u64]) -> u64 {
    times.iter().fold(0, |all, &time| all.saturating_add(time))
}

fn share(ns: u64, of: SpentRow) -> String {
    format!("{:.1} %", percent(Time(ns), Time(of.total_ns)))
}

fn per_step(count: u64, windows: u64) -> String {
    match count.is_multiple_of(windows.max(1)) {
        true => thousands(count / windows.max(1)),
        false => format!("{:.1}", count as f64 / windows as f64),
    }
}

/// The begin of a name, without what every kernel's name begins with.
fn short(name: &str, most: usize) -> String {
    let name = name.strip_prefix("void ").unwrap_or(name).replace("(anonymous namespace)::", "");
    match name.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name,
    }
}
