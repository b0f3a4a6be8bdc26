//! The processes, from the scenes' side.

use std::{env, io, process::Stdio, str::FromStr, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};

use super::{
    Result, Server,
    part::{ARGUMENT, FAILED},
};
use crate::signal;

/// Maximum silence of the processes. They are silent for a lease when a holder has died; the rest is for slow
/// machines.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum time for a process to give back what it has. It ends itself a little sooner.
const FAREWELL: Duration = Duration::from_secs(8);

/// Processes that report, line by line, what happens to them. They end with the crew, however it ends.
#[derive(Debug)]
pub struct Crew<E> {
    members: Vec<Member>,
    tell: mpsc::UnboundedSender<(usize, Heard<E>)>,
    heard: mpsc::UnboundedReceiver<(usize, Heard<E>)>,
}

#[derive(Debug)]
struct Member {
    label: String,
    // Killed on drop.
    child: Child,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Playing,
    Dismissed,
    Killed,
}

#[derive(Debug)]
enum Heard<E> {
    Event(E),
    Failed(String),
    Nonsense(String),
    End,
}

impl<E: FromStr + Send + 'static> Crew<E> {
    /// Starts this program again for each of `labels`. Their lines are read as `E`.
    ///
    /// # Errors
    ///
    /// A process can't be started.
    pub fn start<L: Into<String>>(labels: impl IntoIterator<Item = L>, server: &Server) -> Result<Self> {
        let (tell, heard) = mpsc::unbounded_channel();
        let mut crew = Self {
            members: Vec::new(),
            tell,
            heard,
        };
        for label in labels {
            crew.hire(label, server)?;
        }
        Ok(crew)
    }

    /// Starts this program once more, and returns the index of the label. A label may come again: it names a process
    /// that was killed and started anew.
    ///
    /// # Errors
    ///
    /// The process can't be started.
    pub fn hire(&mut self, label: impl Into<String>, server: &Server) -> Result<usize> {
        let (index, label) = (self.members.len(), label.into());
        let mut child = Command::new(env::current_exe()?)
            .args([ARGUMENT, &label, &server.database])
            .env("MONGODB_URI", &server.uri)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("a process has no standard output")?;
        tokio::spawn(listen(index, output, self.tell.clone()));
        self.members.push(Member {
            label,
            child,
            state: State::Playing,
        });
        Ok(index)
    }

    /// Returns the next report of a process, and the index of its label. Earlier reports of a killed one are skipped.
    ///
    /// # Errors
    ///
    /// A process failed or ended by itself, or none has said anything for half a minute.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no report is lost.
    pub async fn next(&mut self) -> Result<(usize, E)> {
        loop {
            let heard = timeout(PATIENCE, self.heard.recv()).await;
            // The crew has a sender of its own.
            let Some((index, heard)) = heard.map_err(|_| "the processes fell silent")? else {
                return Err("nobody is left to be heard".into());
            };
            let Member { label, state, .. } = &self.members[index];
            match heard {
                _ if *state == State::Killed => {}
                Heard::Event(event) => return Ok((index, event)),
                Heard::End if *state == State::Dismissed => {}
                Heard::Failed(message) => return Err(format!("{label}: {message}").into()),
                Heard::Nonsense(line) => return Err(format!("{label} said `{line}`").into()),
                Heard::End => return Err(format!("{label} ended by itself").into()),
            }
        }
    }
}

impl<E> Crew<E> {
    /// Returns the label that the process got at the start.
    pub fn label(&self, index: usize) -> &str {
        &self.members[index].label
    }

    /// Kills a process with SIGKILL, which leaves it no moment to tidy up, and waits for its end.
    ///
    /// # Errors
    ///
    /// It can't be killed.
    pub async fn kill(&mut self, index: usize) -> Result<()> {
        let member = &mut self.members[index];
        member.state = State::Killed;
        Ok(member.child.kill().await?)
    }

    /// Stops a process as it stands, as [`signal::freeze`].
    ///
    /// # Errors
    ///
    /// It has ended, or does not stop.
    pub async fn freeze(&self, index: usize) -> Result<()> {
        self.signal(index, signal::freeze).await
    }

    /// Lets a frozen process run on.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn thaw(&self, index: usize) -> Result<()> {
        self.signal(index, signal::thaw).await
    }

    async fn signal(&self, index: usize, send: fn(u32) -> io::Result<()>) -> Result<()> {
        let id = self.members[index].child.id().ok_or("the process has ended")?;
        Ok(tokio::task::spawn_blocking(move || send(id)).await??)
    }

    /// Lets a process give back what it has, and end.
    ///
    /// # Errors
    ///
    /// It fails, or does not end.
    pub async fn dismiss(&mut self, index: usize) -> Result<()> {
        let Member { label, child, state } = &mut self.members[index];
        *state = State::Dismissed;
        drop(child.stdin.take());
        let ended = timeout(FAREWELL, child.wait()).await;
        let status = ended.map_err(|_| format!("{label} did not end when told to"))??;
        if !status.success() {
            return Err(format!("{label} ended with {status}").into());
        }
        Ok(())
    }

    /// Lets all processes that are left give back what they have, and end.
    ///
    /// # Errors
    ///
    /// One fails, or does not end.
    pub async fn dismiss_all(mut self) -> Result<()> {
        let left = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.state == State::Playing);
        let left: Vec<usize> = left.map(|(index, _)| index).collect();
        // All at once, so that none is handed what another gives back.
        for &index in &left {
            drop(self.members[index].child.stdin.take());
        }
        for index in left {
            self.dismiss(index).await?;
        }
        Ok(())
    }
}

/// Passes on the output of a process, until its end.
async fn listen<E: FromStr>(index: usize, output: ChildStdout, tell: mpsc::UnboundedSender<(usize, Heard<E>)>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let heard = match line.strip_prefix(FAILED) {
            Some(message) => Heard::Failed(message.to_owned()),
            None => line.parse().map_or(Heard::Nonsense(line), Heard::Event),
        };
        // Nothing listens any more once the crew is gone.
        let _ = tell.send((index, heard));
    }
    let _ = tell.send((index, Heard::End));
}
