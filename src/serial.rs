//! The forms in which observed locks and their events are serialized, with the feature `serde`: also those of the
//! command line's JSON. Those of other types are derived where these are.
//!
//! The names of the fields are part of the public face. Fields may be added; unknown ones are ignored when they are
//! read. Forms of earlier versions lack some fields, which have a default.

use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{
    inspect::{Access, HolderInfo, LockInfo, PastHold, WaiterInfo},
    locks::rw_lock::PERMITS,
    operate::watch::LockEvent,
    protocol::{HoldEnd, Kind},
    rfc3339,
    token::FencingToken,
};

#[derive(Serialize, Deserialize)]
#[serde(remote = "LockInfo")]
struct LockForm {
    name: String,
    kind: Kind,
    #[serde(with = "known", default = "unknown")]
    capacity: u64,
    token: FencingToken,
    holders: Vec<HolderInfo>,
    waiters: Vec<WaiterInfo>,
    #[serde(default)]
    past: Vec<PastHold>,
    #[serde(with = "rfc3339", default = "epoch")]
    as_of: SystemTime,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "HolderInfo")]
struct HolderForm {
    token: FencingToken,
    access: Option<Access>,
    #[serde(with = "known", default = "unknown")]
    permits: u64,
    #[serde(with = "rfc3339")]
    since: SystemTime,
    #[serde(with = "rfc3339")]
    until: SystemTime,
    #[serde(with = "rfc3339::option", default)]
    released: Option<SystemTime>,
    #[serde(default)]
    idle: bool,
    host: String,
    pid: u32,
    label: Option<String>,
    reason: Option<String>,
    value: Option<String>,
    owner_id: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "WaiterInfo")]
struct WaiterForm {
    access: Option<Access>,
    #[serde(with = "known", default = "unknown")]
    permits: u64,
    #[serde(with = "rfc3339")]
    since: SystemTime,
    #[serde(with = "rfc3339")]
    until: SystemTime,
    host: String,
    pid: u32,
    label: Option<String>,
    reason: Option<String>,
    owner_id: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "PastHold")]
struct PastForm {
    token: FencingToken,
    access: Option<Access>,
    #[serde(with = "known", default = "unknown")]
    permits: u64,
    #[serde(with = "rfc3339")]
    since: SystemTime,
    #[serde(with = "rfc3339")]
    ended: SystemTime,
    how: HoldEnd,
    host: String,
    pid: u32,
    label: Option<String>,
    reason: Option<String>,
    value: Option<String>,
    owner_id: Option<String>,
}

/// The number of permits of a readers-writer lock and of its holders means nothing to anybody else: it is null in the
/// form, and follows from the kind or the access when it is read. In between this stands for it: larger than any number of
/// permits, while a document that another program has written may have none.
const UNKNOWN: u64 = u64::MAX;

fn unknown() -> u64 {
    UNKNOWN
}

mod known {
    use super::UNKNOWN;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        Some(*number).filter(|number| *number != UNKNOWN).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(UNKNOWN))
    }
}

fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

impl Serialize for LockInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut shown = self.clone();
        if self.kind == Kind::RwLock {
            shown.capacity = UNKNOWN;
        }
        LockForm::serialize(&shown, serializer)
    }
}

impl<'de> Deserialize<'de> for LockInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut info = LockForm::deserialize(deserializer)?;
        match info.kind {
            Kind::RwLock if info.capacity == UNKNOWN => info.capacity = PERMITS.unsigned_abs(),
            _ if info.capacity == UNKNOWN => return Err(D::Error::missing_field("capacity")),
            _ => {}
        }
        Ok(info)
    }
}

/// Implements the form of a type with an access and a number of permits.
macro_rules! with_access {
    ($($info:ident as $form:ident),*) => {$(
        impl Serialize for $info {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut shown = self.clone();
                if self.access.is_some() {
                    shown.permits = UNKNOWN;
                }
                $form::serialize(&shown, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $info {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut info = $form::deserialize(deserializer)?;
                if info.permits == UNKNOWN {
                    info.permits = match info.access {
                        Some(Access::Read) => 1,
                        Some(Access::Write) => PERMITS.unsigned_abs(),
                        None => return Err(D::Error::missing_field("permits")),
                    };
                }
                Ok(info)
            }
        }
    )*};
}

with_access!(HolderInfo as HolderForm, WaiterInfo as WaiterForm, PastHold as PastForm);

/// The form of an event of any kind: all have the same fields, so that a script can ask for any.
#[derive(Serialize)]
struct EventForm<'a> {
    event: &'static str,
    token: Option<FencingToken>,
    #[serde(with = "rfc3339::option")]
    until: Option<SystemTime>,
    holder: Option<&'a HolderInfo>,
    waiting: Option<usize>,
    problem: Option<&'a str>,
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
            event,
            token,
            until: None,
            holder: None,
            waiting: None,
            problem: None,
        };
        match self {
            Self::Granted { holder, waiting } => (form.holder, form.waiting) = (Some(holder), Some(*waiting)),
            Self::Kept { until, .. } => form.until = Some(*until),
            Self::Unreadable { problem } => form.problem = Some(problem),
            _ => {}
        }
        form.serialize(serializer)
    }
}
