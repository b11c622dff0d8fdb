//! The planner: a whole search at once, or the two halves of one that is spread over processes.
//!
//! [`Search`] is the half that proves. It looks at all plans, hands out those worth simulating, and takes what was said of them.
//! [`Worker`] is the half that simulates. What goes between them is text, which loses nothing.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rayon::ThreadPool;

use windtunnel::explore::plan::{self, Answer, OnSite, PlanError, Progress, Request, Simulated, json};
use windtunnel::scenario::predict::Floors;

use crate::errors::{raised, unplanned};
use crate::{pool, watch};

/// A machine and the place of a plan in its space.
type Handed = (usize, usize);

/// The answer to a request, as the JSON that `windtunnel plan --json` writes.
#[pyfunction]
#[pyo3(name = "plan", signature = (file, text, exhaustive, progress=None))]
pub fn whole(
    py: Python<'_>,
    file: &str,
    text: &str,
    exhaustive: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let request = read(file, text)?;
    let mut heard = Heard::of(progress);
    py.detach(|| {
        let work = |told: &plan::Told<'_>| plan::plan(request, exhaustive, told).map(|answer| written(&answer));
        watch::search(&*pool::shared()?, work, |news| heard.tell(news))?.map_err(|error| unplanned(&error))
    })
}

/// The half of a search that proves what need not be simulated.
#[pyclass(module = "windtunnel._windtunnel")]
pub struct Search {
    request: Request,
    exhaustive: bool,
    floors: Floors,
    heard: Heard,
    /// Machine by machine.
    sites: Vec<plan::Search>,
}

#[pymethods]
impl Search {
    /// Reads a request.
    #[new]
    #[pyo3(signature = (file, text, exhaustive, progress=None))]
    fn new(file: &str, text: &str, exhaustive: bool, progress: Option<Py<PyAny>>) -> PyResult<Search> {
        let (request, heard) = (read(file, text)?, Heard::of(progress));
        Ok(Search { request, exhaustive, floors: Floors::default(), heard, sites: vec![] })
    }

    /// Looks at all plans of all machines.
    fn look(&mut self, py: Python<'_>) -> PyResult<()> {
        let Search { request, exhaustive, floors, heard, sites } = self;
        sites.clear();
        py.detach(|| {
            for site in &request.sites {
                let work = |told: &plan::Told<'_>| plan::Search::new(request, site, floors, *exhaustive, told);
                sites.push(watch::search(&*pool::shared()?, work, |news| heard.tell(news))?);
            }
            Ok(())
        })
    }

    /// The next plan to simulate. There is none if the bounds of all others are above the last ranked step so far.
    fn next(&mut self) -> Option<Handed> {
        self.sites.iter_mut().enumerate().find_map(|(site, search)| Some((site, search.next(1).pop()?)))
    }

    /// Takes what a worker said of a plan.
    fn hear(&mut self, site: usize, place: usize, said: &str) -> PyResult<()> {
        let said: Simulated = serde_json::from_str(said)
            .map_err(|why| PyValueError::new_err(format!("no worker says {said:?}: {why}")))?;
        let search = self.sites.get_mut(site).ok_or_else(|| PyValueError::new_err(format!("no machine {site}")))?;
        search.hear(place, said);
        self.heard.tell(vec![Progress::Simulated])
    }

    /// The answer, as JSON. It ends the search.
    fn answer(&mut self, py: Python<'_>) -> PyResult<String> {
        let Search { request, exhaustive, floors, heard, sites } = self;
        let found: Vec<plan::Search> = std::mem::take(sites);
        if found.is_empty() {
            return Err(PyRuntimeError::new_err("a search looks at its plans before it answers, and answers once"));
        }
        py.detach(|| {
            let ranked = |(site, search): (_, plan::Search)| OnSite::of(request, site, search.found());
            let on = request.sites.iter().zip(found).map(ranked).collect();
            let work =
                |told: &plan::Told<'_>| plan::answer(request.clone(), on, *exhaustive, floors, (told, &|| false));
            let answer = watch::search(&*pool::shared()?, work, |news| heard.tell(news))?;
            answer.map(|answer| written(&answer)).map_err(|error| unplanned(&error))
        })
    }
}

/// The half of a search that simulates, on one thread.
#[pyclass(module = "windtunnel._windtunnel", frozen)]
pub struct Worker {
    worker: plan::Worker,
    pool: Arc<ThreadPool>,
}

#[pymethods]
impl Worker {
    /// Reads a request, which is the search's.
    #[new]
    fn new(py: Python<'_>, file: &str, text: &str) -> PyResult<Worker> {
        let request = read(file, text)?;
        py.detach(|| Ok(Worker { worker: plan::Worker::new(request), pool: pool::of(1)? }))
    }

    /// Simulates a plan that a search handed out. The text that it returns is for the search to hear.
    fn simulate(&self, py: Python<'_>, handed: Handed) -> PyResult<String> {
        let (site, place) = handed;
        let said = py.detach(|| self.pool.install(|| self.worker.simulate(site, place)));
        let said = said.ok_or_else(|| PyValueError::new_err(format!("machine {site} has no plan {place}")))?;
        let said = said.map_err(|error| raised(&error))?;
        serde_json::to_string(&said).map_err(|why| PyRuntimeError::new_err(why.to_string()))
    }
}

/// How far a search has come, and who is told.
struct Heard {
    told: Option<Py<PyAny>>,
    looked: usize,
    plans: usize,
    simulated: usize,
}

impl Heard {
    fn of(told: Option<Py<PyAny>>) -> Heard {
        Heard { told, looked: 0, plans: 0, simulated: 0 }
    }

    /// Looks at signals, and tells Python.
    fn tell(&mut self, news: Vec<Progress>) -> PyResult<()> {
        let any = !news.is_empty();
        for progress in news {
            match progress {
                Progress::Plans(count) => self.plans += count,
                Progress::Looked => self.looked += 1,
                Progress::Simulated => self.simulated += 1,
                Progress::Decided { .. } => {}
            }
        }
        Python::attach(|py| {
            py.check_signals()?;
            match &self.told {
                Some(told) if any => told.call1(py, (self.looked, self.plans, self.simulated)).map(|_| ()),
                _ => Ok(()),
            }
        })
    }
}

fn read(file: &str, text: &str) -> PyResult<Request> {
    Request::parse(file, text).map_err(|error: PlanError| unplanned(&error))
}

fn written(answer: &Answer) -> String {
    format!("{:#}\n", json::report(answer))
}
