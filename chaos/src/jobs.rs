//! The program `watchlock run` at terminals that stop it, under shells that are killed: it never runs the commands of
//! two at once.
//!
//! Some shells, each at a terminal of its own, start jobs for one lock, in the foreground and in the background. The
//! keyboard stops them (^Z), for shorter or longer than the lease, and the shell lets them go on (`fg`, `bg`); shells
//! are killed with jobs that run, wait or are stopped. Every command records, again and again, when it runs: a line
//! proves that it ran at the moment that was read before. Two overlap if one ran after the other had begun, and before
//! it ended.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde::{Deserialize, Serialize};
use tokio::{
    process::{Child, Command},
    time::sleep,
};
use watchlock_testkit::{Cluster, signal};

use crate::{
    Result,
    clock::{MILLI, Moment, now},
    random::Random,
    record::{self, Log},
};

/// Number of terminals.
const TERMINALS: usize = 4;

/// The lease of the program's lock, in seconds; short, so that it runs out while a job is stopped.
const LEASE: u64 = 2;

/// Pause between two lines of a command.
const WRITE: Duration = Duration::from_millis(5);

/// Maximum time for programs to end at the end of the run.
const FAREWELL: Duration = Duration::from_secs(5);

/// Maximum time for a shell to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum number of overlaps that are printed.
const TOLD: usize = 10;

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Jobs {
    pub(crate) seed: u64,
    pub(crate) lasts: Duration,
    pub(crate) folder: PathBuf,
    /// Whether programs are stopped by SIGSTOP, alone and not at their terminal: the judge has to find the
    /// consequences.
    pub(crate) stops_program: bool,
}

/// A line of a command that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    at: Moment,
    token: i64,
    pid: u32,
}

/// The actions at the terminals.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    started: u64,
    stopped: u64,
    /// Number of stops for longer than a lease.
    stopped_long: u64,
    killed: u64,
}

/// Runs as the command under the lock: writes for a while that it runs.
pub(crate) fn command(file: &Path, lasts: Duration) -> Result<bool> {
    let log = Log::open(file)?;
    let token = env::var("WATCHLOCK_TOKEN")?.parse()?;
    let (begun, pid) = (Instant::now(), std::process::id());
    while begun.elapsed() < lasts {
        log.write(&Line { at: now(), token, pid });
        thread::sleep(WRITE);
    }
    Ok(true)
}

/// Runs and judges. Returns whether no two commands ran at once.
pub(crate) async fn run(jobs: Jobs) -> Result<bool> {
    let program = program()?;
    if jobs.folder.exists() {
        fs::remove_dir_all(&jobs.folder)?;
    }
    fs::create_dir_all(&jobs.folder)?;
    let file = fs::canonicalize(&jobs.folder)?.join("jobs.jsonl");
    let cluster = Cluster::replica_set(1).await?;
    println!("{TERMINALS} terminals, jobs of one lock at each, for {:?}", jobs.lasts);
    let terminals = Terminals {
        program,
        uri: cluster.uri(),
        file: file.clone(),
    };
    let until = Instant::now() + jobs.lasts;
    let terminals = (0..TERMINALS).map(|number| sit(&terminals, &jobs, number, until));
    let done = try_join_all(terminals).await;
    dismiss(&file).await;
    let done = done?;
    let runs = runs(&record::read(&file)?);
    let overlaps = overlaps(&runs);
    let sum = |count: fn(&Done) -> u64| done.iter().map(count).sum::<u64>();
    println!("  {:>5} jobs started", sum(|done| done.started));
    println!("  {:>5} commands ran", runs.len());
    println!(
        "  {:>5} stops, {} of them longer than a lease",
        sum(|done| done.stopped),
        sum(|done| done.stopped_long)
    );
    println!("  {:>5} shells killed", sum(|done| done.killed));
    println!("  {:>5} overlaps", overlaps.len());
    for overlap in overlaps.iter().take(TOLD) {
        println!("  - {overlap}");
    }
    if runs.len() < 2 {
        return Err("hardly any command ran".into());
    }
    Ok(overlaps.is_empty())
}

