//! The rules for what users pass in, each in one place: an error names the value and the bound before anything is sent.

mod bson;
mod duration;
mod id;
mod invalid;
mod key;
mod number;
mod path;
mod text;

pub use bson::{DEEPEST, LARGEST, check_document};
pub(crate) use duration::DURATION_MOST;
pub use duration::{Setting, above, at_least, below, check_duration, check_timeout};
pub(crate) use duration::{at_most, check_hold_watch, check_keep_idle, not_below};
pub use id::{check_id, check_size};
pub use invalid::InvalidInput;
pub use key::{check_code, check_key};
pub use number::{check_attempts, check_claims, check_permits, check_places};
pub(crate) use number::{check_history, check_metered, check_operations};
pub use path::check_path;
pub(crate) use text::check_owner_id;
pub use text::{TEXT_MOST, check_collection, check_database, check_name, check_names, check_prefix, check_text};
