//! `watchlock`: runs commands under distributed locks, and shows and repairs the locks of a collection.

#[cfg(not(unix))]
compile_error!("the command line passes Unix signals on, so it is for Unix alone; the library is not");

mod acquire;
mod arguments;
mod attend;
mod bench;
mod break_lock;
mod clock;
mod connection;
mod descendants;
mod doctor;
mod events;
mod exit;
mod generated;
mod ground;
mod held;
mod holder;
mod ids;
mod job;
mod json;
mod leaving;
mod list;
mod live;
mod locks;
#[cfg(test)]
mod made_up;
mod measure;
mod messages;
mod observe;
mod permits;
mod process;
mod run;
mod screen;
mod show;
mod signals;
mod steps;
mod table;
mod terminal;
mod text;
mod verify;
mod wait;
mod watch;

use std::{fs::File, process::ExitCode};

use crate::{
    arguments::{Arguments, Command},
    exit::{Failure, Outcome, USAGE},
};

fn main() -> ExitCode {
    let code = perform();
    messages::settle();
    code
}

fn perform() -> ExitCode {
    // The step between `watchlock run` and its command: see `process`.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == process::STEP => return process::step(words).into(),
        _ => {}
    }
    let arguments = match arguments::read() {
        Ok(arguments) => arguments,
        Err(told) => {
            // Nobody may be there to read it.
            let _ = told.print();
            if !told.use_stderr() {
                return ExitCode::SUCCESS;
            }
            if arguments::is_json_asked_for(std::env::args_os().skip(1)) {
                let error = told.render().to_string();
                let _ = json::print(&json::Failed {
                    error: error.trim(),
                    code: USAGE,
                });
            }
            return USAGE.into();
        }
    };
    signals::unblock();
    let as_json = arguments.as_json;
    match dispatch(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report(as_json),
    }
}

fn dispatch(arguments: Arguments) -> Outcome {
    let Arguments {
        connection, command, ..
    } = arguments;
    match command {
        Command::Completions { shell } => return generated::completions(shell),
        Command::Man { into: Some(folder), .. } => return generated::pages(&folder),
        Command::Man { command, .. } => return generated::page(command.as_deref()),
        _ => {}
    }
    check_descriptors()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("no threads can be started: {error}")))?;
    let is_doctor = matches!(command, Command::Doctor(_));
    // On this very thread: the command must die with the thread that started it.
    let outcome = runtime.block_on(async {
        let ending = match &command {
            // These give their lock back first.
            Command::Run(_) | Command::Elect(_) | Command::Hold(_) | Command::Acquire(_) => None,
            // These drop their collections first.
            Command::Verify(_) | Command::Bench(_) => None,
            _ => Some(signals::end_at_once()?),
        };
        match command {
            Command::Run(run) => run::run(&connection, run).await,
            Command::Elect(elect) => run::run(&connection, elect.into()).await,
            Command::Hold(hold) => run::run(&connection, hold.into()).await,
            Command::Acquire(acquire) => acquire::acquire(&connection, acquire).await,
            Command::Release(release) => steps::release(&connection, release.step).await,
            Command::Renew(renew) => steps::renew(&connection, renew.step).await,
            Command::Wait(wait) => wait::wait(&connection, wait).await,
            Command::Observe(observe) => observe::observe(&connection, observe).await,
            Command::Ls(list) => list::list(&connection, list).await,
            Command::Show(show) => show::show(&connection, show).await,
            Command::Watch(watch) => watch::watch(&connection, watch, ending).await,
            Command::Break(break_lock) => break_lock::break_lock(&connection, break_lock).await,
            Command::Permits(permits) => permits::permits(&connection, permits).await,
            Command::Doctor(doctor) => doctor::doctor(&connection, doctor).await,
            Command::Verify(verify) => verify::verify(&connection, verify).await,
            Command::Bench(bench) => bench::bench(&connection, bench).await,
            Command::Completions { .. } | Command::Man { .. } => Ok(ExitCode::SUCCESS),
        }
    });
    // Any remaining tasks only read, and end with the process. If the runtime ended some of them first, others that
    // need them would panic: the driver's do, on the screen of whoever has just left the view.
    std::mem::forget(runtime);
    match outcome {
        Err(failure) if failure.is_unavailable() && !is_doctor => Err(failure.and("see `watchlock doctor`")),
        outcome => outcome,
    }
}

/// Fails if so few files may be open that the runtime could not even be started.
fn check_descriptors() -> Result<(), Failure> {
    /// The files of the runtime, of the signals and of the first connection.
    const NEEDED: usize = 12;
    let opened: Result<Vec<File>, _> = (0..NEEDED).map(|_| File::open("/dev/null")).collect();
    match opened {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => Err(Failure::internal(
            format!("too few files may be open (see `ulimit -n`): {error}"),
        )),
        _ => Ok(()),
    }
}
