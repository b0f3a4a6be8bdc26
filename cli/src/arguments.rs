//! The definition of the command line.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    str::FromStr as _,
    time::Duration,
};

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use clap_complete::Shell;
use rustix::process::Signal;
use serde::Serialize;
use watchlock::{FencingToken, operate::Kind};

use crate::{
    connection::Connection,
    exit::{self, Outcome},
    json,
    locks::Kept,
    text::exact,
};

/// The lease of a client whose holds all have lengths of their own.
const LEASE: Duration = Duration::from_secs(30);

/// Run commands under distributed locks in MongoDB; see who holds and who waits.
///
/// MONGODB_URI names the server, or --uri does; there is no default. Prefer the variable if the connection string has a
/// password: everybody on the machine can read the arguments of a process.
#[derive(Debug, Parser)]
#[command(name = "watchlock", version, after_help = exit::table(None), max_term_width = 120)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Whether the answer should be JSON.
    #[arg(skip)]
    pub(crate) as_json: bool,
}

/// Reads the command line of this process.
pub(crate) fn read() -> Result<Arguments, clap::Error> {
    let mut whole = Arguments::command();
    let matches = whole.try_get_matches_from_mut(std::env::args_os())?;
    let mut arguments = Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut whole))?;
    // An error for a command that prints none.
    let as_json = matches
        .subcommand()
        .map(|(_, of_command)| of_command.try_get_one("json"));
    arguments.as_json = matches!(as_json, Some(Ok(Some(true))));
    Ok(arguments)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Elect(Elect),
    Hold(Hold),
    #[command(visible_alias = "lock")]
    Acquire(Acquire),
    Renew(Renew),
    #[command(visible_alias = "unlock")]
    Release(Release),
    Wait(Wait),
    Observe(Observe),
    #[command(visible_alias = "list")]
    Ls(List),
    Show(Show),
    Watch(Watch),
    Break(Break),
    Permits(Permits),
    Doctor(Doctor),
    Verify(Verify),
    Bench(Bench),
    /// Print the completions of a shell
    ///
    /// For bash: watchlock completions bash > ~/.local/share/bash-completion/completions/watchlock
    #[command(after_help = exit::table(Some("completions")))]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, of watchlock or of one of its commands
    ///
    /// To read it: watchlock man | man -l -
    ///
    /// To install all of them: watchlock man --into ~/.local/share/man/man1
    #[command(after_help = exit::table(Some("man")))]
    Man {
        /// A command of watchlock
        command: Option<String>,
        /// Write the pages of watchlock and of all its commands into this folder
        #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
        into: Option<PathBuf>,
    },
}

