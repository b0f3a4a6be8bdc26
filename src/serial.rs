//! The forms in which observed locks are serialized, with the feature `serde`: also those of the command line's JSON.
//!
//! The names of the fields are part of the public face. Fields may be added; unknown ones are ignored when they are
//! read.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use mongodb::bson::DateTime;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Unexpected},
    ser::SerializeStruct,
};

use crate::{
    contention::Contention,
    inspect::{Access, HolderInfo, LockInfo, PastHold, WaiterInfo},
    locks::{election::Leader, rw_lock::PERMITS},
    operate::{
        list::{Listing, UnreadableInfo},
        watch::LockEvent,
    },
    protocol::{HoldEnd, Kind},
    token::FencingToken,
};

/// The last millisecond of the year 9999: RFC 3339 has no form for later times.
const LAST: u64 = 253_402_300_799_999;

#[derive(Serialize, Deserialize)]
struct LockForm<'a> {
    name: Cow<'a, str>,
    kind: Kind,
    /// `None` for a readers-writer lock, whose number of permits means nothing to anybody else.
    capacity: Option<u64>,
    token: FencingToken,
    holders: Cow<'a, [HolderInfo]>,
    waiters: Cow<'a, [WaiterInfo]>,
    /// Missing in the forms of earlier versions.
    #[serde(default)]
    past: Cow<'a, [PastHold]>,
    /// The same: their holders were those of the present.
    #[serde(default)]
    as_of: Option<Time>,
}

