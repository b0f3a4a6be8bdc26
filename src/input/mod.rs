//! The rules for what users pass in, each in one place: an error names the value and the bound before anything is sent.

mod id;
mod invalid;
mod key;
mod path;
mod text;
mod token;

pub(crate) use id::{check_id, check_size};
pub use invalid::InvalidInput;
pub(crate) use key::{check_code, check_key};
pub(crate) use path::check_path;
pub(crate) use text::{TEXT_MOST, check_collection, check_name, check_names, check_prefix, check_text};
