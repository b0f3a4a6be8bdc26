//! Locks for the tests of what shows them.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use watchlock::operate::LockInfo;

/// A lock with a holder and a waiter, one with two holders, and a free one; and the time.
pub(crate) fn some() -> (Vec<LockInfo>, SystemTime) {
    let entry = json!({
        "token": 1_767_268_799_312_000_i64, "access": null, "permits": 1, "since": "2026-01-01T11:59:59.312Z",
        "until": "2026-01-01T12:30:21.500Z", "released": null, "idle": false, "host": "web-1", "pid": 4711,
        "label": "billing", "reason": "monthly run", "value": null, "owner_id": null,
    });
    let lock = |name: &str, kind: &str, holders: &[&Value], waiters: &[&Value]| -> LockInfo {
        let lock = json!({
            "name": name, "kind": kind, "capacity": 2, "token": 7, "holders": holders, "waiters": waiters,
            "as_of": "2026-01-01T12:30:00.000Z",
        });
        serde_json::from_value(lock).unwrap()
    };
    let locks = vec![
        lock("invoice-42", "mutex", &[&entry], &[&entry]),
        lock("nightly-reports", "semaphore", &[&entry, &entry], &[]),
        lock("free", "election", &[], &[]),
    ];
    (locks, SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_270_600))
}
