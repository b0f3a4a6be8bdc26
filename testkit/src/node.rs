//! One `mongod` process.

use std::{
    collections::hash_map::RandomState,
    fs::{self, File, OpenOptions},
    hash::BuildHasher,
    io::{Read, Seek, SeekFrom},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::sleep;

use crate::{Error, clock::Clock, signal};

/// Maximum time from a server's start until it listens, and from a request to end until it has ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two questions to the operating system.
const POLL: Duration = Duration::from_millis(10);

/// Maximum number of log lines in an error.
const LOG_LINES: usize = 20;

/// An argument that a server may not know: it is started without it then.
pub(crate) const QUICK_SHUTDOWN: &str = "--setParameter=shutdownTimeoutMillisForSignaledShutdown=500";

/// One server with its port and data, which stay the same while processes come and go.
#[derive(Debug)]
pub(crate) struct Node {
    program: PathBuf,
    args: Vec<String>,
    folder: PathBuf,
    port: u16,
    clock: Option<Clock>,
    process: Mutex<Option<Process>>,
}

/// A running process. Killed and reaped on drop, so that it goes with its owner, even an unwinding test or a start-up
/// that was abandoned half-way.
#[derive(Debug)]
struct Process {
    child: Child,
    frozen: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The end of a launch.
enum Launch {
    Listening,
    PortTaken,
    /// It does not know [`QUICK_SHUTDOWN`].
    TooOld,
}

impl Node {
    /// Starts a server with its data in `folder` on some free port, and waits until it listens.
    ///
    /// With a library for it the server has a clock of its own.
    pub(crate) async fn start(
        program: &Path,
        folder: PathBuf,
        args: Vec<String>,
        clocks: Option<&Path>,
    ) -> Result<Self, Error> {
        let data = folder.join("data");
        fs::create_dir_all(&data).map_err(|error| Error::caused(format!("cannot create {}", data.display()), error))?;
        let clock = clocks.map(|library| Clock::new(library, &folder)).transpose()?;
        let mut node = Self {
            program: program.to_owned(),
            args,
            folder,
            port: free_port()?,
            clock,
            process: Mutex::new(None),
        };
        // The port may be gone again by the time the server binds it.
        for _ in 0..10 {
            match node.launch().await? {
                Launch::Listening => return Ok(node),
                Launch::PortTaken => node.port = free_port()?,
                Launch::TooOld => node.args.retain(|arg| arg != QUICK_SHUTDOWN),
            }
        }
        Err(Error::new(
            "ten free ports in a row were taken before mongod could bind them",
        ))
    }

    /// Starts the server again, on the port and the data it had.
    pub(crate) async fn restart(&self) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.launch().await? {
                Launch::Listening => return Ok(()),
                Launch::PortTaken if Instant::now() > deadline => {
                    return Err(Error::new(format!("port {} is taken by another process", self.port)));
                }
                Launch::PortTaken => sleep(POLL).await,
                Launch::TooOld => return Err(self.failed("mongod knows its parameters no more")),
            }
        }
    }

    async fn launch(&self) -> Result<Launch, Error> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(|error| Error::caused(format!("cannot open {}", self.log().display()), error))?;
        let before = log.metadata()?.len();
        {
            let mut process = self.process();
            if process.is_some() {
                return Err(Error::new(format!("the node on port {} is running already", self.port)));
            }
            // Its own process group: Ctrl-C at the terminal is for the tests, not for their servers.
            let child = Command::new(&self.program)
                .arg(format!("--dbpath={}", self.folder.join("data").display()))
                .arg(format!("--port={}", self.port))
                .args(["--bind_ip=127.0.0.1", "--nounixsocket"])
                .args(&self.args)
                .envs(self.clock.iter().flat_map(Clock::environment))
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .process_group(0)
                .spawn()
                .map_err(|error| Error::caused(format!("cannot run {}", self.program.display()), error))?;
            *process = Some(Process { child, frozen: false });
        }
        self.until_listening(before).await
    }

    /// Waits until the log reports it. An answer of the port would not do: another process may have taken it.
    async fn until_listening(&self, log_start: u64) -> Result<Launch, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ended = self.has_ended()?;
            let log = self.read_log(log_start);
            if let Some(status) = ended {
                if log.contains("Address already in use") {
                    return Ok(Launch::PortTaken);
                }
                let asked_too_much = self.args.iter().any(|arg| arg == QUICK_SHUTDOWN);
                if asked_too_much && log.contains("Unknown --setParameter 'shutdownTimeoutMillisForSignaledShutdown'") {
                    return Ok(Launch::TooOld);
                }
                return Err(self.failed(&format!("mongod ended with {status}")));
            }
            if log.contains("Waiting for connections") {
                return Ok(Launch::Listening);
            }
            if Instant::now() > deadline {
                drop(self.process().take());
                return Err(self.failed(&format!("mongod did not listen within {PATIENCE:?}")));
            }
            sleep(POLL).await;
        }
    }

    /// Returns the exit status of a process that has ended by itself, which is then forgotten.
    fn has_ended(&self) -> Result<Option<String>, Error> {
        let mut process = self.process();
        let Some(running) = process.as_mut() else {
            return Ok(Some("a kill".to_owned()));
        };
        let status = running.child.try_wait()?;
        if status.is_some() {
            *process = None;
        }
        Ok(status.map(|status| status.to_string()))
    }

    pub(crate) fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the process id, if there is a process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(|process| process.child.id())
    }

    /// Whether there is a process and it is not frozen.
    pub(crate) fn is_awake(&self) -> bool {
        self.process().as_ref().is_some_and(|process| !process.frozen)
    }

    pub(crate) fn kill(&self) {
        drop(self.process().take());
    }

    pub(crate) fn freeze(&self) -> Result<(), Error> {
        self.with_process(|process| {
            signal::freeze(process.child.id())?;
            process.frozen = true;
            Ok(())
        })
    }

    pub(crate) fn thaw(&self) -> Result<(), Error> {
        self.with_process(|process| {
            signal::thaw(process.child.id())?;
            process.frozen = false;
            Ok(())
        })
    }

    pub(crate) async fn shut_down(&self) -> Result<(), Error> {
        self.with_process(|process| Ok(signal::terminate(process.child.id())?))?;
        let deadline = Instant::now() + PATIENCE;
        while self.has_ended()?.is_none() {
            if Instant::now() > deadline {
                return Err(self.failed(&format!("mongod did not shut down within {PATIENCE:?}")));
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    fn with_process<T>(&self, act: impl FnOnce(&mut Process) -> Result<T, Error>) -> Result<T, Error> {
        match self.process().as_mut() {
            Some(process) => act(process),
            None => Err(Error::new(format!("the node on port {} is not running", self.port))),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Returns the log from this byte on; empty if it can't be read.
    fn read_log(&self, start: u64) -> String {
        let mut bytes = Vec::new();
        let read = File::open(self.log()).and_then(|mut file| {
            file.seek(SeekFrom::Start(start))?;
            file.read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }

    /// Returns the last lines of the log.
    fn log_tail(&self, lines: usize) -> String {
        let log = self.read_log(0);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    fn failed(&self, what: &str) -> Error {
        Error::new(format!("{what}; the end of its log:\n{}", self.log_tail(LOG_LINES)))
    }
}

/// Returns a port on which nothing listens at this moment.
///
/// It is below the range from which Linux takes the ports of outgoing connections: one of those might otherwise occupy
/// a node's port by the time the node is restarted.
fn free_port() -> Result<u16, Error> {
    const FIRST: u16 = 12_000;
    const COUNT: u64 = 20_000;
    let random = RandomState::new();
    for attempt in 0..1_000_u32 {
        let offset = random.hash_one(attempt) % COUNT;
        let port = FIRST + u16::try_from(offset).unwrap_or(0);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::new("there is no free port on 127.0.0.1"))
}