/// Run a command while holding a lock
///
/// Waits for its turn, first come, first served; runs the command; releases the lock when the command has ended,
/// whether it succeeded or not, and regardless of processes that it leaves running. Exits with the command's code, or
/// with 128 plus the number of the signal that ended it. At a terminal, one line shows the queue position, the holder of
/// the lock, for how long, and why.
///
/// The command finds the fencing token of its grant in WATCHLOCK_TOKEN, a number that rises with every grant, and the
/// name of the lock in WATCHLOCK_NAME. With --and, WATCHLOCK_TOKENS has the tokens of all locks, as a JSON object by
/// name. MONGODB_URI is removed from its environment, as it often has a password; --keep-uri keeps it. A watchlock that
/// the command starts needs it, or its own --uri: without a server it refuses to run.
///
/// If the lock is lost (its lease could not be renewed, or an operator broke it), the command is terminated, together
/// with the processes it started: with SIGTERM, and any remaining ones with SIGKILL after --grace; a stopped one with
/// SIGKILL at once. On Linux that reaches every descendant, elsewhere the process group. If some can't be killed within
/// two more seconds, watchlock names them and exits with 76 without waiting for them. On Linux the command is killed
/// when watchlock itself is killed; the processes that it started are not.
///
/// However it ends, watchlock takes back what it has sent: its queue position, or the lock. If the server does not
/// confirm that within 3s (a release: within a lease, or within 3s if a second request to end comes), a message says
/// for how long the lock may stay taken.
///
/// The command has its own process group. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the whole group, SIGUSR1
/// and SIGUSR2 to the command. Signals that watchlock was started to ignore (nohup) stay ignored; signals that its
/// parent has blocked are unblocked; SIGPIPE is at its default.
///
/// In the foreground of a terminal the command gets the terminal: it can read from it, and ^C, ^\ and ^Z reach it. In a
/// pipeline it gets the terminal when it asks for it, as a pager next to it may need it too. ^Z stops first the command
/// and then watchlock, as nobody renews the lock of a stopped program. When the shell continues watchlock (fg, bg), it
/// checks the lock before the command goes on; if the lock is lost, the command is killed while still stopped. SIGSTOP
/// to watchlock alone can't be caught: the command goes on until watchlock is continued, or killed.
///
/// A command that takes the identity of another user (sudo, other setuid programs) loses its tie to watchlock: it is
/// not killed with it, and watchlock can't end it when the lock is lost. Run watchlock as that user instead.
#[derive(Args, Debug, Default)]
#[command(after_help = exit::table(Some("run")), override_usage = "watchlock run [OPTIONS] <NAME> [--] <COMMAND>...")]
pub(crate) struct Run {
    /// The name of the lock: any text of 1 to 1,024 bytes
    #[arg(value_parser = lock_name)]
    pub(crate) name: String,
    /// Also hold this lock: all of them or none, without deadlock in any order; can be given several times
    #[arg(long, value_name = "NAME", value_parser = lock_name,
        conflicts_with_all = ["semaphore", "read", "write", "at_least_for", "once_per"])]
    pub(crate) and: Vec<String>,
    /// The value to proclaim as the leader of an election, for `elect`
    #[arg(skip)]
    pub(crate) value: Option<String>,
    /// How long to hold the lock without renewals, for `acquire`
    #[arg(skip)]
    pub(crate) fixed: Option<Duration>,
    #[command(flatten)]
    pub(crate) share: Share,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) holder: Signature,
    #[command(flatten)]
    pub(crate) renewed: Renewed,
    /// Keep the lock taken for at least this long after its grant, even if the command ends sooner (5m)
    ///
    /// Use it for short jobs that several hosts start at about the same time: with --try, the later ones find the lock
    /// taken although the first is done. This also applies if the command fails or watchlock dies, as the lease is no
    /// shorter. `show` says until when the lock is kept taken, and `break` opens it.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) at_least_for: Option<Duration>,
    /// Report on standard error if the lock is held for longer than this (2h), once; it stays held
    ///
    /// To end the command then, run it under timeout(1): watchlock run nightly -- timeout 2h ./backup.sh
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) warn_after: Option<Duration>,
    /// Give the lock up once it has been held for this long (3h): the command is then terminated, as if it were lost
    ///
    /// The next holder may begin while this command has up to --grace to end.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) lose_after: Option<Duration>,
    /// Run the command at most once in each period, among all hosts (1h, 1day, 7days); otherwise exit with 74
    ///
    /// Periods are windows by the server's clock: with 1h from each full hour to the next, with 1day from midnight to
    /// midnight UTC, with 7days from Thursday to Thursday (with --offset 4days from Monday). The run counts for the
    /// window in which it began. With --since-success there are no windows. If the command fails (any exit code but 0),
    /// the period stays open for the next run. While another run is in progress, this one exits with 75 and does not
    /// wait.
    ///
    /// A timer that fires right at the boundary of two windows starts some hosts before it and others after it, which
    /// uses up both windows. So it must fire far from offset + n x period, in UTC: move the windows with --offset. A
    /// daily job whose timer fires around midnight UTC needs --once-per 1day --offset 12h.
    #[arg(long, value_name = "DURATION", value_parser = period,
        conflicts_with_all = ["timeout", "semaphore", "read", "write", "at_least_for"])]
    pub(crate) once_per: Option<Duration>,
    /// With --once-per: begin the windows this much after the full hour, midnight and so on
    #[arg(long, value_name = "DURATION", requires = "once_per", conflicts_with = "since_success", value_parser = period)]
    pub(crate) offset: Option<Duration>,
    /// With --once-per: the period begins when the command has succeeded, instead of at fixed times
    #[arg(long, requires = "once_per")]
    pub(crate) since_success: bool,
    /// With --once-per: a command that fails counts as well, and is not run again in the same period
    #[arg(long, requires = "once_per")]
    pub(crate) failures_count: bool,
    /// With --once-per: exit with this code instead of 74 if the command was run in this period already (0 for cron)
    #[arg(long, value_name = "CODE", requires = "once_per", default_value_t = exit::RAN_ALREADY)]
    pub(crate) ran_exit_code: u8,
    #[command(flatten)]
    pub(crate) care: Care,
    #[command(flatten)]
    pub(crate) voice: Voice,
    /// Run this line with sh instead of a command: -c 'cd /srv && ./backup.sh'
    #[arg(short = 'c', value_name = "LINE", conflicts_with = "command")]
    pub(crate) line: Option<OsString>,
    /// The command and its arguments; everything after its name belongs to the command, and `--` may precede it
    #[arg(trailing_var_arg = true, required_unless_present = "line", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The part of a lock that is asked for.
