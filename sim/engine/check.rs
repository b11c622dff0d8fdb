//! Refuses what cannot be run, and what cannot be folded.

use crate::program::{Group, GroupId, Program, Transfer};

use super::{Class, EngineError, Job, Options};

/// Checks a job.
pub(super) fn check(job: Job<'_>, options: Options) -> Result<(), EngineError> {
    for (option, value) in [("steps", options.steps as usize), ("queue_limit", options.queue_limit as usize)] {
        if value == 0 {
            return Err(EngineError::Zero { option });
        }
    }
    let Some(first) = job.classes.first().map(|class| class.program) else {
        return Err(EngineError::Zero { option: "number of classes" });
    };
    if first.ranks == 0 || first.streams.is_empty() {
        return Err(EngineError::Zero { option: "number of ranks or streams" });
    }
    let found = job.class_of.iter().filter(|&&class| (class as usize) < job.classes.len()).count();
    if found != first.ranks as usize || job.class_of.len() != found {
        return Err(EngineError::ClassOf { found, expected: first.ranks, last: job.classes.len() - 1 });
    }
    for (class, Class { program, costs }) in job.classes.iter().enumerate() {
        costs.check(program)?;
        let shared = program.groups.iter().zip(&first.groups).take_while(|(a, b)| a == b).count();
        for (what, found, expected) in [
            ("ranks", program.ranks as usize, first.ranks as usize),
            ("groups", program.groups.len(), first.groups.len()),
            ("groups in common", shared, first.groups.len()),
        ] {
            if found != expected {
                return Err(EngineError::Classes { class, what, found, expected });
            }
        }
    }
    first.groups.iter().try_for_each(|group| tiles(group, first.ranks))?;
    for (class, Class { program, .. }) in job.classes.iter().enumerate() {
        takes_part(job, class, program)?;
    }
    if options.fold && job.classes.len() > 1 { folds(job, first) } else { Ok(()) }
}

/// Checks that copies of a group lie side by side in blocks that fill the job.
fn tiles(group: &Group, ranks: u32) -> Result<(), EngineError> {
    let Group { size, stride, block, .. } = *group;
    let copies = 1..=stride;
    if size == 0 || block == 0 || !copies.contains(&group.copies()) || !ranks.is_multiple_of(block) {
        return Err(EngineError::Group { group: group.name.clone(), size, stride, block, ranks });
    }
    Ok(())
}

/// The groups that a program uses, in order.
fn used(program: &Program) -> Vec<GroupId> {
    let comms = program.comms.iter().map(|comm| comm.group);
    let mut used: Vec<GroupId> = comms.chain(program.transfers.iter().map(|transfer| transfer.group)).collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// The ranks of a class.
fn ranks_of(job: Job<'_>, class: usize) -> impl Iterator<Item = u32> {
    job.class_of.iter().zip(0..).filter(move |&(&of, _)| of as usize == class).map(|(_, rank)| rank)
}

/// Checks that ranks of a class belong to the groups they use, and that their peers are others.
fn takes_part(job: Job<'_>, class: usize, program: &Program) -> Result<(), EngineError> {
    for group in used(program).into_iter().map(|id| program.group(id)).filter(|group| !group.covers()) {
        if let Some(rank) = ranks_of(job, class).find(|&rank| group.place(rank).is_none()) {
            return Err(EngineError::Stranger { group: group.name.clone(), class, rank });
        }
    }
    for transfer in &program.transfers {
        let group = program.group(transfer.group);
        if transfer.ahead == 0 || transfer.ahead >= group.size {
            let (group, last) = (group.name.clone(), group.size - 1);
            return Err(EngineError::Peer { group, ahead: transfer.ahead, last });
        }
    }
    Ok(())
}

/// Checks that all ranks of a class meet the same classes in each group they use, and at each place they exchange
/// messages with.
fn folds(job: Job<'_>, first: &Program) -> Result<(), EngineError> {
    if let Some(class) = (0..job.classes.len()).find(|&class| ranks_of(job, class).next().is_none()) {
        return Err(EngineError::NoRanks { class });
    }
    let class_of = |rank: u32| job.class_of[rank as usize];
    let mut uses: Vec<GroupId> = job.classes.iter().flat_map(|class| used(class.program)).collect();
    uses.sort_unstable();
    uses.dedup();
    let (mut around, mut expected) = (vec![], vec![]);
    for group in uses.into_iter().map(|id| first.group(id)) {
        // Every copy is looked at once, from its lowest member.
        expected.clear();
        expected.resize(job.classes.len(), None::<(u32, Vec<u32>)>);
        for lowest in (0..first.ranks).filter(|&rank| group.place(rank).is_some_and(|place| place.1 == 0)) {
            around.clear();
            around.extend(group.members(lowest).map(class_of));
            around.sort_unstable();
            around.dedup();
            for rank in group.members(lowest) {
                match &mut expected[class_of(rank) as usize] {
                    Some((_, classes)) if *classes == around => {}
                    Some((first, classes)) => {
                        return Err(apart(group, class_of(rank), (*first, classes), (rank, &around)));
                    }
                    none => *none = Some((rank, around.clone())),
                }
            }
        }
    }
    let mut ranks = vec![vec![]; job.classes.len()];
    for (&class, rank) in job.class_of.iter().zip(0..) {
        ranks[class as usize].push(rank);
    }
    for (class, Class { program, .. }) in job.classes.iter().enumerate() {
        // Many messages, few peers.
        let mut looked_at: Vec<(GroupId, u32)> = vec![];
        for &Transfer { group, ahead, .. } in &program.transfers {
            if looked_at.contains(&(group, ahead)) {
                continue;
            }
            looked_at.push((group, ahead));
            let group = program.group(group);
            let mut met = ranks[class].iter().map(|&rank| (rank, group.peer(rank, ahead).map(class_of)));
            let Some((first, Some(expected))) = met.next() else { continue };
            if let Some((rank, Some(found))) = met.find(|&(_, met)| met != Some(expected)) {
                return Err(apart(group, class as u32, (first, &[expected]), (rank, &[found])));
            }
        }
    }
    Ok(())
}

/// Two ranks of a class that meet different classes over a group.
fn apart(group: &Group, class: u32, first: (u32, &[u32]), other: (u32, &[u32])) -> EngineError {
    let list = |classes: &[u32]| {
        let names: Vec<String> = classes.iter().map(u32::to_string).collect();
        format!("{} {}", if names.len() == 1 { "class" } else { "classes" }, names.join(", "))
    };
    EngineError::Fold {
        class,
        group: group.name.clone(),
        first: first.0,
        meets: list(first.1),
        other: other.0,
        instead: list(other.1),
    }
}
