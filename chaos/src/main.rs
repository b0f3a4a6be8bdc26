//! Faults of every kind against watchlock on real servers, and a judge of the results. See `README.md`.

mod arguments;
mod client;
mod clock;
mod director;
mod evidence;
mod fault;
mod foreign;
mod history;
mod jobs;
mod journal;
mod judge;
mod load;
mod locks;
mod oplog;
mod random;
mod record;
mod schedule;
mod stage;
mod streams;
mod summary;
mod timeline;

use std::process::ExitCode;

use arguments::Command;
use schedule::Burst;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match act() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn act() -> Result<bool> {
    match Command::parse()? {
        Command::Help => {
            print!("{}", arguments::HELP);
            Ok(true)
        }
        Command::Schedule { seed, bursts, mix } => {
            for number in 0..bursts {
                println!("burst {number}\n{}", Burst::of(seed, number, &mix));
            }
            Ok(true)
        }
        Command::Judge { folder } => director::judge(&folder),
        Command::Client(options) => {
            // One thread: a client's lines are then in the order of their events.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(client::run(options))?;
            // A thread may still wait for standard input.
            std::process::exit(0)
        }
        Command::Job { file, lasts } => jobs::command(&file, lasts),
        Command::Jobs(jobs) => tokio::runtime::Runtime::new()?.block_on(jobs::run(jobs)),
        Command::Load(load) => tokio::runtime::Runtime::new()?.block_on(load::run(load)),
        Command::Play(play) => {
            println!("to run it again: {}", play.again());
            tokio::runtime::Runtime::new()?.block_on(director::run(play))
        }
    }
}
