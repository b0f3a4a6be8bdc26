//! A server as a child process with a throw-away folder, and the processor time of a process and its children.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::{net::TcpStream, time};
use uuid::Uuid;

use crate::client::Result;

/// Maximum time from a server's start until it listens.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two questions whether it listens.
const POLL: Duration = Duration::from_millis(20);

/// A folder that goes with its owner.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn create(what: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("watchlock-peers-{what}-{}", Uuid::new_v4().simple()));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a server still writes stays behind in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server. The kernel kills it when this process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    _folder: Folder,
}

impl Process {
    /// Starts the program with `arguments`, as another user where one is given, and waits until it listens.
    pub(crate) async fn start(
        program: &Path,
        arguments: &[String],
        user: Option<&str>,
        folder: Folder,
        port: u16,
    ) -> Result<Self> {
        let path = folder.path().join("log");
        let log = File::create(&path)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(user) = user {
            command.args(["--reuid", user, "--regid", user, "--init-groups"]);
        }
        let child = command
            .arg("--")
            .arg(program)
            .args(arguments)
            .current_dir(folder.path());
        let child = child
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut process = Self { child, _folder: folder };
        let listening = async {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
                if let Some(status) = process.child.try_wait()? {
                    return Err(format!("{} ended: {status}", program.display()).into());
                }
                time::sleep(POLL).await;
            }
            Result::Ok(())
        };
        let listening = time::timeout(PATIENCE, listening).await;
        if let Err(error) = listening.map_err(Into::into).flatten() {
            let log = fs::read_to_string(path).unwrap_or_default();
            return Err(format!("{} does not start: {error}; its log: {log}", program.display()).into());
        }
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port that is free now. Another process may take it before the server does, which then does not start.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Returns the first folder of `PATH` or of `others` that has the program.
pub(crate) fn find(program: &str, others: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(others.iter().cloned());
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns the processor time of the process, of its children, and of their ended ones, in hundredths of a second as
/// the kernel counts it.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let mut ticks = ticks(pid, 4)?;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        // A child that has just ended is counted with its parent.
        ticks += children
            .split_whitespace()
            .filter_map(|child| self::ticks(child.parse().ok()?, 2).ok())
            .sum::<u64>();
    }
    Ok(Duration::from_millis(ticks * 10))
}

/// Returns the processor time of the process alone.
pub(crate) fn own_processor_time(pid: u32) -> Result<Duration> {
    Ok(Duration::from_millis(ticks(pid, 2)? * 10))
}

/// Returns the sum of the first `count` of: user mode, kernel, and both of ended children.
fn ticks(pid: u32, count: usize) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in stat")?;
    // The 14th field of all is the first of these.
    let times = fields.split(' ').skip(11).take(count).map(str::parse::<u64>);
    Ok(times.sum::<std::result::Result<_, _>>()?)
}
