//! Events that are left out unparsed, told by how the profiler begins them. Others of their kind are parsed, and left out then.

/// Whether an event is a flow, an instant, or a Python function that is no module: half of all events.
pub(super) fn is_unused(json: &[u8]) -> bool {
    let Some(rest) = value(json.get(1..).unwrap_or_default(), b"\"ph\"") else { return false };
    match rest {
        [b'"', b's' | b't' | b'f' | b'i', b'"', ..] => true,
        [b'"', b'X', b'"', rest @ ..] => {
            let rest = space(rest).strip_prefix(b",").unwrap_or_default();
            let Some(rest) = value(rest, b"\"cat\"") else { return false };
            let Some(rest) = rest.strip_prefix(b"\"python_function\"") else { return false };
            let name = space(rest).strip_prefix(b",").and_then(|rest| value(rest, b"\"name\""));
            name.is_some_and(|name| !name.starts_with(b"\"nn.Module: "))
        }
        _ => false,
    }
}

fn space(text: &[u8]) -> &[u8] {
    text.trim_ascii_start()
}

/// What stands behind a key, if the text begins with it.
fn value<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    Some(space(space(space(text).strip_prefix(key)?).strip_prefix(b":")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_and_functions_are_left_out_and_modules_are_not() {
        for (text, expected) in [
            (&b"{\n    \"ph\": \"s\", \"id\": 5}"[..], true),
            (b"{\"ph\":\"f\",\"cat\":\"ac2g\"}", true),
            (b"{\"ph\": \"X\", \"cat\": \"python_function\", \"name\": \"a.py(1): f\"}", true),
            (b"{\"ph\": \"X\", \"cat\": \"python_function\", \"name\": \"nn.Module: Linear_0\"}", false),
            (b"{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\"}", false),
            (b"{\"cat\": \"ac2g\", \"ph\": \"s\"}", false),
            (b"{}", false),
        ] {
            assert_eq!(is_unused(text), expected, "{}", String::from_utf8_lossy(text));
        }
    }
}