#[derive(Args, Debug, Default)]
pub(crate) struct Share {
    /// Do not wait: exit with 75 if the lock is not free
    #[arg(long = "try", short = 'n', conflicts_with = "timeout")]
    pub(crate) once: bool,
    /// Take permits of a semaphore, instead of a mutex; it has N of them unless it has another number already
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) semaphore: Option<u32>,
    /// The number of permits to take from the semaphore
    #[arg(long, value_name = "N", default_value_t = 1, requires = "semaphore", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: u32,
    /// Hold a readers-writer lock as one of its readers
    #[arg(long, conflicts_with_all = ["semaphore", "write"])]
    pub(crate) read: bool,
    /// Hold a readers-writer lock as its writer
    #[arg(long, conflicts_with = "semaphore")]
    pub(crate) write: bool,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Patience {
    /// Wait at most this long for the lock (5s, 2m), then exit with 75; with 0s, do not wait
    ///
    /// While the server does not answer, it may take some seconds longer.
    #[arg(long, short = 't', value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Exit with this code instead of 75
    #[arg(long, short = 'E', value_name = "CODE", default_value_t = exit::NOT_OBTAINED)]
    pub(crate) conflict_exit_code: u8,
}

/// The texts by which others recognize the holder.
#[derive(Args, Debug, Default)]
pub(crate) struct Signature {
    /// Why the lock is held, for others to read [default: the name of the program that is run, if any; "" for nothing]
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// A name of the holder, for others to read, in addition to host and process id
    #[arg(long, value_name = "TEXT", env = "WATCHLOCK_LABEL")]
    pub(crate) label: Option<String>,
}

/// A hold that watchlock renews as long as it lives.
#[derive(Args, Debug, Default)]
pub(crate) struct Renewed {
    /// A stable name of this job: a later run with it takes the lock from an earlier one at once
    ///
    /// Use it for a job that is restarted after a crash and must not wait for the lease of its previous run. A previous
    /// run that is still alive loses the lock, so no two jobs may share an id.
    #[arg(long, value_name = "TEXT")]
    pub(crate) owner_id: Option<String>,
    /// How long the lock outlives watchlock's last sign of life
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) lease: Duration,
}

/// The treatment of the command.
#[derive(Args, Debug, Default)]
pub(crate) struct Care {
    /// How long the command has to end after SIGTERM if the lock is lost, before SIGKILL
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) grace: Duration,
    /// Send this signal (USR1, TERM, 10) to the command once, as soon as somebody else waits for the lock
    ///
    /// For a long job that can stop early, or between two parts of its work, in favor of others. The lock stays held
    /// until the command ends. A leader steps aside in the same way.
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub(crate) wanted: Option<Signal>,
    /// Keep the connection string in the environment of the command
    ///
    /// MONGODB_URI often has a password, and every program that the command starts would see it. So it is removed,
    /// unless the command needs it, for example to call watchlock itself.
    #[arg(long)]
    pub(crate) keep_uri: bool,
}

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Voice {
    /// Print only what went wrong: not that the lock was not free or the command was run already, which the exit code
    /// tells
    #[arg(long, short = 'q', conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Also print when the lock is acquired and when it is released, and without a terminal whom it waits for
    #[arg(long, short = 'v')]
    pub(crate) verbose: bool,
}

