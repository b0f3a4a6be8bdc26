//! The command line.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use lexopt::{
    Arg::{Long, Short, Value},
    Parser, ValueExt,
};

use crate::{
    Result, client,
    director::Play,
    history::HISTORY,
    jobs::Jobs,
    load::{Burden, Load},
    schedule::Mix,
};

pub(crate) const HELP: &str = "\
Faults of every kind against watchlock on a replica set of three, and a judge of what came of it.

usage: watchlock-chaos [--minutes N | --seconds N] [--seed S] [--fault KINDS]
       watchlock-chaos schedule [--seed S] [--bursts N] [--fault KINDS]
       watchlock-chaos judge --folder F
       watchlock-chaos jobs [--minutes N | --seconds N] [--seed S]
       watchlock-chaos load --locks N [--seconds N]
       watchlock-chaos load --soak MINUTES [--seed S]

  --minutes N    how long faults go on (1 if not given); the last burst is finished
  --seconds N    the same in seconds
  --seed S       which faults; by the clock if not given
  --fault KINDS  only these kinds of faults, with commas between them and - for a space, as the summary names them
                 (connections-dead,lock-broken); all if not given
  --folder F     where the histories go, or are; target/chaos/<seed> if not given
  --locks N      one client holds many locks of a server that is slow
  --soak N       a bit of everything, for so many minutes: nothing grows
  --sabotage ignore-loss
                 clients go on when their lock is lost: the judge has to find it
  --sabotage stop-program
                 jobs are stopped by SIGSTOP of `watchlock run` alone: overlaps have to be found

It ends with 0 if every promise was kept, with 1 if one was broken, and with 2 if it could not run.
";

/// Default duration of a run of faults or of jobs.
const LASTS: Duration = Duration::from_secs(60);

/// The requested command.
pub(crate) enum Command {
    Help,
    Schedule {
        seed: u64,
        bursts: u64,
        mix: Mix,
    },
    Judge {
        folder: PathBuf,
    },
    Client(client::Options),
    Load(Load),
    Play(Play),
    Jobs(Jobs),
    /// The job whose process this is: it runs under the lock.
    Job {
        file: PathBuf,
        lasts: Duration,
    },
}

impl Command {
    pub(crate) fn parse() -> Result<Self> {
        match Given::read(Parser::from_env())? {
            Some(given) => given.into_command(),
            None => Ok(Self::Help),
        }
    }
}

/// The arguments as they were given. Each command takes what it needs, and ignores the options of others.
#[derive(Debug, Default)]
struct Given {
    command: Option<String>,
    seed: Option<u64>,
    lasts: Option<Duration>,
    mix: Mix,
    bursts: Option<u64>,
    folder: Option<PathBuf>,
    uri: Option<String>,
    database: Option<String>,
    label: Option<String>,
    millis: u64,
    burden: Option<Burden>,
    ignores_loss: bool,
    stops_program: bool,
}

impl Given {
    /// Reads the arguments; `None` if they ask for help.
    fn read(mut parser: Parser) -> Result<Option<Self>> {
        let mut given = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("seed") => given.seed = Some(parser.value()?.parse()?),
                Long("minutes") => given.lasts = Some(minutes(parser.value()?.parse()?)),
                Long("seconds") => given.lasts = Some(Duration::from_secs(parser.value()?.parse()?)),
                Long("fault") => given.mix = Mix::parse(&parser.value()?.string()?)?,
                Long("bursts") => given.bursts = Some(parser.value()?.parse()?),
                Long("folder") => given.folder = Some(parser.value()?.into()),
                Long("uri") => given.uri = Some(parser.value()?.string()?),
                Long("database") => given.database = Some(parser.value()?.string()?),
                Long("label") => given.label = Some(parser.value()?.string()?),
                Long("millis") => given.millis = parser.value()?.parse()?,
                Long("locks") => given.burden = Some(Burden::Locks(parser.value()?.parse()?)),
                Long("soak") => {
                    given.burden = Some(Burden::Soak);
                    given.lasts = Some(minutes(parser.value()?.parse()?));
                }
                Long("sabotage") => given.sabotage(&parser.value()?.string()?)?,
                Value(value) if given.command.is_none() => given.command = Some(value.string()?),
                _ => return Err(argument.unexpected().into()),
            }
        }
        Ok(Some(given))
    }

    /// Has the run do something wrong, which the judge must find.
    fn sabotage(&mut self, name: &str) -> Result<()> {
        match name {
            "ignore-loss" => self.ignores_loss = true,
            "stop-program" => self.stops_program = true,
            other => return Err(format!("there is no sabotage `{other}`; try --help").into()),
        }
        Ok(())
    }

    /// Returns the command, or an error if it lacks an argument.
    fn into_command(mut self) -> Result<Command> {
        let seed = self.seed.unwrap_or_else(|| crate::clock::now() / 1_000 % 1_000_000);
        match self.command.take().as_deref() {
            None => Ok(Command::Play(self.play(seed))),
            Some("schedule") => Ok(Command::Schedule {
                seed,
                bursts: self.bursts.unwrap_or(10),
                mix: self.mix,
            }),
            Some("judge") => Ok(Command::Judge {
                folder: self.folder.ok_or("`judge` needs --folder")?,
            }),
            Some("client") => self.client(seed).map(Command::Client),
            Some("jobs") => Ok(Command::Jobs(self.jobs(seed))),
            Some("job") => Ok(Command::Job {
                file: self.folder.ok_or("`job` needs --folder")?,
                lasts: Duration::from_millis(self.millis),
            }),
            Some("load") => Ok(Command::Load(Load {
                burden: self.burden.ok_or("`load` needs --locks or --soak")?,
                lasts: self.lasts,
                seed,
            })),
            Some(other) => Err(format!("there is no command `{other}`; try --help").into()),
        }
    }

    fn play(self, seed: u64) -> Play {
        Play {
            seed,
            mix: self.mix,
            lasts: self.lasts.unwrap_or(LASTS),
            folder: self.folder.unwrap_or_else(|| in_target(&seed.to_string())),
            ignores_loss: self.ignores_loss,
        }
    }

    fn client(self, seed: u64) -> Result<client::Options> {
        let label = self.label.ok_or("`client` needs --label")?;
        let uri = self.uri.ok_or("`client` needs --uri")?;
        let database = self.database.ok_or("`client` needs --database")?;
        let folder = self.folder.ok_or("`client` needs --folder")?;
        Ok(client::Options {
            uri,
            database,
            seed,
            history: folder.join(format!("{label}{HISTORY}")),
            label,
            ignores_loss: self.ignores_loss,
        })
    }

    fn jobs(self, seed: u64) -> Jobs {
        Jobs {
            seed,
            lasts: self.lasts.unwrap_or(LASTS),
            folder: self.folder.unwrap_or_else(|| in_target(&seed.to_string())),
            stops_program: self.stops_program,
        }
    }
}

/// Returns the folder of a run that was not given one.
fn in_target(name: &str) -> PathBuf {
    Path::new("target").join("chaos").join(name)
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(60))
}

impl Play {
    /// Returns the command line that runs the same faults again.
    pub(crate) fn again(&self) -> String {
        let (seconds, seed) = (self.lasts.as_secs(), self.seed);
        let faults = if self.mix == Mix::default() {
            String::new()
        } else {
            format!(" --fault {}", self.mix)
        };
        format!("cargo run --release -p watchlock-chaos -- --seconds {seconds} --seed {seed}{faults}")
    }
}
