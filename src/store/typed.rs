//! Documents as types, the user's and the driver's.

use std::{error::Error as StdError, sync::Arc};

use mongodb::bson::Document;
use serde::{Serialize, de::DeserializeOwned};

use crate::truncated_debug::shown;

/// The reason why a document can't be read as a type.
pub(crate) type Mismatch = Arc<dyn StdError + Send + Sync>;

/// Returns the reason with its beginning and its end: between them `serde` quotes a value of the document, which may be
/// megabytes, and an error of `bson` can show the bytes of it.
fn mismatch(error: &dyn StdError) -> Mismatch {
    const END: usize = 100;

    let text = error.to_string();
    let beginning = shown(&text);
    let rest = text.len().saturating_sub(END).max(beginning.len());
    let end = (rest..text.len()).find_map(|at| text.get(at..));
    Arc::from(Box::<dyn StdError + Send + Sync>::from(
        beginning + end.unwrap_or_default(),
    ))
}

/// Reads a document as the driver's typed collections do.
pub(crate) fn read_as<T: DeserializeOwned>(document: &Document) -> Result<T, Mismatch> {
    let mut bytes = Vec::new();
    let written = document.to_writer(&mut bytes);
    written.map_err(|error| mismatch(&error))?;
    bson::read(&bytes)
}

/// Writes a value as the driver's typed collections do, and reads the result as a document.
pub(crate) fn write_as<T: Serialize>(value: &T) -> Result<Document, Mismatch> {
    let bytes = bson::write(value)?;
    Document::from_reader(&*bytes).map_err(|error| mismatch(&error))
}

/// Reads a document whose texts may not be UTF-8: such bytes are replaced.
pub(crate) fn read_lossily(bytes: &[u8]) -> Option<Document> {
    bson::read_lossily(bytes).ok()
}

/// Reading and writing of types as BSON. The functions for that have different names in each major of the `bson` crate,
/// and only the whole build knows which major the driver uses. A name that a glob import in a block does not provide is
/// looked up outside the block; so each name has a stand-in, which is never called when the crate has the function.
mod bson {
    #![allow(dead_code, deprecated, unused_imports, clippy::wildcard_imports)]

    use std::sync::Arc;

    use mongodb::bson::Document;
    use serde::{Serialize, de::DeserializeOwned};

    use super::{Mismatch, mismatch};

    pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Mismatch> {
        use mongodb::bson::*;
        deserialize_from_slice(bytes).map_err(|error| mismatch(&error))
    }

    pub(super) fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Mismatch> {
        use mongodb::bson::*;
        serialize_to_vec(value).map_err(|error| mismatch(&error))
    }

    pub(super) fn read_lossily(bytes: &[u8]) -> Result<Document, Mismatch> {
        use mongodb::bson::*;
        from_slice_utf8_lossy(bytes).map_err(|error| mismatch(&error))
    }

    /// Stand-in for the function of bson 2.
    fn from_slice_utf8_lossy(bytes: &[u8]) -> Result<Document, StandIn> {
        use mongodb::bson::*;
        read::<Utf8Lossy<Document>>(bytes).map(|read| read.0).map_err(StandIn)
    }

    /// Stand-in for the type of bson 3.
    type Utf8Lossy<T> = (T,);

    /// Stand-in for the function of bson 3.
    fn serialize_to_vec<T: Serialize>(value: &T) -> Result<Vec<u8>, StandIn> {
        use mongodb::bson::*;
        to_vec(value).map_err(|error| StandIn(mismatch(&error)))
    }

    /// Stand-in for the function of bson 2.
    fn to_vec<T: Serialize>(_: &T) -> Result<Vec<u8>, std::fmt::Error> {
        Err(std::fmt::Error)
    }

    /// Stand-in for the function of bson 3.
    fn deserialize_from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StandIn> {
        use mongodb::bson::*;
        from_slice(bytes).map_err(|error| StandIn(mismatch(&error)))
    }

    /// Stand-in for the function of bson 2.
    fn from_slice<T: DeserializeOwned>(_: &[u8]) -> Result<T, std::fmt::Error> {
        Err(std::fmt::Error)
    }

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct StandIn(Mismatch);
}
