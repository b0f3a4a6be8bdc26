//! Holds: for how long, how they end, and how they stay with a client.

mod detached;
mod expiry;
mod handing_on;
mod idle;
mod limits;
mod renewals;
mod terms;
