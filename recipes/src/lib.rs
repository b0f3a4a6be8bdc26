//! The recipes of the guide. Each file is shown, word for word, by the page in `docs/recipes`, or in `docs/migrating`, that
//! has its name.

pub mod cron;
pub mod dotnet;
pub mod leader;
pub mod opentelemetry;
pub mod outbox;
pub mod prometheus;
pub mod shedlock;
pub mod web_service;
