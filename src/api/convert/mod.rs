//! Wire to domain and back: the only place that knows both the JSON of `POST /v1/{COMMAND}` and the keyspace's types.
//!
//! `json` reads bytes without losing anything (duplicate fields, fractions), `fields` takes an object apart under the
//! rules every command shares, `request` and what stands beside it know each command's body, `answer` and what stands
//! beside it write results and their extras.
//!
//! Invariants: a body that breaks a rule yields an [`Invalid`] that names field and rule, and nothing else happens; a
//! token is hashed here and goes no further; no integer on the wire reaches 2^53.

mod answer;
mod batch;
mod create;
mod fields;
mod json;
mod operation;
#[cfg(test)]
mod pool_tests;
mod request;
mod slots;
mod snapshot;
#[cfg(test)]
mod tests;

pub use answer::{Body, Refused, holders, op, page, reply, scalar, view};
pub use fields::Invalid;
pub use operation::OPERATIONS;
pub use request::{Kind, Query, Request, node_id, request};
pub use snapshot::{rfc3339, snapshot};

use crate::keyspace::KeyType;

/// One above the greatest integer that every JSON reader keeps exactly.
pub const INTEGER_LIMIT: u64 = 1 << 53;

/// A type of keys, as CREATE takes it and TYPE tells it.
pub const fn type_name(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::Lease => "lease",
        KeyType::Pool => "pool",
    }
}
