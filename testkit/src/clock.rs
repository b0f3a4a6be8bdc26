//! Wall clocks of servers that can be set while they run.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Where Debian and its relatives, and a build from source, install the library.
const PLACES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib64/faketime",
    "/usr/local/lib/faketime",
];

/// Maximum time until a server has noticed that its clock was set.
pub const NOTICED: Duration = Duration::from_secs(1);

/// Returns the library that gives a server a clock of its own (libfaketime's), if there is one: the file that
/// `WATCHLOCK_FAKETIME` names, or the one of the system's package `faketime`.
#[must_use]
pub fn library() -> Option<PathBuf> {
    match env::var_os("WATCHLOCK_FAKETIME").filter(|path| !path.is_empty()) {
        Some(path) => Some(path.into()),
        None => PLACES
            .iter()
            .map(|place| Path::new(place).join("libfaketime.so.1"))
            .find(|path| path.exists()),
    }
}

/// The wall clock of one server. Monotonic time is not affected.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Creates a clock that is right at first, and is set through a file in `folder`.
    pub(crate) fn new(library: &Path, folder: &Path) -> io::Result<Self> {
        let clock = Self {
            library: library.to_owned(),
            file: folder.join("clock"),
        };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it `ahead` milliseconds ahead of the machine's clock; behind it if negative.
    pub(crate) fn set(&self, ahead: i64) -> io::Result<()> {
        let written = self.file.with_extension("new");
        let sign = if ahead < 0 { '-' } else { '+' };
        let (seconds, millis) = (ahead.unsigned_abs() / 1_000, ahead.unsigned_abs() % 1_000);
        fs::write(&written, format!("{sign}{seconds}.{millis:03}\n"))?;
        // So that the server never reads half of it.
        fs::rename(written, &self.file)
    }

    /// Returns the environment of a process that is to use this clock.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 5] {
        [
            ("LD_PRELOAD", self.library.clone().into()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone().into()),
            ("FAKETIME_CACHE_DURATION", NOTICED.as_secs().to_string().into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            // By default the library lets timed waits on the monotonic clock end at once, against a fault of an old
            // glibc. All of the server's threads spin then.
            ("FAKETIME_FORCE_MONOTONIC_FIX", "0".into()),
        ]
    }
}
