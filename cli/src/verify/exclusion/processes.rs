//! Processes of their own among those that contend: this program once more, with a client that shares nothing with the
//! others but the server.
//!
//! The run writes a line for each contest to each of them, and each answers with a line of what it saw. They end with
//! their input, so none outlives the run, however that ends.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use futures::future::{join_all, try_join_all};
use tokio::{sync::mpsc, task::spawn_blocking, time::timeout};

use super::{CLIENTS, Contest, PROCESSES, Players, judge::Record};
use crate::{
    connection::Connection,
    exit::{Failure, Outcome},
    ground::Ground,
    json,
    process::this_program,
};

/// Maximum time for a process to be connected: as for the first lock of a run.
const READY: Duration = Duration::from_secs(10);

/// Time for the processes to give their locks back once their input has ended.
const LEAVING: Duration = Duration::from_secs(1);

/// The processes of a run. Dropping this ends them: by their input, and those that stay are killed.
#[derive(Debug, Default)]
pub(in crate::verify) struct Processes(Vec<Process>);

impl Drop for Processes {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|process| drop(process.child.stdin.take()));
        // This runs at the end of a run, or of its section: nothing else waits on this thread.
        let end = Instant::now() + LEAVING;
        let goes_on = |process: &mut Process| matches!(process.child.try_wait(), Ok(None));
        while self.0.iter_mut().any(goes_on) && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[derive(Debug)]
struct Process {
    /// With its input.
    child: Child,
    output: Arc<Mutex<BufReader<ChildStdout>>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Processes {
    /// Starts them, and waits until they are connected. The error says why there are none.
    pub(super) async fn start(ground: &Ground<'_>) -> Result<Self, String> {
        let mut started = Self::default();
        for _ in 0..PROCESSES {
            let process = start(ground).map_err(|error| format!("no process can be started: {error}"))?;
            started.0.push(process);
        }
        let ready = join_all(started.0.iter().map(|process| process.hear()));
        let ready = timeout(READY, ready).await;
        let ready = ready.map_err(|_| "a process was not connected in time".to_owned())?;
        match ready.into_iter().find_map(Result::err) {
            Some(error) => Err(format!("a process was not connected: {error}")),
            None => Ok(started),
        }
    }

    /// Makes them contend. The error says why that is not known.
    pub(super) async fn play(&self, contest: Contest, seed: u64, time: Duration) -> Result<Vec<Record>, String> {
        let played = self.0.iter().zip(CLIENTS..).map(async |(process, client)| {
            let players = Players {
                contest,
                seed,
                time,
                client,
            };
            let order = serde_json::to_string(&players).map_err(|error| error.to_string())?;
            let answer = async {
                process.tell(&order)?;
                process.hear().await
            };
            let answer = answer.await.map_err(|error| format!("a process has ended: {error}"))?;
            let answer: Result<Record, String> = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
            answer.map_err(|error| format!("in a process: {error}"))
        });
        try_join_all(played).await
    }
}

impl Process {
    /// Writes a line to it, which fits into the pipe.
    fn tell(&self, line: &str) -> io::Result<()> {
        let mut input = self.child.stdin.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(format!("{line}\n").as_bytes())
    }

    /// Reads a line of it. A reading that is given up goes on until the process ends.
    async fn hear(&self) -> io::Result<String> {
        let output = self.output.clone();
        let heard = spawn_blocking(move || {
            let mut line = String::new();
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            match output.read_line(&mut line)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(line),
            }
        });
        heard.await.map_err(io::Error::other)?
    }
}

fn start(ground: &Ground<'_>) -> io::Result<Process> {
    let mut program = Command::new(this_program());
    program.args(["verify", "--contend", &ground.prefix]);
    // Its own messages would be those of this program.
    program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    ground
        .hand_on(&mut program)
        .map_err(|failure| io::Error::other(failure.message().to_owned()))?;
    let mut child = program.spawn()?;
    let output = child.stdout.take().ok_or_else(|| io::Error::other("it has no pipe"))?;
    let output = Arc::new(Mutex::new(BufReader::new(output)));
    Ok(Process { child, output })
}

/// Is one of the processes of a run, until its input ends.
pub(in crate::verify) async fn be_one(connection: &Connection, prefix: String) -> Outcome {
    let ground = Ground::join(connection, prefix).await?;
    let locks = ground.client().await?;
    let mut orders = orders();
    // Its first command makes the connection.
    locks.inspect("a").await?;
    json::print_line(&"ready")?;
    while let Some(order) = orders.recv().await {
        let players: Players =
            serde_json::from_str(&order).map_err(|error| Failure::internal(format!("no order: {error}")))?;
        let played = tokio::select! {
            played = players.play(&ground, &locks) => played,
            // Nobody is there to hear of it.
            _ = orders.recv() => break,
        };
        json::print_line(&played.map_err(|failure| failure.message().to_owned()))?;
    }
    ground.leave().await;
    Ok(ExitCode::SUCCESS)
}

/// Returns the lines of the input, which end with it.
fn orders() -> mpsc::Receiver<String> {
    let (sender, orders) = mpsc::channel(1);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    orders
}
