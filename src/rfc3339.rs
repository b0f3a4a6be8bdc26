//! Times and durations as fields of a serialized form, with the feature `serde`.
//!
//! A time is text: RFC 3339 in UTC with milliseconds, of the same length for every time. A time without such a form
//! becomes the nearest time that has one.

use std::{borrow::Cow, time::SystemTime};

use mongodb::bson::DateTime;
use serde::{
    Deserialize, Deserializer, Serializer,
    de::{Error, Unexpected},
};

/// The last millisecond of the year 9999: RFC 3339 has no form for later times.
const LAST: i64 = 253_402_300_799_999;

pub(crate) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(LAST).min(LAST);
    let text = DateTime::from_millis(millis).try_to_rfc3339_string();
    let text = text.map_err(serde::ser::Error::custom)?;
    // It has no more digits than it needs.
    let text = text.trim_end_matches('Z');
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    serializer.collect_str(&format_args!("{seconds}.{fraction:0<3}Z"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    let invalid = || D::Error::invalid_value(Unexpected::Str(&text), &"a time as in RFC 3339");
    let time = DateTime::parse_rfc3339_str(&text).map_err(|_| invalid())?;
    Ok(time.to_system_time())
}

/// A time that may be missing.
pub(crate) mod option {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Time(#[serde(with = "super")] SystemTime);

    pub(crate) fn serialize<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(Time).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<Time>::deserialize(deserializer)?.map(|time| time.0))
    }
}

/// A duration as a number of milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Ok(Duration::from_millis(u64::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn form(time: SystemTime) -> String {
        let form = serialize(&time, serde_json::value::Serializer).unwrap();
        form.as_str().unwrap().to_owned()
    }

    fn shown(millis: u64) -> String {
        form(SystemTime::UNIX_EPOCH + Duration::from_millis(millis))
    }

    #[test]
    fn times_of_all_ages_have_a_form_and_come_back() {
        for (millis, text) in [
            (1_500, "1970-01-01T00:00:01.500Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST.unsigned_abs(), "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(shown(millis), text);
            let back = deserialize(serde_json::Value::from(text)).unwrap();
            assert_eq!(back, SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        }
        assert_eq!(shown(u64::MAX / 2), "9999-12-31T23:59:59.999Z");
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(form(before), "1970-01-01T00:00:00.000Z");
        assert!(deserialize(serde_json::Value::from("yesterday")).is_err());
    }
}
