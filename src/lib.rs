//! tenure: a Raft-replicated, strongly consistent lease store.
//!
//! # Layout
//! - [`keyspace`]: the pure machine of leases
//! - [`edge`]: what a node does for the clients on its sockets
//! - `api`: HTTP/JSON
//! - `node`, `config`: composition of one node
//! - `cli`: the commands of the binary

pub mod api;
pub mod cli;
pub mod config;
pub mod edge;
mod events;
pub mod keyspace;
pub mod node;