/// Returns the path of the program, which is beside this one.
fn program() -> Result<PathBuf> {
    let program = match env::var_os("WATCHLOCK_PROGRAM") {
        Some(program) => PathBuf::from(program),
        None => env::current_exe()?.with_file_name("watchlock"),
    };
    if !program.exists() {
        let text = "is not there: `cargo build -p watchlock-cli` makes it, or WATCHLOCK_PROGRAM names it";
        return Err(format!("{} {text}", program.display()).into());
    }
    Ok(program)
}

/// The settings of every terminal.
#[derive(Debug)]
struct Terminals {
    program: PathBuf,
    uri: String,
    file: PathBuf,
}

/// Acts as a person at a terminal, or at one after the other, until the run is over.
async fn sit(terminals: &Terminals, jobs: &Jobs, number: usize, until: Instant) -> Result<Done> {
    let mut random = Random::new(jobs.seed, number as u64);
    let mut done = Done::default();
    let mut terminal = Terminal::new(terminals)?;
    while Instant::now() < until {
        // Some for longer than a lease.
        let ends = random.within(300..6_000);
        let background = if random.chance(30) { " &" } else { "" };
        terminal.type_in(&format!("job {ends}{background}\n"))?;
        done.started += 1;
        sleep(random.millis(100..2_500)).await;
        match random.within(0..10) {
            0 => {
                terminal.kill().await?;
                done.killed += 1;
                terminal = Terminal::new(terminals)?;
            }
            1..6 => {
                let long = random.chance(50);
                let lasts = if long {
                    random.millis(LEASE * 1_000 + 200..LEASE * 3_000)
                } else {
                    random.millis(50..LEASE * 1_000)
                };
                if !background.is_empty() {
                    terminal.type_in("fg\n")?;
                    sleep(random.millis(10..500)).await;
                }
                if jobs.stops_program {
                    stop_programs(terminal.shell().await?, lasts).await;
                } else {
                    terminal.type_in("\u{1a}")?;
                    sleep(lasts).await;
                }
                done.stopped += 1;
                done.stopped_long += u64::from(long);
                if random.chance(15) {
                    terminal.kill().await?;
                    done.killed += 1;
                    terminal = Terminal::new(terminals)?;
                } else {
                    terminal.type_in(if random.chance(70) { "fg\n" } else { "bg\n" })?;
                    sleep(random.millis(50..1_000)).await;
                }
            }
            _ => {}
        }
    }
    terminal.kill().await?;
    Ok(done)
}

/// Stops the programs that a shell has started, for a while, past their own handling of stops.
async fn stop_programs(shell: u32, lasts: Duration) {
    let programs = children(shell);
    for pid in &programs {
        let _ = signal::freeze(*pid);
    }
    sleep(lasts).await;
    for pid in programs {
        let _ = signal::thaw(pid);
    }
}

/// Ends the programs and commands that have outlived their shells, as background jobs do.
async fn dismiss(file: &Path) {
    let name = file.display().to_string();
    let is_ours = |line: String| line.contains(&name) && line.contains("--millis");
    let left = || processes(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(is_ours));
    for pid in left() {
        let _ = signal::terminate(pid);
    }
    let start = Instant::now();
    while !left().is_empty() && start.elapsed() < FAREWELL {
        sleep(Duration::from_millis(100)).await;
    }
    for pid in left() {
        let _ = signal::kill(pid);
    }
}

/// Returns the processes that a process has started.
fn children(parent: u32) -> Vec<u32> {
    let line = format!("PPid:\t{parent}");
    processes(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|other| other == line)
    })
}

fn processes(wanted: impl Fn(&u32) -> bool) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(wanted).collect()
}

/// A terminal with a shell that has job control, in a session of its own.
#[derive(Debug)]
struct Terminal {
    session: Child,
    keyboard: File,
    /// Where the shell has written its process id.
    shell: PathBuf,
}

