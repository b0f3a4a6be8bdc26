//! Locks for the tests of what shows them.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use watchlock::operate::LockInfo;

/// Locks, one of them with texts that are too long for a narrow terminal, and one with wide characters; and the time.
pub(crate) fn some() -> (Vec<LockInfo>, SystemTime) {
    let entry = |token: i64, since: &str, host: &str, label: Option<&str>, reason: Option<&str>| {
        json!({
            "token": token, "access": null, "permits": 1, "since": since, "until": "2026-01-01T12:30:21.500Z",
            "released": null, "idle": false, "host": host, "pid": 4711, "label": label, "reason": reason,
            "value": null, "owner_id": null,
        })
    };
    let lock = |name: &str, kind: &str, holders: &[Value], waiters: &[Value]| -> LockInfo {
        let lock = json!({
            "name": name, "kind": kind, "capacity": 1, "token": 7, "holders": holders, "waiters": waiters,
            "as_of": "2026-01-01T12:30:00.000Z",
        });
        serde_json::from_value(lock).unwrap()
    };
    let monthly = entry(
        1_767_268_799_312_000,
        "2026-01-01T11:59:59.312Z",
        "web-1",
        Some("billing"),
        Some("monthly run"),
    );
    let since = "2025-12-28T09:00:00.007Z";
    let long = "the accounts of the whole of last year";
    let yearly = entry(
        1_766_912_400_007_000,
        since,
        "batch-17.eu.example.net",
        Some("reports"),
        Some(long),
    );
    let wide = entry(
        1_767_270_345_250_000,
        "2026-01-01T12:25:45.250Z",
        "web-2",
        None,
        Some("夜間バッチ処理の実行 🔒🔒"),
    );
    let locks = vec![
        lock(
            "invoice-42",
            "mutex",
            std::slice::from_ref(&monthly),
            std::slice::from_ref(&yearly),
        ),
        lock("nightly-reports", "semaphore", &[yearly], &[]),
        lock("請求書-42", "mutex", &[wide], &[]),
        lock("free", "election", &[], &[]),
    ];
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_270_600);
    (locks, now)
}
