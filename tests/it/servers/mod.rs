//! Servers and collections as they may be: privileges, indexes, and documents that others wrote.

mod collections;
mod corrupted;
mod index;
mod privileges;
mod tls;
mod tokens;
mod unknown_names;
mod versions;
