//! What importers make of small configurations, and of broken ones.

use super::{IMPORTERS, Imported, ImportError, Machine, Request, find, import, recognise};

