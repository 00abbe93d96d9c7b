//! Wire to domain and back: the only place that knows both the JSON of `POST /v1/{COMMAND}` and the keyspace's types.
//!
//! `json` reads bytes without losing anything (duplicate fields, fractions), `fields` takes an object apart under the
//! rules every command shares, `request` knows each command's body, `answer` writes results and their extras.
//!
//! Invariants: a body that breaks a rule yields an [`Invalid`] that names field and rule, and nothing else happens; a
//! token is hashed here and goes no further; no integer on the wire reaches 2^53.

mod answer;
mod fields;
mod json;
mod request;
#[cfg(test)]
mod tests;

pub use answer::{Body, Refused, op, page, reply, rfc3339, scalar, snapshot, view};
pub use fields::Invalid;
pub use request::{Kind, Query, Request, node_id, request};

/// One above the greatest integer that every JSON reader keeps exactly.
pub const INTEGER_LIMIT: u64 = 1 << 53;
