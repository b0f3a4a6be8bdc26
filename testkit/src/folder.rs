//! The throw-away folder of a cluster, and the supervisor that clears up after the process.

use std::{
    collections::hash_map::RandomState,
    env,
    fs::{self, DirBuilder},
    hash::BuildHasher,
    io::Write,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::fs::statvfs;

use crate::Error;

/// The supervisor's script. Its standard input is a pipe whose other end only this process holds: first comes the name
/// of the folder, then either `done` or, once this process has gone, however it went, the end of the file.
///
/// It looks for the servers by their command line rather than by ids sent to it. That leaves no moment in which a
/// server has been started without the supervisor's knowledge, and no id that meanwhile belongs to another process. It
/// looks until it has found none twice in a row, as one may have been between fork and exec the first time.
///
/// The folder is kept out of the command lines of the supervisor and of its `grep`, which would match otherwise.
const SUPERVISOR: &str = r#"
trap '' HUP INT QUIT TERM
IFS= read -r folder || exit 1
case $folder in */watchlock-testkit-*) ;; *) exit 1 ;; esac
IFS= read -r word
[ "$word" = done ] && exit 0

mongods() {
    if [ -d /proc/self ]; then
        printf '%s\n' "--dbpath=$folder/" | grep -laFf - /proc/[0-9]*/cmdline 2>/dev/null | tr -dc '0-9\n'
    else
        ps -A -o pid= -o args= | while read -r pid args; do
            case $args in *"--dbpath=$folder/"*) echo "$pid" ;; esac
        done
    fi
}

quiet=0
rounds=0
while [ $quiet -lt 2 ] && [ $rounds -lt 600 ]; do
    pids=$(mongods)
    if [ -n "$pids" ]; then
        quiet=0
        kill -s KILL $pids 2>/dev/null
    else
        quiet=$((quiet + 1))
    fi
    rounds=$((rounds + 1))
    sleep 0.05
done
rm -rf -- "$folder"
"#;

/// The file system of Linux that is in memory, for whoever wants it.
const MEMORY: &str = "/dev/shm";

/// Free memory from which a cluster may have its data there: a server takes 300 MB, most of it for its journal, and
/// tests run a dozen at once.
const ROOM_LEAST: u64 = 6 << 30;

/// A folder that goes with its owner: removed on drop, or by a supervising process if the owner dies without that.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    supervisor: Child,
}

impl Folder {
    /// Creates a folder, in memory where that is allowed and there is room.
    pub(crate) fn create(in_memory: bool) -> Result<Self, Error> {
        let name = format!(
            "watchlock-testkit-{}-{:016x}",
            std::process::id(),
            RandomState::new().hash_one(0)
        );
        let parent = match Path::new(MEMORY) {
            memory if in_memory && env::var_os("TMPDIR").is_none() && has_room(memory) => memory.to_owned(),
            _ => env::temp_dir(),
        };
        let path = parent
            .canonicalize()
            .map_err(|error| Error::caused(format!("there is no temporary folder {}", parent.display()), error))?
            .join(name);

        // Started first, so that no folder exists without something to remove it. Its own process group keeps Ctrl-C
        // at the terminal from it.
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| Error::caused("`sh` could not be started", error))?;
        let told = match &mut supervisor.stdin {
            Some(pipe) => writeln!(pipe, "{}", path.display()),
            None => unreachable!("its standard input is piped"),
        };
        told.map_err(|error| Error::caused("the supervising `sh` ended at once", error))?;

        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Error::caused(format!("cannot create the folder {}", path.display()), error))?;
        Ok(Self { path, supervisor })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether servers can keep their data in this file system, which is in memory.
fn has_room(memory: &Path) -> bool {
    let free = statvfs(memory).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        kibibytes.checked_mul(1024)
    });
    free.min(available.unwrap_or(0)) >= ROOM_LEAST
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The owner of the folder has ended its servers by now. If a file resists, the supervisor tries again.
        let removed = fs::remove_dir_all(&self.path).is_ok();
        if let Some(mut pipe) = self.supervisor.stdin.take()
            && removed
        {
            let _ = writeln!(pipe, "done");
        }
        let _ = self.supervisor.wait();
    }
}
