//! What an answer rests on, in a few digits: two scenarios of which they are the same are predicted alike.

use toml::Value;

use super::paths::relative;
use super::understood::Scenario;
use crate::cost::Profile;
use crate::files::digest;

impl Scenario {
    /// All that a prediction reads: the keys, and what the files hold that they name, as it was read. Another build of the program has
    /// other digits.
    pub(crate) fn asked(&self) -> String {
        let named = self.draft.get("topology.profile").and_then(Value::as_str);
        let profile = named.map_or_else(|| self.topology.profile.clone(), |name| relative(&self.file, name));
        // A shipped profile is part of the program.
        let own = profile.ends_with(".toml").then(|| Profile::text(&profile).map(|(_, text)| text).ok());
        digest(&(self.draft.text(), &self.job, &self.topology, profile, own))
    }
}
