//! What the simulated runtime promises, promise by promise.

mod faults;
mod order;
mod suite;
mod time;
