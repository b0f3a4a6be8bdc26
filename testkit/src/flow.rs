//! One connection through a proxy, and the commands it has carried.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// Bytes of a message before the name of its command: the header, the flags, the kind of the section, the length of the
/// document and the type of its first element.
const BEFORE_NAME: usize = 16 + 4 + 1 + 4 + 1;

/// Maximum length of a command's name in bytes. MongoDB's are shorter.
const NAME: usize = 64;

/// Maximum length of a message in MongoDB. A longer one is not its protocol.
const MESSAGE: usize = 48_000_000;

/// The code of an `OP_MSG`, in which drivers send their commands.
const OP_MSG: i32 = 2013;

/// An open connection through a [`Proxy`](crate::Proxy), as [`Proxy::lose`](crate::Proxy::lose) shows it.
#[derive(Debug)]
pub struct Flow {
    origin: Option<u32>,
    carried: Mutex<BTreeSet<String>>,
    condition: watch::Sender<Condition>,
}

/// The condition of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Condition {
    #[default]
    Alive,
    /// Nothing gets through any more, and neither end learns of it.
    Lost,
    /// It was lost, and is closed.
    Closed,
}

impl Flow {
    /// Returns the process that it comes from, if the proxy is [telling apart](crate::Proxy::telling_apart).
    #[must_use]
    pub fn origin(&self) -> Option<u32> {
        self.origin
    }

    /// Whether a command of that name, as `findAndModify`, has been sent over it. Encrypted or compressed commands are
    /// unknown.
    #[must_use]
    pub fn has_carried(&self, command: &str) -> bool {
        lock(&self.carried).contains(command)
    }

    fn note(&self, command: String) {
        lock(&self.carried).insert(command);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }
}

/// The open connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flows(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    flows: BTreeMap<u64, Arc<Flow>>,
    next: u64,
    /// The command whose next connection is lost.
    losing: Option<String>,
}

/// The registration of a connection while it is open.
#[derive(Debug)]
pub(crate) struct OpenFlow {
    flows: Flows,
    number: u64,
    pub(crate) flow: Arc<Flow>,
}

impl Flows {
    pub(crate) fn open(&self, origin: Option<u32>) -> OpenFlow {
        let flow = Arc::new(Flow {
            origin,
            carried: Mutex::default(),
            condition: watch::Sender::default(),
        });
        let mut open = lock(&self.0);
        let number = open.next;
        open.next += 1;
        open.flows.insert(number, flow.clone());
        OpenFlow {
            flows: self.clone(),
            number,
            flow,
        }
    }

    /// Loses the living connections that are chosen, and returns their number.
    pub(crate) fn lose(&self, mut choose: impl FnMut(&Flow) -> bool) -> usize {
        let open = lock(&self.0);
        let living = open
            .flows
            .values()
            .filter(|flow| *flow.condition.borrow() == Condition::Alive);
        let mut lost = 0;
        for flow in living.filter(|flow| choose(flow)) {
            flow.condition.send_replace(Condition::Lost);
            lost += 1;
        }
        lost
    }

    /// Loses the next connection that carries this command.
    pub(crate) fn lose_next(&self, command: &str) {
        lock(&self.0).losing = Some(command.to_owned());
    }

    /// Loses no connection by its command any more.
    pub(crate) fn lose_no_next(&self) {
        lock(&self.0).losing = None;
    }

    /// Whether there has been no such connection yet.
    pub(crate) fn is_losing(&self) -> bool {
        lock(&self.0).losing.is_some()
    }

    /// Closes the lost connections that are chosen.
    pub(crate) fn close_lost(&self, mut choose: impl FnMut(&Flow) -> bool) {
        let open = lock(&self.0);
        let lost = open
            .flows
            .values()
            .filter(|flow| *flow.condition.borrow() == Condition::Lost);
        for flow in lost.filter(|flow| choose(flow)) {
            flow.condition.send_replace(Condition::Closed);
        }
    }
}