/// Run a command while leading an election
///
/// Campaigns until elected, proclaims --value, runs the command, and resigns when it has ended. Everything else is as
/// for `watchlock run`: the command is terminated if the lead is lost, and finds its fencing token in WATCHLOCK_TOKEN.
/// A supervisor that restarts this command (systemd with Restart=always) makes it campaign again.
///
/// `watchlock observe` shows who leads.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("elect")), override_usage = "watchlock elect [OPTIONS] <NAME> [--] <COMMAND>...")]
pub(crate) struct Elect {
    /// The name of the election: any text of 1 to 1,024 bytes
    #[arg(value_parser = lock_name)]
    name: String,
    /// The value to proclaim, up to 1,024 bytes, for others to read: an address, a version
    #[arg(long, value_name = "TEXT", default_value = "")]
    value: String,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    leader: Signature,
    #[command(flatten)]
    renewed: Renewed,
    #[command(flatten)]
    care: Care,
    #[command(flatten)]
    voice: Voice,
    /// The command and its arguments; everything after its name belongs to the command, and `--` may precede it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl From<Elect> for Run {
    fn from(elect: Elect) -> Self {
        Self {
            name: elect.name,
            value: Some(elect.value),
            patience: elect.patience,
            holder: elect.leader,
            renewed: elect.renewed,
            care: elect.care,
            voice: elect.voice,
            command: elect.command,
            ..Self::default()
        }
    }
}

impl Run {
    /// Returns the command, if there is one.
    pub(crate) fn command(&self) -> Vec<OsString> {
        match &self.line {
            Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }

    /// Returns the names of all locks, as they were given.
    pub(crate) fn names(&self) -> Vec<&str> {
        [&self.name].into_iter().chain(&self.and).map(String::as_str).collect()
    }
}

/// Take a lock and leave it held, for the steps of a pipeline
///
/// Waits for its turn like `watchlock run`, prints the fencing token of the grant, and exits. From then on no process
/// holds the lock and nothing renews it: it is free as soon as it is released, and after --for at the latest.
///
///   token=$(watchlock acquire deploy --for 30m)
///   ...
///   watchlock release deploy --token "$token"
///
/// Make --for longer than the steps take, or let them renew the lock in time with `watchlock renew`. The steps are not
/// stopped when that time is over and somebody else gets the lock: `watchlock release` then exits with 1. If one
/// command does all the work, `watchlock run` is better: it renews the lock, and ends the command if the lock is lost.
///
/// If the token can't be printed, or this program is asked to end before, the lock is released. If it is killed by
/// SIGKILL between the grant and its end, nobody knows the token: see `watchlock show` and `watchlock break`.
///
/// With --json, one object: name, holder (as in `watchlock show`, with its token and `until`).
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("acquire")), override_usage = "watchlock acquire [OPTIONS] --for <DURATION> <NAME>")]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) output: Output,
    /// The name of the lock: any text of 1 to 1,024 bytes
    #[arg(value_parser = lock_name)]
    name: String,
    /// How long the lock is held unless it is released before (30m, 2h)
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    length: Duration,
    #[command(flatten)]
    share: Share,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    holder: Signature,
}

impl From<Acquire> for Run {
    fn from(acquire: Acquire) -> Self {
        Self {
            name: acquire.name,
            fixed: Some(acquire.length),
            share: acquire.share,
            patience: acquire.patience,
            holder: acquire.holder,
            renewed: Renewed {
                owner_id: None,
                lease: LEASE,
            },
            ..Self::default()
        }
    }
}

/// Hold a lock without a command, until this program is asked to end
///
/// Waits for its turn like `watchlock run`, prints the fencing token of the grant, and holds the lock until it gets
/// SIGINT, SIGTERM, SIGHUP or SIGQUIT; then it releases the lock and exits with 0, or with 69 if the server does not
/// confirm that. If the lock is lost, it exits with 76. Use it to keep others away by hand, as during an upgrade.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("hold")), override_usage = "watchlock hold [OPTIONS] <NAME>")]
pub(crate) struct Hold {
    /// The name of the lock: any text of 1 to 1,024 bytes
    #[arg(value_parser = lock_name)]
    name: String,
    #[command(flatten)]
    share: Share,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    holder: Signature,
    #[command(flatten)]
    renewed: Renewed,
    #[command(flatten)]
    voice: Voice,
}

