//! Arguments of operators: read from the profiler's lists of dims, types, strides and values, each different set once.

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

use super::draft::Draft;
use super::id::Id;
use super::parts::{Arg, Name, Signature, Tensor};

/// Arguments as an event has them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written<'a> {
    pub dims: Option<&'a RawValue>,
    pub types: Option<&'a RawValue>,
    pub strides: Option<&'a RawValue>,
    pub values: Option<&'a RawValue>,
}

/// Dims or strides of an argument: of one tensor, or of each in a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Shape {
    One(Vec<i64>),
    List(Vec<Vec<i64>>),
    /// Lists of lists, and whatever else a release may write: no shape that can be used.
    #[allow(dead_code, reason = "it is matched, never read")]
    Other(serde::de::IgnoredAny),
}

/// Kinds of arguments that are no tensor, though their dims are those of a tensor without dimensions.
const NO_TENSOR: [&str; 8] = ["", "Scalar", "ScalarList", "GenericList", "Int", "Bool", "Float", "Device"];

impl Draft {
    /// The signature of these arguments, if there are any dims.
    pub(super) fn signature(&mut self, written: Written<'_>) -> Result<Option<Id<Signature>>, serde_json::Error> {
        let Some(dims) = written.dims else { return Ok(None) };
        fn text(value: Option<&RawValue>) -> &str {
            value.map_or("", RawValue::get)
        }
        // A byte that stands in no JSON keeps the four apart.
        let all = [dims.get(), text(written.types), text(written.strides), text(written.values)].join("\u{1}");
        let known = self.trace.signatures.len();
        let id = self.signatures.id(&all);
        if id.at() < known {
            return Ok(Some(Id::new(id.at())));
        }
        let signature = self.parsed(written, dims)?;
        self.trace.signatures.push(signature);
        Ok(Some(Id::new(id.at())))
    }

    fn parsed(&mut self, written: Written<'_>, dims: &RawValue) -> Result<Signature, serde_json::Error> {
        let dims: Vec<Shape> = list(Some(dims), "Input Dims")?;
        let types: Vec<String> = list(written.types, "Input type")?;
        let strides: Vec<Shape> = list(written.strides, "Input Strides")?;
        let values: Vec<Option<serde_json::Value>> = list(written.values, "Concrete Inputs")?;
        let mut args = vec![];
        let mut strides = strides.into_iter();
        for (at, shape) in dims.into_iter().enumerate() {
            let strides = strides.next();
            let kind = types.get(at).map(String::as_str);
            let is_tensor = kind.is_none_or(|kind| !NO_TENSOR.contains(&kind));
            let value = values.get(at).and_then(Option::as_ref).map(|value| match value {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            let is_list = matches!(shape, Shape::List(_)) || kind.is_some_and(|kind| kind.ends_with("TensorList"));
            let tensors = match (shape, strides) {
                (Shape::List(all), Some(Shape::List(strides))) => {
                    let strides = strides.into_iter().map(Some).chain(std::iter::repeat(None));
                    all.into_iter().zip(strides).map(|(dims, strides)| tensor(&dims, strides)).collect()
                }
                (Shape::List(all), _) => all.iter().map(|dims| tensor(dims, None)).collect(),
                (Shape::One(dims), _) if dims.is_empty() && (!is_tensor || is_list || kind.is_none()) => vec![],
                (Shape::One(dims), Some(Shape::One(strides))) => vec![tensor(&dims, Some(strides))],
                (Shape::One(dims), _) => vec![tensor(&dims, None)],
                (Shape::Other(_), _) => vec![],
            };
            let kind = kind.filter(|kind| !kind.is_empty()).map(|kind| self.names.id(kind));
            let value = value.filter(|value| !value.is_empty()).map(|value| self.names.id(&value));
            args.push(Arg { kind, tensors, is_list, value });
        }
        Ok(Signature { args })
    }
}

fn tensor(dims: &[i64], strides: Option<Vec<i64>>) -> Tensor {
    let strides = strides.filter(|strides| strides.len() == dims.len()).unwrap_or_default();
    Tensor { dims: dims.iter().map(|&size| u64::try_from(size).unwrap_or(0)).collect(), strides }
}

fn list<'a, T: Deserialize<'a>>(value: Option<&'a RawValue>, key: &str) -> Result<Vec<T>, serde_json::Error> {
    let Some(value) = value else { return Ok(vec![]) };
    serde_json::from_str(value.get()).map_err(|error| {
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        serde_json::Error::custom(format!("{key} is no list as the profiler writes it ({what})"))
    })
}

/// Bytes of an element of a type, in any spelling of the profiler's; none for what is no type of tensors.
pub fn element_bytes(kind: &str) -> Option<u64> {
    let name = kind.strip_prefix("c10::").unwrap_or(kind).to_ascii_lowercase();
    match name.as_str() {
        "double" | "long int" | "long" | "long long" | "int64" | "uint64" | "complex<float>" => Some(8),
        "float" | "int" | "int32" | "uint32" | "unsigned int" => Some(4),
        "bfloat16" | "half" | "short" | "short int" | "uint16" => Some(2),
        "bool" | "byte" | "char" | "signed char" | "unsigned char" | "uint8" | "int8" => Some(1),
        _ if name.starts_with("float8_") => Some(1),
        _ => None,
    }
}

/// The name of a type among those of a signature.
pub(super) fn first_type(draft: &Draft, signature: Id<Signature>) -> Option<Id<Name>> {
    let is_type = |kind: &Id<Name>| element_bytes(draft.names.get(*kind)).is_some();
    draft.trace.signatures[signature.at()].args.iter().filter_map(|arg| arg.kind).find(is_type)
}
