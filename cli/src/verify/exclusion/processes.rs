//! Processes of their own among those that contend: this program once more, with a client that shares nothing with the
//! others but the server.
//!
//! The run writes a line for each contest to each of them, and each answers with a line of what it saw. They end with
//! their input, so none outlives the run, however that ends.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
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

/// The processes of a run. They are killed when this is dropped.
#[derive(Debug, Default)]
pub(in crate::verify) struct Processes(Vec<Process>);

#[derive(Debug)]
struct Process {
    child: Child,
    talk: Arc<Mutex<Talk>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The input and output of a process.
#[derive(Debug)]
struct Talk {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talk {
    fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")?;
        self.input.flush()
    }

    /// Reads a line of the process.
    fn hear(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
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
        let ready = join_all(started.0.iter().map(|process| process.with(Talk::hear)));
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
            let answer = process.with(move |talk| {
                talk.tell(&order)?;
                talk.hear()
            });
            let answer = answer.await.map_err(|error| format!("a process has ended: {error}"))?;
            let answer: Result<Record, String> = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
            answer.map_err(|error| format!("in a process: {error}"))
        });
        try_join_all(played).await
    }
}

impl Process {
    /// Talks to it. A talk that is given up goes on until the process ends.
    async fn with<T: Send + 'static>(
        &self,
        talking: impl FnOnce(&mut Talk) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let talk = self.talk.clone();
        let talked = spawn_blocking(move || talking(&mut talk.lock().unwrap_or_else(PoisonError::into_inner)));
        talked.await.map_err(io::Error::other)?
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
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("it has no pipes"));
    };
    let output = BufReader::new(output);
    Ok(Process {
        child,
        talk: Arc::new(Mutex::new(Talk { input, output })),
    })
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