impl From<Hold> for Run {
    fn from(hold: Hold) -> Self {
        Self {
            name: hold.name,
            share: hold.share,
            patience: hold.patience,
            holder: hold.holder,
            renewed: hold.renewed,
            voice: hold.voice,
            ..Self::default()
        }
    }
}

/// Renew a lock that `watchlock acquire` took, for its whole time
///
/// The hold lasts for the time of its --for again, counted from now; prints the moment at which it ends. If the lock is
/// not held under this token any more, it changes nothing and exits with 1. Then somebody else may have the lock, and
/// the steps must stop. A program that has taken the hold up (`LockClient::attach`) renews it itself.
///
/// With --json, one object: name, renewed (the holder, as in `watchlock show`; null if nothing was renewed), lock (its
/// state afterwards, or null).
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("renew")), override_usage = "watchlock renew [OPTIONS] --token <TOKEN> <NAME>")]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) step: Step,
}

/// The hold that a step renews or releases.
#[derive(Args, Debug)]
pub(crate) struct Step {
    #[command(flatten)]
    pub(crate) output: Output,
    /// The token that `watchlock acquire` printed
    #[arg(long, value_name = "TOKEN", env = "WATCHLOCK_TOKEN", value_parser = token())]
    pub(crate) token: FencingToken,
    /// The name of the lock
    #[arg(value_parser = lock_name)]
    pub(crate) name: String,
}

/// Give back a lock that `watchlock acquire` took
///
/// Releases the lock only if it is still held under this token, which no other grant ever has. Otherwise it changes
/// nothing and exits with 1: the time of the hold was over, and somebody else may have had the lock before the last
/// step was done.
///
/// The next waiter gets the lock at once. A process that still holds the lock under this token loses it: then
/// `watchlock watch` reports the lock as broken.
///
/// With --json, one object: name, released (the holder, as in `watchlock show`; null if nothing was released), lock
/// (its state afterwards, or null).
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("release")), override_usage = "watchlock release [OPTIONS] --token <TOKEN> <NAME>")]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) step: Step,
}

/// Wait until nobody holds a lock
///
/// Exits with 0 as soon as the lock is free: released, broken, or its lease expired. It takes no queue position: a lock
/// that is handed from one waiter to the next is never free in between, and may be taken again by the time the next
/// command runs. To act under the lock, use `watchlock run`.
///
/// It looks twice a second. While the server does not answer, it goes on waiting.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("wait")), override_usage = "watchlock wait [OPTIONS] <NAME>")]
pub(crate) struct Wait {
    #[command(flatten)]
    pub(crate) kept: Kept,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// The name of the lock, or the `_id` of a document
    pub(crate) name: String,
}

/// Print the leader of an election, at each change
///
/// Prints one line for each change, beginning with the present leader, or that there is none. Times are by the server's
/// clock: that of a leader is when it was elected, that of another change when it was seen. It learns of changes by a
/// change stream, or by polling if the server has none.
///
/// With --json, one object per line: at (when it was seen, by this machine's clock, RFC 3339 in UTC), election, leader
/// (null if nobody leads). A leader has value, token, since, host, pid, label.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("observe")), override_usage = "watchlock observe [OPTIONS] <NAME>")]
pub(crate) struct Observe {
    #[command(flatten)]
    pub(crate) output: Output,
    /// Print the present leader and exit: with 1 if nobody leads
    #[arg(long)]
    pub(crate) once: bool,
    /// The name of the election
    #[arg(value_parser = lock_name)]
    pub(crate) name: String,
}

