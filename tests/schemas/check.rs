//! A checker of JSON Schema, as much of it as the shipped schemas use. A word that it does not know is a failure, so that nothing in a
//! schema goes unchecked.

use serde_json::Value;

/// Words that say something to people and editors, and refuse nothing.
const SAID: [&str; 7] = ["$schema", "title", "description", "default", "examples", "format", "definitions"];

/// What a schema has against a value: each with its place.
pub fn against(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = vec![];
    Checker { root: schema }.check(schema, value, "", &mut found);
    found
}

struct Checker<'s> {
    root: &'s Value,
}

impl Checker<'_> {
    fn accepts(&self, schema: &Value, value: &Value) -> bool {
        let mut found = vec![];
        self.check(schema, value, "", &mut found);
        found.is_empty()
    }

    fn check(&self, schema: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
        let words = match schema {
            Value::Bool(true) => return,
            Value::Bool(false) => return found.push(format!("{place}: nothing may stand here")),
            Value::Object(words) => words,
            other => panic!("{other} is no schema"),
        };
        for (word, says) in words {
            let holds = match word.as_str() {
                "type" => match says {
                    Value::Array(types) => types.iter().any(|one| is(one, value)),
                    one => is(one, value),
                },
                "const" => says == value,
                "enum" => says.as_array().unwrap().contains(value),
                "minimum" => value.as_f64().is_none_or(|number| number >= says.as_f64().unwrap()),
                "maximum" => value.as_f64().is_none_or(|number| number <= says.as_f64().unwrap()),
                "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= says.as_u64().unwrap()),
                "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= says.as_u64().unwrap()),
                "anyOf" => says.as_array().unwrap().iter().any(|one| self.accepts(one, value)),
                "oneOf" => says.as_array().unwrap().iter().filter(|one| self.accepts(one, value)).count() == 1,
                "required" => value.as_object().is_none_or(|keys| {
                    says.as_array().unwrap().iter().all(|key| keys.contains_key(key.as_str().unwrap()))
                }),
                "allOf" => {
                    says.as_array().unwrap().iter().for_each(|one| self.check(one, value, place, found));
                    true
                }
                "$ref" => {
                    let path = says.as_str().unwrap().strip_prefix('#').unwrap();
                    let schema = self.root.pointer(path).unwrap_or_else(|| panic!("{path} refers to nothing"));
                    self.check(schema, value, place, found);
                    true
                }
                "items" => {
                    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(says, item, &format!("{place}[{at}]"), found);
                    }
                    true
                }
                "properties" => {
                    for (key, schema) in says.as_object().unwrap() {
                        if let Some(value) = value.get(key) {
                            self.check(schema, value, &format!("{place}.{key}"), found);
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let known = words.get("properties").and_then(Value::as_object);
                    for (key, value) in value.as_object().into_iter().flatten() {
                        if known.is_none_or(|known| !known.contains_key(key)) {
                            self.check(says, value, &format!("{place}.{key}"), found);
                        }
                    }
                    true
                }
                "if" => {
                    if let (true, Some(then)) = (self.accepts(says, value), words.get("then")) {
                        self.check(then, value, place, found);
                    }
                    true
                }
                // Asked with its condition.
                "then" => true,
                said => {
                    assert!(SAID.contains(&said), "the checker does not know {said:?}");
                    true
                }
            };
            if !holds {
                found.push(format!("{place}: {value} against {word} {says}"));
            }
        }
    }
}

/// Whether a value is of a type.
fn is(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("there is no type {other:?}"),
    }
}
