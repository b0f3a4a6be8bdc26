//! The workers, as their parent sees them.

use std::{env, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};

use crate::{Result, Server, event::Event, worker};

/// How long the workers may be silent. They are for a lease when a holder has died; the rest is for slow machines.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a worker may take to give back what it has. It ends itself a little sooner.
const FAREWELL: Duration = Duration::from_secs(8);

/// Processes that contend for the lock. They end with it, however it ends.
pub(crate) struct Crew {
    workers: Vec<Worker>,
    heard: mpsc::UnboundedReceiver<(usize, Heard)>,
}

struct Worker {
    label: String,
    // Killed on drop.
    child: Child,
    killed: bool,
}

enum Heard {
    Event(Event),
    Nonsense(String),
    End,
}

impl Crew {
    /// Starts this program again, `size` times, as workers.
    pub(crate) fn start(size: usize, server: &Server) -> Result<Self> {
        let (tell, heard) = mpsc::unbounded_channel();
        let mut workers = Vec::new();
        for index in 0..size {
            let label = format!("worker-{}", index + 1);
            let mut child = Command::new(env::current_exe()?)
                .args([worker::COMMAND, &label, &server.database])
                .env("MONGODB_URI", &server.uri)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let output = child.stdout.take().ok_or("a worker has no standard output")?;
            tokio::spawn(listen(index, output, tell.clone()));
            workers.push(Worker {
                label,
                child,
                killed: false,
            });
        }
        Ok(Self { workers, heard })
    }

    /// What a worker tells next, and the worker's index. What a killed one had told before is passed over.
    pub(crate) async fn next(&mut self) -> Result<(usize, Event)> {
        loop {
            let heard = timeout(PATIENCE, self.heard.recv()).await;
            let Some((index, heard)) = heard.map_err(|_| "the workers fell silent")? else {
                return Err("all workers have ended".into());
            };
            let Worker { label, killed, .. } = &self.workers[index];
            match heard {
                _ if *killed => {}
                Heard::Event(Event::Failed { message }) => return Err(format!("{label}: {message}").into()),
                Heard::Event(event) => return Ok((index, event)),
                Heard::Nonsense(line) => return Err(format!("{label} said `{line}`").into()),
                Heard::End => return Err(format!("{label} ended by itself").into()),
            }
        }
    }

    pub(crate) fn label(&self, index: usize) -> &str {
        &self.workers[index].label
    }

    /// Sends a worker SIGKILL, which leaves it no moment to tidy up in, and waits for its end.
    pub(crate) async fn kill(&mut self, index: usize) -> Result<()> {
        let worker = &mut self.workers[index];
        worker.killed = true;
        Ok(worker.child.kill().await?)
    }

    /// Lets all workers give back what they have, and end.
    pub(crate) async fn dismiss(mut self) -> Result<()> {
        for worker in &mut self.workers {
            drop(worker.child.stdin.take());
        }
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            let label = &worker.label;
            let ended = timeout(FAREWELL, worker.child.wait()).await;
            let status = ended.map_err(|_| format!("{label} did not end when told to"))??;
            if !status.success() {
                return Err(format!("{label} ended with {status}").into());
            }
        }
        Ok(())
    }
}

/// Passes on what a worker writes, until its end.
async fn listen(index: usize, output: ChildStdout, tell: mpsc::UnboundedSender<(usize, Heard)>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let heard = Event::parse(&line).map_or(Heard::Nonsense(line), Heard::Event);
        // Nobody listens any more once the crew is gone.
        let _ = tell.send((index, heard));
    }
    let _ = tell.send((index, Heard::End));
}