impl Terminal {
    fn new(terminals: &Terminals) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = ptsname(&master, Vec::new())?;
        let path = path.to_str()?;
        let open = || {
            // Never the terminal of this process.
            let flags = i32::try_from(OpenptFlags::NOCTTY.bits()).unwrap_or(0);
            File::options().read(true).write(true).custom_flags(flags).open(path)
        };
        let shell = terminals.file.with_file_name(format!("shell-{}", now()));
        let (us, program, file) = (env::current_exe()?, &terminals.program, &terminals.file);
        // The shell starts with a function, so that little is typed.
        let job = format!(
            "job() {{ '{}' run --lease {LEASE}s --grace 100ms job -- '{}' job --folder '{}' --millis $1; }}",
            program.display(),
            us.display(),
            file.display()
        );
        let rc = shell.with_extension("rc");
        fs::write(&rc, format!("PS1='$ '\n{job}\necho $$ > '{}'\n", shell.display()))?;
        let session = Command::new("setsid")
            .args(["--ctty", "--wait", "bash", "--noprofile", "--noediting", "--rcfile"])
            .arg(&rc)
            .arg("-i")
            .env("MONGODB_URI", &terminals.uri)
            .env("WATCHLOCK_DATABASE", "jobs")
            .env("TERM", "dumb")
            .stdin(Stdio::from(open()?))
            .stdout(Stdio::from(open()?))
            .stderr(Stdio::from(open()?))
            .kill_on_drop(true)
            .spawn()?;
        let mut screen = File::from(master.try_clone()?);
        // The output is of no interest, but unread output would hold up the writers.
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(1..) = screen.read(&mut part) {}
        });
        Ok(Self {
            session,
            keyboard: File::from(master),
            shell,
        })
    }

    fn type_in(&mut self, keys: &str) -> Result<()> {
        Ok(self.keyboard.write_all(keys.as_bytes())?)
    }

    /// Returns the shell's process id, which it writes to a file when it starts.
    async fn shell(&self) -> Result<u32> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let text = fs::read_to_string(&self.shell).unwrap_or_default();
            if let Ok(pid) = text.trim().parse() {
                return Ok(pid);
            }
            sleep(Duration::from_millis(20)).await;
        }
        Err("a shell did not start".into())
    }

    /// Kills the shell, which is the parent of the programs; the terminal stays for as long as they have it.
    async fn kill(&mut self) -> Result<()> {
        signal::kill(self.shell().await?)?;
        self.session.wait().await?;
        Ok(())
    }
}

/// The time in which a command ran, at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ran {
    from: Moment,
    to: Moment,
    token: i64,
}

/// Returns the runs of commands, in the order in which they began.
fn runs(lines: &[Line]) -> Vec<Ran> {
    let mut runs: BTreeMap<(i64, u32), Ran> = BTreeMap::new();
    for &Line { at, token, pid } in lines {
        let ran = runs.entry((token, pid)).or_insert(Ran {
            from: at,
            to: at,
            token,
        });
        (ran.from, ran.to) = (ran.from.min(at), ran.to.max(at));
    }
    let mut runs: Vec<Ran> = runs.into_values().collect();
    runs.sort_by_key(|ran| ran.from);
    runs
}

/// Returns the commands that began before an earlier one had ended, or under a token that is no larger.
fn overlaps(runs: &[Ran]) -> Vec<String> {
    let mut found = Vec::new();
    let mut last: Option<Ran> = None;
    for &ran in runs {
        if let Some(before) = last
            && (before.to >= ran.from || before.token >= ran.token)
        {
            found.push(format!(
                "the command under token {} began when that under {} went on for {} ms",
                ran.token,
                before.token,
                before.to.saturating_sub(ran.from) / MILLI
            ));
        }
        last = last.filter(|before| before.to > ran.to).or(Some(ran));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_run_at_once_are_found() {
        let line = |at, token| Line { at, token, pid: 1 };
        let play = |lines: &[Line]| overlaps(&runs(lines)).len();
        assert_eq!(play(&[line(1, 1), line(5, 1), line(6, 2), line(9, 2), line(10, 3)]), 0);
        // Stopped for a while, it goes on beside the next.
        assert_eq!(play(&[line(1, 1), line(6, 2), line(8, 1), line(9, 2)]), 1);
        // Beside two others.
        assert_eq!(play(&[line(1, 1), line(6, 2), line(7, 3), line(8, 1)]), 2);
        assert_eq!(play(&[line(1, 2), line(6, 1)]), 1);
    }
}