impl OpenFlow {
    /// Notes a command that has come for the server, before anything of it is passed on.
    pub(crate) fn note(&self, command: String) {
        let lost = lock(&self.flows.0).losing.take_if(|losing| *losing == command);
        if lost.is_some() {
            self.flow.condition.send_replace(Condition::Lost);
        }
        self.flow.note(command);
    }
}

impl Drop for OpenFlow {
    fn drop(&mut self) {
        lock(&self.flows.0).flows.remove(&self.number);
    }
}

/// A reader of the command names in the bytes that a client sends.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The beginning of a message, until its command is known.
    head: Vec<u8>,
    /// Number of bytes of a message that are still to come, and say nothing new.
    skip: usize,
    /// Whether the bytes are not MongoDB's protocol.
    deaf: bool,
}

impl Reader {
    /// Takes the next bytes, and calls `found` for each command that begins in them.
    pub(crate) fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(String)) {
        while !bytes.is_empty() && !self.deaf {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some((first, rest)) = bytes.split_first() else {
                return;
            };
            self.head.push(*first);
            bytes = rest;
            let length = int(&self.head, 0).and_then(|length| usize::try_from(length).ok());
            if self.head.len() >= 4 && length.is_none_or(|length| !(16..=MESSAGE).contains(&length)) {
                self.deaf = true;
            }
            let Some(length) = length.filter(|_| self.head.len() >= 16) else {
                continue;
            };
            let is_command = int(&self.head, 12) == Some(OP_MSG);
            let name = self.head.get(BEFORE_NAME..).unwrap_or_default();
            let ends = name.last() == Some(&0);
            if ends && is_command {
                found(String::from_utf8_lossy(&name[..name.len() - 1]).into_owned());
            }
            if ends || !is_command || self.head.len() >= (BEFORE_NAME + NAME).min(length) {
                self.skip = length.saturating_sub(self.head.len());
                self.head.clear();
            }
        }
    }
}

fn int(bytes: &[u8], at: usize) -> Option<i32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(i32::from_le_bytes(bytes))
}

/// Locks a mutex whose data is whole whenever it is free, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_connection_of_a_command_is_lost_and_no_other() {
        let flows = Flows::default();
        let (one, two) = (flows.open(None), flows.open(None));
        one.note("find".to_owned());
        flows.lose_next("find");
        one.note("insert".to_owned());
        assert!(flows.is_losing());
        two.note("find".to_owned());
        assert!(!flows.is_losing());
        one.note("find".to_owned());
        assert_eq!(*one.flow.watch().borrow(), Condition::Alive);
        assert_eq!(*two.flow.watch().borrow(), Condition::Lost);
    }

    fn message(code: i32, name: &str, padding: usize) -> Vec<u8> {
        let mut body = vec![0; 5];
        body.extend([0, 0, 0, 0, 2]);
        body.extend(name.as_bytes());
        body.resize(body.len() + 1 + padding, 0);
        let mut message = i32::try_from(16 + body.len()).unwrap().to_le_bytes().to_vec();
        message.extend([0; 8]);
        message.extend(code.to_le_bytes());
        message.extend(body);
        message
    }

    fn commands(chunks: &[&[u8]]) -> Vec<String> {
        let (mut reader, mut names) = (Reader::default(), Vec::new());
        for chunk in chunks {
            reader.read(chunk, |name| names.push(name));
        }
        names
    }

    #[test]
    fn commands_are_read_however_their_bytes_come() {
        let mut bytes = message(OP_MSG, "findAndModify", 100);
        bytes.extend(message(2004, "isMaster", 10));
        bytes.extend(message(OP_MSG, &"x".repeat(200), 10));
        bytes.extend(message(OP_MSG, "update", 0));
        let expected = ["findAndModify", "update"];
        assert_eq!(commands(&[&bytes]), expected);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(commands(&single), expected);
    }

    #[test]
    fn another_protocol_has_no_commands() {
        let handshake = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01];
        assert!(commands(&[&handshake, &message(OP_MSG, "update", 0)]).is_empty());
    }
}
