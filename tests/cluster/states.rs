//! Are all nodes of one state? Each shows its own, whole, without asking anybody; at one position they must be equal,
//! field by field.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::http::Http;
use crate::process::eventually;
use checker::Position;

impl Cluster {
    /// Everything the node holds, as it stands on it, and up to which entry: not asked of anybody else.
    fn state(&self, id: u64) -> Option<(u64, Vec<Value>)> {
        let mut http = Http::connect(self.seat(id).client).ok()?;
        let (mut keys, mut cursor, mut position) = (Vec::new(), Value::Null, None);
        loop {
            let mut body = json!({"limit": 1000});
            if cursor != Value::Null {
                body["cursor"] = cursor;
            }
            let json = [("Content-Type", "application/json")];
            let page = http.send("POST", "/v1/SCAN?consistency=stale", &json, &body.to_string()).ok()?;
            let at = page.headers.get("tenure-position")?.clone();
            // The state moved on between two pages.
            if position.get_or_insert_with(|| at.clone()) != &at {
                return None;
            }
            let mut page = page.json()["result"].take();
            keys.append(page["keys"].as_array_mut()?);
            cursor = page["cursor"].take();
            if cursor == Value::Null {
                return Some((Position::parse(&position?)?.index, keys));
            }
        }
    }

    /// Awaits a moment at which all nodes are at one position; their states there must be equal. How many keys there are.
    pub fn states_are_equal(&self) -> usize {
        let states = eventually("all nodes are at one position", || {
            let states: Vec<_> = self.ids().into_iter().map(|id| self.state(id)).collect::<Option<_>>()?;
            states.windows(2).all(|two| two[0].0 == two[1].0).then_some(states)
        });
        for (id, (position, keys)) in self.ids().into_iter().zip(&states) {
            let (_, first) = &states[0];
            for (ours, theirs) in first.iter().zip(keys) {
                assert_eq!(ours, theirs, "node {id} differs at {position}");
            }
            assert_eq!(first.len(), keys.len(), "node {id} has other keys at {position}");
        }
        states[0].1.len()
    }
}