/// List locks with their holders and the number of waiters
///
/// Documents in the collection that are not locks are named on standard error.
///
/// On a narrow terminal texts are cut, and columns left out; `show`, --json and a pipe have the whole.
///
/// With --json: an array of locks, each as in `watchlock show`; of --deadlocks, an array of objects with such an array,
/// locks: the holder of each waits for the next lock, and that of the last for the first.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("ls")), override_usage = "watchlock ls [OPTIONS]")]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) kept: Kept,
    /// Only locks of this kind
    #[arg(long, conflicts_with = "documents", value_parser = kind())]
    pub(crate) kind: Option<Kind>,
    /// Only locks that somebody holds
    #[arg(long, conflicts_with = "free")]
    pub(crate) held: bool,
    /// Only locks that nobody holds
    #[arg(long)]
    pub(crate) free: bool,
    /// Deadlocks instead, each in a line: holders that wait for each other. Takes up to a lease where it looks like one
    ///
    /// They are found among tasks of one process each. A `watchlock run` inside another is not seen: use one with --and.
    #[arg(long, conflicts_with_all = ["documents", "kind", "held", "free", "owner", "prefix", "older_than"])]
    pub(crate) deadlocks: bool,
    /// Only locks with a holder whose label, host or owner id is this
    #[arg(long, value_name = "TEXT")]
    pub(crate) owner: Option<String>,
    /// Only locks whose name begins with this; of documents, those whose `_id` is a text that does
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// Only locks that some holder has held for longer than this (10m, 2h)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Option<Duration>,
}

/// Show one lock: its holders and waiters, since when and why; its last holds
///
/// The last holds are those of `watchlock run` and of other clients that keep a history. A holder is not renewed in time
/// if less than half of its lease is left.
///
/// With --json, one object, or null if there is no trace of the lock:
///
///   name, kind (mutex, semaphore, rwlock, election, latch, barrier), capacity (permits; null for an rwlock), token
///   (the last that was issued), as_of (when the server read the lock: compare `until` with it), holders, waiters (in
///   the order in which they are served), past (the last holds that ended, newest first).
///
///   A holder has token, access (read or write for an rwlock, else null), permits (null for an rwlock), since, until,
///   lease_ms (what a renewal adds to the server's time), released (when it released a lock that is kept taken until
///   `until`, else null), idle (whether nobody holds the lock, as of five seconds ago at most, and its client keeps it
///   for its next task), detached (whether no process has the hold), host, pid, label,
///   reason, value (proclaimed by a leader), owner_id. A waiter has access, permits, since, until, host, pid, label,
///   reason, value (of a candidate), owner_id. A holder or waiter whose `until` has passed is dead: the next operation
///   drops it. A past hold has token, access, permits, since, ended, how (released, expired, broken, adopted,
///   held_too_long), host, pid, label, reason, value, owner_id.
///
/// With every command that prints JSON, a failure is an object too: error (the message), code (the exit code).
///
/// Times are RFC 3339 in UTC, by the server's clock. Unknown values are null.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("show")), override_usage = "watchlock show [OPTIONS] <NAME>")]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) kept: Kept,
    /// The name of the lock, or the `_id` of a document
    pub(crate) name: String,
}

/// Watch the events of one lock or of all, as they happen
///
/// At a terminal: a full-screen view; q leaves it. Up and down select a row and show its lock in full, b breaks it
/// after a question, / filters by name or holder, s sorts, f shows free locks too (not those of documents). A yellow
/// lock has a holder that does not seem to renew it (LEFT: not renewed), a red one a holder whose lease has
/// expired (over). The view marks stale data while the server does not answer. Otherwise (in a pipe, with --plain, or
/// with TERM=dumb) one line per event, starting with a grant for each present holder. Times are by the server's clock:
/// that of a grant is when it was granted, that of another event when it was seen. A change stream drives it, or polling
/// if the server has none.
///
/// With --json, one object per line for each event: at (when it was seen, by this machine's clock, RFC 3339 in UTC),
/// lock, event (granted, kept, released, expired, adopted, broken, deleted, unreadable), token (not for unreadable);
/// for granted also holder (as in `watchlock show`) and waiting (how many clients wait), for kept until (when the lock
/// opens), for unreadable problem (why the document is not a lock). An event has no other fields.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("watch")), override_usage = "watchlock watch [OPTIONS] [NAME]")]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) kept: Kept,
    /// Print lines instead of the full-screen view, even at a terminal
    #[arg(long)]
    pub(crate) plain: bool,
    /// The name of the lock, or the `_id` of a document; all locks by default
    pub(crate) name: Option<String>,
}

