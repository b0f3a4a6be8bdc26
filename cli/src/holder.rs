//! A holder in a few words.

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
    short(holder.label.as_deref(), &holder.host, holder.pid) + &share + kept
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
    let said = holder.value.as_ref().or(holder.reason.as_ref());
    said.map_or_else(|| "-".to_owned(), |said| plain(said))
}
