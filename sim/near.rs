//! The known names that are nearest to one that nobody knows: what errors ask with "did you mean".
//!
//! Names are compared in small letters, with dashes for spaces and underscores, by the number of characters to insert, delete,
//! replace or swap (Damerau and Levenshtein's distance).

use strsim::damerau_levenshtein;

/// Fewer characters than this are in too many names to mean one of them.
const SHORTEST: usize = 3;

fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace(['_', ' '], "-")
}

/// The known name that `asked` is a part of, else the one fewest edits away, if at most half of it differs.
pub fn nearest<'n>(asked: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let asked = plain(asked);
    let known: Vec<(String, &str)> = known.into_iter().map(|name| (plain(name), name)).collect();
    if let Some((_, name)) = known.iter().find(|(name, _)| asked.len() >= SHORTEST && name.contains(&asked)) {
        return Some(name);
    }
    let edits = known.iter().map(|(plain, name)| (damerau_levenshtein(&asked, plain), *name));
    edits.min().filter(|&(edits, name)| edits <= name.len() / 2).map(|(_, name)| name)
}

/// The known names from the nearest on.
pub fn sorted<'n>(asked: &str, known: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
    let asked = plain(asked);
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_by_key(|name| damerau_levenshtein(&asked, &plain(name)));
    known
}

/// ` (did you mean "x"?)`, or nothing where no known name is near.
pub fn did_you_mean<'n>(asked: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    nearest(asked, known).map_or(String::new(), |name| format!(" (did you mean {name:?}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_letters_that_changed_places_are_one_slip() {
        assert_eq!(nearest("megatorn", ["nanotron", "megatron"]), Some("megatron"));
        assert_eq!(did_you_mean("fdsp2", ["fsdp1", "fsdp2", "xla"]), " (did you mean \"fsdp2\"?)");
    }

    #[test]
    fn a_name_like_none_is_told_none() {
        assert_eq!(nearest("colossal", ["fsdp2", "xla"]), None);
        assert_eq!(did_you_mean("x", ["tp", "pp"]), "");
    }

    #[test]
    fn a_part_of_a_name_means_it() {
        assert_eq!(nearest("H100", ["a100-sxm-80gb", "h100-sxm-80gb"]), Some("h100-sxm-80gb"));
    }
}