/// Take a lock away from its holders, and hand it to the next waiter
///
/// The holders find out at once. The command of an evicted `watchlock run` may go on for its --grace (5s by default),
/// while the next holder begins. At a terminal it asks first.
///
/// With --json, one object: name, broken (the evicted holders, as in `watchlock show`), lock (its state afterwards, or
/// null).
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("break")), override_usage = "watchlock break [OPTIONS] <NAME>")]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) kept: Kept,
    /// Do not ask
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
    /// Only the holder with this token, as shown by ls and show: one holder of a semaphore, or one reader
    #[arg(long, value_name = "TOKEN", value_parser = token())]
    pub(crate) holder: Option<FencingToken>,
    /// The name of the lock, or the `_id` of a document
    pub(crate) name: String,
}

/// Print the number of permits of a semaphore, or set it
///
/// The number is in force at once, for all clients, whatever number they were deployed with. If it is larger, waiters
/// get permits at once; if it is smaller, holders keep theirs until they release. It stays while nobody holds the
/// semaphore, for a year at least; a semaphore that was not there is made, and standard error says so. Clients of a
/// version without this command lose a lock whose number is set.
///
/// With --json, one object: the lock, as in `watchlock show`.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("permits")), override_usage = "watchlock permits [OPTIONS] <NAME> [N]")]
pub(crate) struct Permits {
    #[command(flatten)]
    pub(crate) output: Output,
    /// The name of the semaphore
    #[arg(value_parser = lock_name)]
    pub(crate) name: String,
    /// The number of permits to set
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) number: Option<u32>,
}

/// Find out why locks can't be acquired, or what could be better, and suggest fixes
///
/// It changes no document: whether the collection takes locks is tried in a transaction that is aborted, on replica sets
/// alone. Exits with 1 if there is a problem, and with 69 or 77 if there is no server to work with or it rejects the user; a warning is not
/// a problem.
///
/// With --json, one object: healthy (true or false), checks. A check has name (server, version, topology, privileges,
/// writes, journal, pool, member-clocks, wake-mode, collection, index; there is one of privileges for each that is
/// missing), status (ok, warning, problem, unknown), found, advice (or null).
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("doctor")), override_usage = "watchlock doctor [OPTIONS]")]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Check on your own server that the promises hold, and report it
///
/// Runs the proofs of the protocol, contends with several clients, takes locks away, and measures what it
/// takes. It writes nothing but into collections of its own in the database, whose names begin with watchlock_verify_,
/// and drops them at the end; what a killed run has left, one a minute later drops. The user needs find, insert, update,
/// remove, listCollections and dropCollection on them; what needs more is skipped by name, and never counts as kept.
///
/// Exits with 1 if a promise was broken: the report has the seed and the smallest sequence. A check that takes too long
/// while the server is slow itself is inconclusive: then it exits with 2.
///
/// With --json, one object: kept (true or false), watchlock, seed, seconds, checks. A check has section, name, verdict
/// (noted, kept, broken, skipped, inconclusive), found, and evidence if a promise was broken.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("verify")), override_usage = "watchlock verify [OPTIONS]")]
pub(crate) struct Verify {
    /// About how long the checks may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    /// Draw the same sequences as an earlier run
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Run only the section whose name in the report begins so; given again, each of these
    #[arg(long = "section", value_name = "NAME")]
    pub(crate) sections: Vec<String>,
    /// Also write the report to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Also make the primary of the replica set step down while clients hold, wait and write
    ///
    /// Every client of the set sees that fail-over, so at a terminal it asks first. The user needs replSetStepDown.
    #[arg(long)]
    pub(crate) step_down: bool,
    /// Do not ask before the step-down
    #[arg(long, short = 'y', requires = "step_down")]
    pub(crate) yes: bool,
    /// How much longer than its time a section may take; more on a machine that is overloaded
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) patience: u64,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Measure locks beside raw driver commands, on your own server
///
/// Takes and frees locks, hands them over, breaks them, and claims documents, in turns with the driver's commands that
/// each of these needs at least. It writes into collections like those of watchlock verify, and needs the same rights.
/// A raw hop is the time from a write until a change stream of the driver shows it.
///
/// With --json, one object: watchlock, seconds, rows. A row has key (uncontended, fresh, handoff, lost, claim), what,
/// beside (the raw commands), unit (ms), lock and raw (medians; raw is null where the server has no change streams),
/// ratio, rounds.
#[derive(Args, Debug)]
#[command(after_help = exit::table(Some("bench")), override_usage = "watchlock bench [OPTIONS]")]
pub(crate) struct Bench {
    /// About how long to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Output {
    /// Prints an answer, as JSON or for people, and exits with this code.
    pub(crate) fn answer(self, value: &impl Serialize, text: impl FnOnce() -> String, code: ExitCode) -> Outcome {
        let written = match self.json {
            true => json::print(value),
            false => io::stdout().lock().write_all(text().as_bytes()),
        };
        exit::after(written, code)
    }
}

