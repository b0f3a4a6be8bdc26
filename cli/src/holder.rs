//! A holder in a few words.

use std::time::SystemTime;

use watchlock::operate::HolderInfo;

use crate::text::plain;

/// Returns a short form of the holder: `billing@web-1:4711 (writer)`, and whether the lock is kept after its release,
/// idle, or detached.
pub(crate) fn who(holder: &HolderInfo) -> String {
    let share = match (holder.access, holder.permits) {
        (Some(access), _) => format!(" ({access})"),
        (None, None | Some(1)) => String::new(),
        (None, Some(permits)) => format!(" ({permits} permits)"),
    };
    let kept = match holder.released {
        Some(_) => " (released, kept taken)",
        None if holder.idle => " (idle)",
        None if holder.detached => " (detached)",
        None => "",
    };
    short(holder.owner.label.as_deref(), &holder.owner.host, holder.owner.pid) + &share + kept
}

/// Returns whether renewals seem to fail: they normally come with four fifths of the lease left.
pub(crate) fn is_at_risk(holder: &HolderInfo, now: SystemTime) -> bool {
    let left = holder.until.duration_since(now).unwrap_or_default();
    // After a hand-over, the time up to the first renewal is shorter.
    let lease = holder
        .until
        .duration_since(holder.since)
        .unwrap_or_default()
        .min(holder.lease);
    // Nobody renews a lock that is kept taken, or detached.
    holder.released.is_none() && !holder.detached && left < lease / 2
}

pub(crate) fn short(label: Option<&str>, host: &str, pid: u32) -> String {
    let host = plain(host);
    match label {
        Some(label) => format!("{}@{host}:{pid}", plain(label)),
        None => format!("{host}:{pid}"),
    }
}

/// Returns the value that a leader proclaims, or why the lock is held.
pub(crate) fn why(holder: &HolderInfo) -> String {
    let said = holder.owner.value.as_ref().or(holder.owner.reason.as_ref());
    said.map_or_else(|| "-".to_owned(), |said| plain(said))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::made_up::some;

    #[test]
    fn a_holder_is_at_risk_with_less_than_half_of_its_lease_left() {
        let (locks, now) = some();
        let of = |given: u64, lease: u64| {
            let mut holder = locks[0].holders[0].clone();
            (holder.since, holder.until) = (now, now + Duration::from_secs(given));
            holder.lease = Duration::from_secs(lease);
            holder
        };
        let at_risk = |holder: &HolderInfo, after| is_at_risk(holder, now + Duration::from_secs(after));
        let granted = of(30, 30);
        assert_eq!([14, 16].map(|after| at_risk(&granted, after)), [false, true]);
        // Handed over a moment ago, and renewed for an hour.
        let (woken, renewed) = (of(5, 30), of(3_600, 30));
        assert_eq!([1, 3].map(|after| at_risk(&woken, after)), [false, true]);
        assert_eq!([3_584, 3_586].map(|after| at_risk(&renewed, after)), [false, true]);
        let mut detached = granted.clone();
        detached.detached = true;
        assert!(!at_risk(&detached, 29));
    }
}