impl Serialize for LockInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = LockForm {
            name: Cow::Borrowed(&self.name),
            kind: self.kind,
            capacity: (self.kind != Kind::RwLock).then_some(self.capacity),
            token: self.token,
            holders: Cow::Borrowed(&self.holders),
            waiters: Cow::Borrowed(&self.waiters),
            past: Cow::Borrowed(&self.past),
            as_of: Some(Time(self.as_of)),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LockInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = LockForm::deserialize(deserializer)?;
        let capacity = match form.capacity {
            Some(capacity) => capacity,
            None if form.kind == Kind::RwLock => PERMITS.unsigned_abs(),
            None => return Err(D::Error::missing_field("capacity")),
        };
        Ok(Self {
            name: form.name.into_owned(),
            kind: form.kind,
            capacity,
            token: form.token,
            holders: form.holders.into_owned(),
            waiters: form.waiters.into_owned(),
            past: form.past.into_owned(),
            as_of: form.as_of.map_or(SystemTime::UNIX_EPOCH, |time| time.0),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct HolderForm<'a> {
    token: FencingToken,
    access: Option<Access>,
    /// `None` for a readers-writer lock, as its capacity.
    permits: Option<u64>,
    since: Time,
    until: Time,
    /// Missing in the forms of earlier versions.
    #[serde(default)]
    released: Option<Time>,
    #[serde(default)]
    idle: bool,
    host: Cow<'a, str>,
    pid: u32,
    label: Option<Cow<'a, str>>,
    reason: Option<Cow<'a, str>>,
    value: Option<Cow<'a, str>>,
    owner_id: Option<Cow<'a, str>>,
}

impl Serialize for HolderInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = HolderForm {
            token: self.token,
            access: self.access,
            permits: self.access.is_none().then_some(self.permits),
            since: Time(self.since),
            until: Time(self.until),
            released: self.released.map(Time),
            idle: self.idle,
            host: Cow::Borrowed(&self.host),
            pid: self.pid,
            label: borrowed(&self.label),
            reason: borrowed(&self.reason),
            value: borrowed(&self.value),
            owner_id: borrowed(&self.owner_id),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HolderInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = HolderForm::deserialize(deserializer)?;
        Ok(Self {
            token: form.token,
            permits: permits(form.permits, form.access)?,
            access: form.access,
            since: form.since.0,
            until: form.until.0,
            released: form.released.map(|released| released.0),
            idle: form.idle,
            host: form.host.into_owned(),
            pid: form.pid,
            label: owned(form.label),
            reason: owned(form.reason),
            value: owned(form.value),
            owner_id: owned(form.owner_id),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WaiterForm<'a> {
    access: Option<Access>,
    permits: Option<u64>,
    since: Time,
    until: Time,
    host: Cow<'a, str>,
    pid: u32,
    label: Option<Cow<'a, str>>,
    reason: Option<Cow<'a, str>>,
    owner_id: Option<Cow<'a, str>>,
}

impl Serialize for WaiterInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = WaiterForm {
            access: self.access,
            permits: self.access.is_none().then_some(self.permits),
            since: Time(self.since),
            until: Time(self.until),
            host: Cow::Borrowed(&self.host),
            pid: self.pid,
            label: borrowed(&self.label),
            reason: borrowed(&self.reason),
            owner_id: borrowed(&self.owner_id),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WaiterInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = WaiterForm::deserialize(deserializer)?;
        Ok(Self {
            permits: permits(form.permits, form.access)?,
            access: form.access,
            since: form.since.0,
            until: form.until.0,
            host: form.host.into_owned(),
            pid: form.pid,
            label: owned(form.label),
            reason: owned(form.reason),
            owner_id: owned(form.owner_id),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct PastForm<'a> {
    token: FencingToken,
    access: Option<Access>,
    permits: Option<u64>,
    since: Time,
    ended: Time,
    how: HoldEnd,
    host: Cow<'a, str>,
    pid: u32,
    label: Option<Cow<'a, str>>,
    reason: Option<Cow<'a, str>>,
    value: Option<Cow<'a, str>>,
    owner_id: Option<Cow<'a, str>>,
}

impl Serialize for PastHold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = PastForm {
            token: self.token,
            access: self.access,
            permits: self.access.is_none().then_some(self.permits),
            since: Time(self.since),
            ended: Time(self.ended),
            how: self.how,
            host: Cow::Borrowed(&self.host),
            pid: self.pid,
            label: borrowed(&self.label),
            reason: borrowed(&self.reason),
            value: borrowed(&self.value),
            owner_id: borrowed(&self.owner_id),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PastHold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = PastForm::deserialize(deserializer)?;
        Ok(Self {
            token: form.token,
            permits: permits(form.permits, form.access)?,
            access: form.access,
            since: form.since.0,
            ended: form.ended.0,
            how: form.how,
            host: form.host.into_owned(),
            pid: form.pid,
            label: owned(form.label),
            reason: owned(form.reason),
            value: owned(form.value),
            owner_id: owned(form.owner_id),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct EventForm<'a> {
    event: Cow<'a, str>,
    token: Option<FencingToken>,
    until: Option<Time>,
    holder: Option<Cow<'a, HolderInfo>>,
    waiting: Option<usize>,
    problem: Option<Cow<'a, str>>,
}

impl Serialize for LockEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (event, token) = match self {
            Self::Granted { holder, .. } => ("granted", Some(holder.token)),
            Self::Released { token } => ("released", Some(*token)),
            Self::Kept { token, .. } => ("kept", Some(*token)),
            Self::Expired { token } => ("expired", Some(*token)),
            Self::Adopted { token } => ("adopted", Some(*token)),
            Self::Broken { token } => ("broken", Some(*token)),
            Self::Deleted { token } => ("deleted", Some(*token)),
            Self::Unreadable { .. } => ("unreadable", None),
        };
        let mut form = EventForm {
            event: Cow::Borrowed(event),
            token,
            until: None,
            holder: None,
            waiting: None,
            problem: None,
        };
        match self {
            Self::Granted { holder, waiting } => {
                form.holder = Some(Cow::Borrowed(holder));
                form.waiting = Some(*waiting);
            }
            Self::Kept { until, .. } => form.until = Some(Time(*until)),
            Self::Unreadable { problem } => form.problem = Some(Cow::Borrowed(problem)),
            _ => {}
        }
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LockEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EVENTS: &[&str] = &[
            "granted",
            "released",
            "kept",
            "expired",
            "adopted",
            "broken",
            "deleted",
            "unreadable",
        ];
        let form = EventForm::deserialize(deserializer)?;
        let token = form.token.ok_or_else(|| D::Error::missing_field("token"));
        Ok(match &form.event[..] {
            "granted" => Self::Granted {
                holder: form
                    .holder
                    .ok_or_else(|| D::Error::missing_field("holder"))?
                    .into_owned(),
                waiting: form.waiting.ok_or_else(|| D::Error::missing_field("waiting"))?,
            },
            "released" => Self::Released { token: token? },
            "kept" => Self::Kept {
                token: token?,
                until: form.until.ok_or_else(|| D::Error::missing_field("until"))?.0,
            },
            "expired" => Self::Expired { token: token? },
            "adopted" => Self::Adopted { token: token? },
            "broken" => Self::Broken { token: token? },
            "deleted" => Self::Deleted { token: token? },
            "unreadable" => Self::Unreadable {
                problem: form
                    .problem
                    .ok_or_else(|| D::Error::missing_field("problem"))?
                    .into_owned(),
            },
            other => return Err(D::Error::unknown_variant(other, EVENTS)),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct LeaderForm<'a> {
    value: Cow<'a, str>,
    token: FencingToken,
    since: Time,
    host: Cow<'a, str>,
    pid: u32,
    label: Option<Cow<'a, str>>,
}

impl Serialize for Leader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = LeaderForm {
            value: Cow::Borrowed(&self.value),
            token: self.token,
            since: Time(self.since),
            host: Cow::Borrowed(&self.host),
            pid: self.pid,
            label: borrowed(&self.label),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Leader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = LeaderForm::deserialize(deserializer)?;
        Ok(Self {
            value: form.value.into_owned(),
            token: form.token,
            since: form.since.0,
            host: form.host.into_owned(),
            pid: form.pid,
            label: owned(form.label),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct ContentionForm<'a> {
    holders: Cow<'a, [HolderInfo]>,
    waiting_before: usize,
    queue_full: bool,
    held_here: bool,
    as_of: Time,
    /// In milliseconds.
    age_ms: u64,
}

impl Serialize for Contention {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = ContentionForm {
            holders: Cow::Borrowed(&self.holders),
            waiting_before: self.waiting_before,
            queue_full: self.queue_full,
            held_here: self.held_here,
            as_of: Time(self.as_of),
            age_ms: u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Contention {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = ContentionForm::deserialize(deserializer)?;
        Ok(Self {
            holders: form.holders.into_owned(),
            waiting_before: form.waiting_before,
            queue_full: form.queue_full,
            held_here: form.held_here,
            as_of: form.as_of.0,
            age: Duration::from_millis(form.age_ms),
        })
    }
}

impl Serialize for Listing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("Listing", 2)?;
        form.serialize_field("locks", &self.locks)?;
        form.serialize_field("unreadable", &self.unreadable)?;
        form.end()
    }
}

impl Serialize for UnreadableInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("UnreadableInfo", 2)?;
        form.serialize_field("name", &self.name)?;
        form.serialize_field("problem", &self.problem)?;
        form.end()
    }
}

impl Serialize for Access {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl<'de> Deserialize<'de> for Access {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &Cow::<str>::deserialize(deserializer)?[..] {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            other => Err(D::Error::unknown_variant(other, &["read", "write"])),
        }
    }
}

/// A number.
impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.as_i64())
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(i64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A time as text: RFC 3339 in UTC with milliseconds, of the same length for every time. A time without such a form
/// becomes the nearest time that has one.
#[derive(Clone, Copy)]
struct Time(SystemTime);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(LAST).min(LAST);
        let (year, month, day) = date(millis / 86_400_000);
        let of_day = millis % 86_400_000;
        let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1_000 % 60);
        serializer.collect_str(&format_args!(
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
            of_day % 1_000
        ))
    }
}

/// Returns year, month and day of a day since 1970, of no year beyond 9999.
fn date(day: u64) -> (u64, u64, u64) {
    // A year that begins in March ends with its leap day, and 400 of them have the same number of days.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let invalid = || D::Error::invalid_value(Unexpected::Str(&text), &"a time as in RFC 3339");
        let time = DateTime::parse_rfc3339_str(&text).map_err(|_| invalid())?;
        Ok(Self(time.to_system_time()))
    }
}

/// Returns the permits of a holder or a waiter: those of a readers-writer lock follow from its access.
fn permits<E: Error>(permits: Option<u64>, access: Option<Access>) -> Result<u64, E> {
    match (permits, access) {
        (Some(permits), _) => Ok(permits),
        (None, Some(Access::Read)) => Ok(1),
        (None, Some(Access::Write)) => Ok(PERMITS.unsigned_abs()),
        (None, None) => Err(E::missing_field("permits")),
    }
}

fn borrowed(text: &Option<String>) -> Option<Cow<'_, str>> {
    text.as_deref().map(Cow::Borrowed)
}

fn owned(text: Option<Cow<'_, str>>) -> Option<String> {
    text.map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(millis: u64) -> String {
        let time = Time(SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        serde_json::to_value(time).unwrap().as_str().unwrap().to_owned()
    }

    #[test]
    fn times_of_all_ages_have_a_form_and_come_back() {
        for (millis, form) in [
            (1_500, "1970-01-01T00:00:01.500Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(shown(millis), form);
            let back: Time = serde_json::from_value(form.into()).unwrap();
            assert_eq!(back.0, SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        }
        assert_eq!(shown(u64::MAX / 2), "9999-12-31T23:59:59.999Z");
        let before = Time(SystemTime::UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(serde_json::to_value(before).unwrap(), "1970-01-01T00:00:00.000Z");
        assert!(serde_json::from_value::<Time>("yesterday".into()).is_err());
        // Every day of some centuries, by the driver's own calendar.
        for day in (0..200_000).step_by(7) {
            let millis = day * 86_400_000;
            let read = DateTime::parse_rfc3339_str(shown(millis)).unwrap();
            assert_eq!(read.timestamp_millis().unsigned_abs(), millis);
        }
    }
}
