//! Python's objects as values of a scenario file.

use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyList, PyMapping, PySequence, PyString, PyTuple};
use toml::{Table, Value};

use crate::grid::Axis;

/// Tables in tables, at most. A scenario needs two; a dict may hold itself.
const DEEPEST: usize = 16;

/// A mapping as the table at the top of a file.
pub fn table(keys: &Bound<'_, PyMapping>) -> PyResult<Table> {
    table_at("", keys, 0)
}

/// Keys with the values that each shall take. `None` leaves a key to its default.
pub fn axes(vary: &Bound<'_, PyMapping>) -> PyResult<Vec<Axis>> {
    let mut axes = vec![];
    for pair in vary.items()?.iter() {
        let (key, values): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let key = name("", &key)?;
        let mut all = vec![];
        for given in listed(&values).ok_or_else(|| unfit(&key, &values, "a list of values"))?.try_iter()? {
            let given = given?;
            all.push(if given.is_none() { None } else { Some(value(&key, &given, 0)?) });
        }
        if all.is_empty() {
            return Err(PyValueError::new_err(format!("{key} has no values to take: list at least one")));
        }
        axes.push(Axis { key, values: all });
    }
    Ok(axes)
}

/// The error of an object that no value of a scenario can be made of.
pub fn unfit(what: &str, given: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    let kind = given.get_type().fully_qualified_name().map_or_else(|_| "unknown".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{what} is of type {kind}: write {wanted}"))
}

fn table_at(path: &str, keys: &Bound<'_, PyMapping>, depth: usize) -> PyResult<Table> {
    if depth > DEEPEST {
        return Err(PyValueError::new_err(format!("{path} is nested more than {DEEPEST} tables deep")));
    }
    let mut table = Table::new();
    for pair in keys.items()?.iter() {
        let (key, given): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let key = name(path, &key)?;
        let place = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        table.insert(key, value(&place, &given, depth + 1)?);
    }
    Ok(table)
}

fn name(path: &str, key: &Bound<'_, PyAny>) -> PyResult<String> {
    let whole = if path.is_empty() { "a key".to_owned() } else { format!("a key of {path}") };
    key.cast::<PyString>().map_err(|_| unfit(&whole, key, "a str"))?.extract()
}

/// A list, a tuple or a range; not a text, which is a sequence of its letters.
fn listed<'a, 'py>(given: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PySequence>> {
    let text = given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>();
    given.cast::<PySequence>().ok().filter(|_| !text)
}

/// The items of a list or a tuple.
fn items<'py>(given: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    match given.cast::<PyList>() {
        Ok(list) => Some(list.iter().collect()),
        Err(_) => given.cast::<PyTuple>().ok().map(|tuple| tuple.iter().collect()),
    }
}

fn value(path: &str, given: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if let Ok(flag) = given.cast::<PyBool>() {
        return Ok(Value::Boolean(flag.is_true()));
    }
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(Value::String(text.extract()?));
    }
    if let Ok(number) = given.cast::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if let Ok(keys) = given.cast::<PyMapping>() {
        return Ok(Value::Table(table_at(path, keys, depth)?));
    }
    if let Some(items) = items(given) {
        if depth > DEEPEST {
            return Err(PyValueError::new_err(format!("{path} is nested more than {DEEPEST} lists deep")));
        }
        let values: PyResult<Vec<Value>> = items.iter().map(|item| value(path, item, depth + 1)).collect();
        return values.map(Value::Array);
    }
    // Integers of other libraries, too; not floats, which would lose their fraction.
    if given.hasattr("__index__")? {
        let count: Result<i64, PyErr> = given.extract();
        return count
            .map(Value::Integer)
            .map_err(|_| PyValueError::new_err(format!("{path} is no integer of 64 bits: a scenario has no other")));
    }
    match given.extract::<PathBuf>() {
        Ok(path) => Ok(Value::String(path.display().to_string())),
        Err(_) => Err(unfit(path, given, "a str, int, float, bool, list or dict, or leave the key out")),
    }
}
