//! Patterns of a table's conditions: `*` stands for any text, `>=`, `<=`, `<` and `>` compare numbers, two of these make a range
//! (`>=4096 <8192`), and the empty pattern matches what is absent.

/// A comparison of two numbers.
type Compare = fn(&f64, &f64) -> bool;

/// Longer signs first, as `>` begins `>=`.
const SIGNS: [(&str, Compare); 4] = [(">=", f64::ge), ("<=", f64::le), (">", f64::gt), ("<", f64::lt)];

/// Whether `pattern` matches what a row holds; `None` is absent.
pub fn matches(pattern: &str, value: Option<&str>) -> bool {
    let Some(value) = value else { return pattern.is_empty() };
    let bounds: Option<Vec<(Compare, f64)>> = pattern.split_whitespace().map(bound).collect();
    match bounds.filter(|bounds| !bounds.is_empty()) {
        Some(bounds) => {
            value.parse::<f64>().is_ok_and(|value| bounds.iter().all(|(holds, bound)| holds(&value, bound)))
        }
        None => glob(pattern, value),
    }
}

/// A comparison with a number.
fn bound(text: &str) -> Option<(Compare, f64)> {
    let (sign, holds) = SIGNS.into_iter().find(|(sign, _)| text.starts_with(sign))?;
    Some((holds, text[sign.len()..].parse().ok()?))
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
        let middle = ">=4096 <8192";
        assert!(matches(middle, Some("6144")) && !matches(middle, Some("8192")) && !matches(middle, Some("2048")));
        assert!(matches("é*", Some("éa")) && !matches("*é", Some("aé ")));
    }
}
