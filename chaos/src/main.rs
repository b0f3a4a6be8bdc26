//! Faults of every kind against watchlock on real servers, and a judge of the results. See `README.md`.

mod arguments;
mod client;
mod clock;
mod director;
mod fault;
mod foreign;
mod gauge;
mod history;
mod journal;
mod judge;
mod locks;
mod oplog;
mod outcome;
mod random;
mod record;
mod schedule;
mod stage;
mod streams;
mod timeline;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser;
use schedule::{Burst, Play};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match act(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn act(arguments: Arguments) -> Result<bool> {
    match arguments.command {
        Some(Command::Schedule { faults, bursts }) => {
            for number in 0..bursts {
                println!("burst {number}\n{}", Burst::of(faults.seed, number, &faults.fault));
            }
            Ok(true)
        }
        Some(Command::Judge { folder }) => director::judge(&folder),
        Some(Command::Client(options)) => {
            // One thread: a client's lines are then in the order of their events.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(client::run(options))?;
            // A thread may still wait for standard input.
            std::process::exit(0)
        }
        Some(Command::Soak { minutes, seed }) => {
            tokio::runtime::Runtime::new()?.block_on(director::run(Play::soak(seed, minutes)))
        }
        None => {
            let play = arguments.play();
            println!("to run it again: {}", play.again());
            tokio::runtime::Runtime::new()?.block_on(director::run(play))
        }
    }
}
