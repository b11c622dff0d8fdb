//! What a table says of its own rows' worth: a column `quality`, and sites that the tables' README warns of.
//!
//! The words are those of people who collected rows from logs, issues and documents. A row counts if it is a log, a
//! document or a statement of NCCL's maintainers. It does not if it is doubted by whoever wrote it down, or if what was
//! timed was a framework's call rather than the collective. Rows of any other word are left out too, and the word is named.

/// Words for rows that are taken.
const SOUND: [&str; 5] = ["busbw table", "repo doc", "maintainer statement", "user log", "issue"];

/// Words for rows that are left out, and why. They are looked for first: `user log (mis-tuned?)` is doubted.
const DOUBTED: [(&str, &str); 9] = [
    ("framework-level", "timed through a framework, which adds its own calls"),
    ("torch-level", "timed through a framework, which adds its own calls"),
    ("unverified", "doubted by who collected them"),
    ("mis-tuned", "doubted by who collected them"),
    ("anomalous", "doubted by who collected them"),
    ("suspect", "doubted by who collected them"),
    ("bad", "doubted by who collected them"),
    ("exploratory", "doubted by who collected them"),
    ("n=1 iteration", "of one repetition alone"),
];

/// Sites that the tables' README excludes: a part of the site's name, a part of its configuration's, and why.
const SITES: [(&str, &str, &str); 2] = [
    ("ALCF", "env1", "NCCL ran over TCP there"),
    ("xxrjun", "cluster00", "slow network cards, by the bandwidths of their all-to-all"),
];

/// Why a row is left out; none if it counts.
pub fn doubt(quality: &str, site: &str, config: &str) -> Option<String> {
    let of_site =
        |(name, part, _): &&(&str, &str, &str)| site.contains(name) && (site.contains(part) || config.contains(part));
    if let Some((name, part, why)) = SITES.iter().find(of_site) {
        return Some(format!("of the site {name} {part}: {why}"));
    }
    if let Some((_, why)) = DOUBTED.iter().find(|(word, _)| quality.contains(word)) {
        return Some(format!("{why} (quality `{quality}`)"));
    }
    let sound = quality.is_empty() || SOUND.iter().any(|word| quality.contains(word));
    (!sound).then(|| format!("of a quality that is not known here, `{quality}`: expected {}", SOUND.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::doubt;

    #[test]
    fn logs_and_documents_count_and_doubted_rows_do_not() {
        for sound in ["", "user log", "repo doc", "issue", "maintainer statement", "in-place busbw table, 2 decimals"] {
            assert_eq!(doubt(sound, "", ""), None, "{sound}");
        }
        for (doubted, why) in [
            ("torch-level timing; size decimal MB as stated", "through a framework"),
            ("framework-level (JAX); 8 MB row anomalous", "through a framework"),
            ("user-reported, unverified", "doubted by who collected them (quality `user-reported, unverified`)"),
            ("user log (mis-tuned?)", "doubted"),
            ("n=1 iteration; 16 channels", "one repetition"),
            ("splendid", "not known here, `splendid`: expected busbw table, repo doc"),
        ] {
            assert!(doubt(doubted, "", "").is_some_and(|said| said.contains(why)), "{doubted}");
        }
    }

    #[test]
    fn sites_that_the_tables_warn_of_are_left_out() {
        assert!(doubt("", "ALCF polaris", "nccl_2_18 env1").is_some_and(|why| why.contains("TCP")));
        assert!(
            doubt("", "xxrjun example-cluster00", "pairwise").is_some_and(|why| why.contains("slow network cards"))
        );
        assert_eq!(doubt("", "ALCF polaris", "nccl_2_18 env5"), None);
        assert_eq!(doubt("", "xxrjun example-cluster01", "env1"), None);
    }
}
