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
    pictures::Pictures,
    schedule::Mix,
};

pub(crate) const HELP: &str = "\
Faults of every kind against watchlock on a replica set of three, and a judge of what came of it.

usage: watchlock-chaos [--minutes N | --seconds N] [--seed S] [--fault KINDS]
       watchlock-chaos schedule [--seed S] [--bursts N] [--fault KINDS]
       watchlock-chaos judge --folder F
       watchlock-chaos jobs [--minutes N | --seconds N] [--seed S]
       watchlock-chaos load [--waiters N | --clients N | --processes N | --locks N | --held N] [--seconds N]
       watchlock-chaos load --names N
       watchlock-chaos load --soak MINUTES [--seed S]
       watchlock-chaos pictures [--picture NAME] [--redraw | --embed] [--folder F]

  --minutes N    how long faults go on (1 if not given); the last burst is finished
  --seconds N    the same in seconds
  --seed S       which faults; by the clock if not given
  --fault KINDS  only these kinds of faults, with commas between them and - for a space, as the summary names them
                 (connections-dead,lock-broken); all if not given
  --folder F     where the histories go, or are; target/chaos/<seed> if not given
  --waiters N    many tasks of one client wait for one lock (1000)
  --clients N    many clients wait for one lock: more than its queue has room for
  --processes N  many client processes contend for one lock
  --locks N      one client holds many locks of a server that is slow
  --held N       one client holds very many locks, and acquires others beside them
  --names N      many names are used once each: what is stored of them does not last
  --soak N       a bit of everything, for so many minutes: nothing grows
  --picture NAME only this picture of the documentation, by its file in docs/pictures; all if not given
  --redraw       draws from the records of the last run, in target/pictures
  --embed        draws nothing, and puts the pictures into the documentation of the API, the charts of the peers too
  --sabotage ignore-loss
                 clients go on when their lock is lost: the judge has to find it
  --sabotage stop-program
                 jobs are stopped by SIGSTOP of `watchlock run` alone: overlaps have to be found

It ends with 0 if every promise was kept, with 1 if one was broken, and with 2 if it could not run.
";

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
    Pictures(Pictures),
    /// The holder of a picture, which is going to be frozen.
    Frozen {
        uri: String,
        file: PathBuf,
    },
    /// The job whose process this is: it runs under the lock.
    Job {
        file: PathBuf,
        lasts: Duration,
    },
}

impl Command {
    pub(crate) fn parse() -> Result<Self> {
        let mut parser = Parser::from_env();
        let mut command = None;
        let (mut seed, mut lasts, mut bursts, mut folder) = (None, None, 10, None::<PathBuf>);
        let mut mix = Mix::default();
        let (mut uri, mut database, mut label) = (None, None, None);
        let (mut stops_program, mut millis) = (false, 0);
        let (mut picture, mut redraw, mut embed) = (None, false, false);
        let (mut ignores_loss, mut contends, mut burden) = (false, false, Burden::Waiters(1_000));
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(Self::Help),
                Long("seed") => seed = Some(parser.value()?.parse()?),
                Long("minutes") => lasts = Some(minutes(parser.value()?.parse()?)),
                Long("seconds") => lasts = Some(Duration::from_secs(parser.value()?.parse()?)),
                Long("fault") => mix = Mix::parse(&parser.value()?.string()?)?,
                Long("bursts") => bursts = parser.value()?.parse()?,
                Long("folder") => folder = Some(parser.value()?.into()),
                Long("uri") => uri = Some(parser.value()?.string()?),
                Long("database") => database = Some(parser.value()?.string()?),
                Long("label") => label = Some(parser.value()?.string()?),
                Long("picture") => picture = Some(parser.value()?.string()?),
                Long("redraw") => redraw = true,
                Long("embed") => embed = true,
                Long("millis") => millis = parser.value()?.parse()?,
                Long("contend") => contends = true,
                Long("waiters") => burden = Burden::Waiters(parser.value()?.parse()?),
                Long("processes") => burden = Burden::Processes(parser.value()?.parse()?),
                Long("locks") => burden = Burden::Locks(parser.value()?.parse()?),
                Long("clients") => burden = Burden::Clients(parser.value()?.parse()?),
                Long("held") => burden = Burden::Held(parser.value()?.parse()?),
                Long("names") => burden = Burden::Names(parser.value()?.parse()?),
                Long("soak") => {
                    burden = Burden::Soak;
                    lasts = Some(minutes(parser.value()?.parse()?));
                }
                Long("sabotage") => match parser.value()?.string()?.as_str() {
                    "ignore-loss" => ignores_loss = true,
                    "stop-program" => stops_program = true,
                    other => return Err(format!("there is no sabotage `{other}`; try --help").into()),
                },
                Value(value) if command.is_none() => command = Some(value.string()?),
                _ => return Err(argument.unexpected().into()),
            }
        }
        let seed = seed.unwrap_or_else(|| crate::clock::now() / 1_000 % 1_000_000);
        let in_target = || Path::new("target").join("chaos").join(seed.to_string());
        Ok(match command.as_deref() {
            None => Self::Play(Play {
                seed,
                mix,
                lasts: lasts.unwrap_or(Duration::from_secs(60)),
                folder: folder.unwrap_or_else(in_target),
                ignores_loss,
            }),
            Some("schedule") => Self::Schedule { seed, bursts, mix },
            Some("judge") => Self::Judge {
                folder: folder.ok_or("`judge` needs --folder")?,
            },
            Some("client") => {
                let label: String = label.ok_or("`client` needs --label")?;
                Self::Client(client::Options {
                    uri: uri.ok_or("`client` needs --uri")?,
                    database: database.ok_or("`client` needs --database")?,
                    seed,
                    history: folder
                        .ok_or("`client` needs --folder")?
                        .join(format!("{label}{HISTORY}")),
                    label,
                    ignores_loss,
                    contends,
                })
            }
            Some("jobs") => Self::Jobs(Jobs {
                seed,
                lasts: lasts.unwrap_or(Duration::from_secs(60)),
                folder: folder.unwrap_or_else(in_target),
                stops_program,
            }),
            Some("job") => Self::Job {
                file: folder.ok_or("`job` needs --folder")?,
                lasts: Duration::from_millis(millis),
            },
            Some("pictures") => Self::Pictures(Pictures {
                folder: folder.unwrap_or_else(|| Path::new("target").join("pictures")),
                only: picture,
                redraw,
                embed,
            }),
            Some("frozen") => Self::Frozen {
                uri: uri.ok_or("`frozen` needs --uri")?,
                file: folder.ok_or("`frozen` needs --folder")?,
            },
            Some("load") => Self::Load(Load {
                burden,
                lasts,
                seed,
                folder: folder.unwrap_or_else(|| Path::new("target").join("chaos").join("load")),
            }),
            Some(other) => return Err(format!("there is no command `{other}`; try --help").into()),
        })
    }
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
