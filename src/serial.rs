//! The form in which events are serialized, with the feature `serde`: also that of the command line's JSON. The forms
//! of other types are derived where these are.
//!
//! The names of the fields are part of the public face. Fields may be added; unknown ones are ignored when they are
//! read. Forms of earlier versions lack some fields, which have a default.

use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::{inspect::HolderInfo, operate::watch::LockEvent, rfc3339, token::FencingToken};

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
            Self::Granted { holder, waiting } => (form.holder, form.waiting) = (Some(&**holder), Some(*waiting)),
            Self::Kept { until, .. } => form.until = Some(*until),
            Self::Unreadable { problem } => form.problem = Some(problem),
            _ => {}
        }
        form.serialize(serializer)
    }
}
