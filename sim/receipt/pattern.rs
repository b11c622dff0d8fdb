//! Patterns of a table's conditions: `*` stands for any text, `>=`, `<=`, `<` and `>` compare numbers, and the empty
//! pattern matches what is absent.

/// A comparison of two numbers.
type Compare = fn(&f64, &f64) -> bool;

/// Longer signs first, as `>` begins `>=`.
const SIGNS: [(&str, Compare); 4] = [(">=", f64::ge), ("<=", f64::le), (">", f64::gt), ("<", f64::lt)];

/// Whether `pattern` matches what a row holds; `None` is absent.
pub fn matches(pattern: &str, value: Option<&str>) -> bool {
    let Some(value) = value else { return pattern.is_empty() };
    for (sign, holds) in SIGNS {
        if let Some(bound) = pattern.strip_prefix(sign).and_then(|rest| rest.trim().parse::<f64>().ok()) {
            return value.parse::<f64>().is_ok_and(|value| holds(&value, &bound));
        }
    }
    glob(pattern, value)
}

/// Whether the whole of `text` is `pattern`, where `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => {
            let Some(rest) = text.strip_prefix(head) else { return false };
            (0..=rest.len()).filter(|&at| rest.is_char_boundary(at)).any(|at| glob(tail, &rest[at..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_pattern_is_a_glob_a_comparison_or_an_absence() {
        assert!(matches("", None) && !matches("", Some("x")) && !matches("*", None));
        assert!(
            matches("selective op*", Some("selective op, fp32")) && !matches("selective op", Some("selective ops"))
        );
        assert!(matches("*2024*", Some("April 2024 (nightly)")) && matches("a*b*c", Some("a b b c")));
        assert!(matches(">=128", Some("256")) && !matches(">=128", Some("64")) && !matches(">=128", Some("many")));
        assert!(matches("é*", Some("éa")) && !matches("*é", Some("aé ")));
    }
}
