//! The forms of kinds of locks and of ends of holds: their names.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, de::Unexpected};

use crate::protocol::{HoldEnd, Kind, ended, kind};

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let unknown = || de::Error::invalid_value(Unexpected::Str(&text), &"a kind of lock");
        kind::read(&text).ok_or_else(unknown)
    }
}

impl Serialize for HoldEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for HoldEnd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let unknown = || de::Error::invalid_value(Unexpected::Str(&text), &"an end of a hold");
        ended::read(&text).ok_or_else(unknown)
    }
}
