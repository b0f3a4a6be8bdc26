//! The rules for what users pass in, each in one place: an error names the value and the bound before anything is sent.

mod bounds;
mod bson;
mod invalid;
mod key;
mod text;

pub(crate) use bounds::above;
pub use bounds::{DURATION_MOST, at_least, at_most, below, check_count, check_duration, check_permits, setting};
pub use bson::{DEEPEST, LARGEST, check_document, check_id, check_size};
pub use invalid::InvalidInput;
pub use key::{check_code, check_key};
pub(crate) use text::check_filled;
pub use text::{TEXT_MOST, check_collection, check_database, check_name, check_names, check_path, check_text};
