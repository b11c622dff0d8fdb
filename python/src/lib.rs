//! The native half of the Python package `windtunnel`: text in, text out.
//!
//! Python's objects become TOML ([`values`]), a scenario is simulated without the interpreter's lock ([`pool`]), and a prediction goes
//! back as the JSON that `windtunnel run --json` writes. [`grid`] is the one loop over many scenarios, and [`mod@plan`] searches for
//! layouts. Dataclasses, documentation and Ray are in `python/windtunnel/`. To add a function: here, and in `_windtunnel.pyi`.

mod errors;
mod grid;
mod plan;
mod pool;
mod values;
mod watch;

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyMapping;

use windtunnel::scenario::ScenarioError;
use windtunnel::scenario::advice::Advice;
use windtunnel::{Scenario, Settings, files, predict as simulate};

use errors::raised;

/// The name and the text of a file: of a path, or of a mapping with the keys of such a file. `what` it is names a mapping in errors and
/// reports: a scenario or a request.
#[pyfunction]
#[pyo3(signature = (given, what="scenario"))]
fn source(given: &Bound<'_, PyAny>, what: &str) -> PyResult<(String, String)> {
    if let Ok(keys) = given.cast::<PyMapping>() {
        return Ok((what.to_owned(), values::table(keys)?.to_string()));
    }
    let unfit = |_| values::unfit(&format!("the {what}"), given, "a path or a dict");
    let path: PathBuf = given.extract().map_err(unfit)?;
    let file = path.display().to_string();
    let text = files::text(&path).map_err(|error| raised(&ScenarioError::unreadable(&path, &error)))?;
    Ok((file, text))
}

/// The keys of a TOML file, as JSON.
#[pyfunction]
fn keys(text: &str) -> PyResult<String> {
    let keys: toml::Table = text.parse().map_err(|why: toml::de::Error| PyValueError::new_err(why.to_string()))?;
    serde_json::to_string(&keys).map_err(|why| PyValueError::new_err(why.to_string()))
}

/// One prediction, as the JSON that `windtunnel run --json` writes.
#[pyfunction]
fn predict(py: Python<'_>, file: &str, text: &str, remedies: bool, changes: bool) -> PyResult<String> {
    let answer = || -> Result<String, ScenarioError> {
        let scenario = Scenario::proofread(file, text)?;
        let answer = simulate(&scenario, Settings { remedies, ..Settings::default() })?;
        let advice = changes.then(|| Advice::of(&scenario, &answer, |_| ()));
        Ok(format!("{:#}\n", answer.report(&scenario).with(advice.as_ref()).json()))
    };
    py.detach(|| pool::shared()?.install(|| answer().map_err(|error| raised(&error))))
}

/// How many points a grid has.
#[pyfunction]
fn points(vary: &Bound<'_, PyMapping>) -> PyResult<usize> {
    grid::points(&values::axes(vary)?)
}

/// Predictions of part of a grid, `start..stop`, in its order: the last key varies fastest.
#[pyfunction]
#[pyo3(signature = (file, text, vary, start, stop, threads=None, progress=None))]
#[allow(clippy::too_many_arguments, reason = "they are Python's, by name")]
fn sweep(
    py: Python<'_>,
    file: &str,
    text: &str,
    vary: &Bound<'_, PyMapping>,
    start: usize,
    stop: usize,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<grid::Row>> {
    let grid = grid::Grid::of(file, text, values::axes(vary)?)?;
    py.detach(|| {
        let pool = threads.map_or_else(pool::shared, pool::of)?;
        // Signals are looked at and progress is told on the caller's own thread, where Python wants both.
        grid.rows(start..stop, &pool, |done| {
            Python::attach(|py| {
                py.check_signals()?;
                progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (done,)).map(|_| ()))
            })
        })
    })
}

/// Predicts what a training run does to a cluster: see the package `windtunnel`.
#[pymodule]
fn _windtunnel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(source, module)?)?;
    module.add_function(wrap_pyfunction!(keys, module)?)?;
    module.add_function(wrap_pyfunction!(predict, module)?)?;
    module.add_function(wrap_pyfunction!(points, module)?)?;
    module.add_function(wrap_pyfunction!(sweep, module)?)?;
    module.add_function(wrap_pyfunction!(plan::whole, module)?)?;
    module.add_class::<plan::Search>()?;
    module.add_class::<plan::Worker>()?;
    Ok(())
}