/// The kinds by their names in JSON.
const KINDS: [(&str, Kind); 6] = [
    ("mutex", Kind::Mutex),
    ("semaphore", Kind::Semaphore),
    ("rwlock", Kind::RwLock),
    ("election", Kind::Election),
    ("latch", Kind::Latch),
    ("barrier", Kind::Barrier),
];

fn kind() -> impl TypedValueParser<Value = Kind> {
    let of = |name: String| KINDS.into_iter().find_map(|(its, kind)| (its == name).then_some(kind));
    PossibleValuesParser::new(KINDS.map(|(name, _)| name)).try_map(move |name| of(name).ok_or("no kind"))
}

fn token() -> impl TypedValueParser<Value = FencingToken> {
    clap::value_parser!(i64).range(1..).try_map(FencingToken::try_from)
}

/// Reads a signal: by its name, with or without `SIG`, or by its number.
fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_uppercase();
    let name = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name));
    let number = match text.parse() {
        Ok(number) => Some(number),
        Err(_) => nix::sys::signal::Signal::from_str(&name)
            .ok()
            .map(|signal| signal as i32),
    };
    let signal = number.and_then(Signal::from_named_raw);
    signal.ok_or_else(|| "it is not the name or the number of a signal".to_owned())
}

/// Checks the name of a lock. The library refuses the same names, but only once there is a connection.
fn lock_name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=1_024 => Ok(text.to_owned()),
        length => Err(format!("it has {length} bytes; a name must have 1 to 1024")),
    }
}

/// Checks a duration. The library refuses longer ones too, but only what connecting has left of them.
fn duration(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(366 * 24 * 3600);

    match humantime::parse_duration(text) {
        Ok(length) if length > MOST => Err(format!(
            "{} is longer than the longest accepted value, {}",
            exact(length),
            exact(MOST)
        )),
        Ok(length) => Ok(length),
        Err(error) => Err(format!("{error}; write it as 500ms, 5s, 2m or 1h 30m")),
    }
}

/// Reads a duration that windows are counted by, so not one in months or years: these are of different lengths.
fn period(text: &str) -> Result<Duration, String> {
    let units = text.split(|character: char| !character.is_ascii_alphabetic());
    let of_no_length = ["months", "month", "M", "years", "year", "yrs", "yr", "y"];
    match { units }.find(|unit| of_no_length.contains(unit)) {
        Some(unit) => Err(format!("`{unit}` has no fixed length; write it in days, as 30days")),
        None => duration(text),
    }
}

/// Returns whether a command line that can't be read asks for JSON: its command, the first word that is one, can print
/// it. What belongs to a command that is run asks for nothing.
pub(crate) fn is_json_asked_for(mut words: impl Iterator<Item = OsString>) -> bool {
    let whole = Arguments::command();
    let command = words.find_map(|word| whole.find_subcommand(word));
    let prints_json = |command: &clap::Command| command.get_arguments().any(|option| option.get_id() == "json");
    command.is_some_and(prints_json) && words.any(|word| word == "--json")
}
