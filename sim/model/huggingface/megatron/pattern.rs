//! Lists of layers in Megatron-LM's arguments, such as `([0]*3+[1]*11)`.

/// The longest list.
const MOST: usize = 4096;

/// A sum of lists of numbers, each perhaps repeated: `([0]*3+[1]*11)`.
pub fn list(text: &str) -> Option<Vec<i64>> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(&text);
    let mut out = vec![];
    for part in inner.split('+') {
        let (numbers, times) = part.split_once(']')?;
        let numbers: Option<Vec<i64>> =
            numbers.strip_prefix('[')?.split(',').map(|number| number.parse().ok()).collect();
        let times: usize = if times.is_empty() { 1 } else { times.strip_prefix('*')?.parse().ok()? };
        let numbers = numbers?;
        if out.len().saturating_add(numbers.len().saturating_mul(times)) > MOST {
            return None;
        }
        for _ in 0..times {
            out.extend(&numbers);
        }
    }
    Some(out)
}

/// How many layers at the beginning have no experts, and every how many from there on one has some; none if a list of zeros and ones
/// is otherwise.
pub fn dense_first(flags: &[i64]) -> Option<(u64, u64)> {
    let first = flags.iter().take_while(|flag| **flag == 0).count();
    let rest = flags.get(first..).unwrap_or_default();
    // Layers with experts are every so many: all, every second …
    let every = (1..=4usize).find(|every| rest.iter().enumerate().all(|(at, flag)| (*flag == 1) == (at % every == 0)));
    every.filter(|every| first == 0 || *every == 1).map(|every| (first as u64, every as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_layers_is_written_out() {
        assert_eq!(list("([0]*3+[1]*2)"), Some(vec![0, 0, 0, 1, 1]));
        assert_eq!(list("[0, 1]*2"), Some(vec![0, 1, 0, 1]));
        for wrong in ["", "[0", "[x]*2", "[0]*-1", "[1]*99999999"] {
            assert_eq!(list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_list_begins_with_layers_without_experts() {
        assert_eq!(dense_first(&[0, 0, 1, 1]), Some((2, 1)));
        assert_eq!(dense_first(&[1, 0, 1, 0]), Some((0, 2)));
        assert_eq!(dense_first(&[1, 1, 0, 1]), None);
    }
}
