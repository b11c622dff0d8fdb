//! Numbers that are no JSON: a copy that took no time has a bandwidth of `inf`, and some releases write it so.

/// How such a number may be written.
const WORDS: [&[u8]; 4] = [b"Infinity", b"inf", b"nan", b"NaN"];

/// The text with empty strings in their place, which are no numbers either, as long as before; none where there are no such numbers.
pub(super) fn finite(json: &[u8]) -> Option<Vec<u8>> {
    let mut text = json.to_vec();
    let (mut in_string, mut is_escaped, mut found) = (false, false, false);
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        if in_string {
            in_string = byte != b'"' || is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
        } else if byte == b'"' {
            in_string = true;
        } else if let Some(word) = WORDS.iter().find(|word| text[at..].starts_with(word)) {
            let start = if at > 0 && text[at - 1] == b'-' { at - 1 } else { at };
            text[start..at + word.len()].fill(b' ');
            text[start..start + 2].fill(b'"');
            at += word.len();
            found = true;
            continue;
        }
        at += 1;
    }
    found.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_no_number_become_empty_strings_and_names_stay() {
        let text = br#"{"name": "inf \" nan", "a": inf, "b": [-inf, NaN], "c": 1}"#;
        let expected = br#"{"name": "inf \" nan", "a": "" , "b": [""  , "" ], "c": 1}"#;
        assert_eq!(finite(text).as_deref(), Some(&expected[..]));
        assert_eq!(finite(br#"{"name": "inf"}"#), None);
    }
}
