//! What the page claims: its figures are the JSON report's, it loads nothing, names in it are escaped, and its size has a bound.
