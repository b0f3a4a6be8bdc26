//! The records of a run, put together: the operations, and the records of the director and the servers.

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::{
    clock::{MILLI, Moment},
    journal::{Entry, Note},
    locks::Share,
    oplog::Version,
    record::{self, DETACHED, End, Record, Upon, What},
};

/// The file of the director's notes.
pub(crate) const JOURNAL: &str = "director.jsonl";

/// The file of the servers' log.
pub(crate) const SERVERS: &str = "servers.jsonl";

/// The ending of the files with the clients' histories.
pub(crate) const HISTORY: &str = ".history.jsonl";

/// Everything that is known of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
    /// The clients' complaints, with the client.
    pub(crate) complaints: Vec<(String, Moment, String)>,
    /// Whether a client is woken by its stream from then on.
    pub(crate) wakes: Vec<(String, Moment, bool)>,
    /// What each client used at some moments.
    pub(crate) readings: Vec<(String, Moment, BTreeMap<String, u64>)>,
    /// Clients that said farewell.
    pub(crate) farewells: Vec<String>,
    pub(crate) journal: Vec<Entry>,
    pub(crate) versions: Vec<Version>,
}

/// One acquire, and its consequences.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    pub(crate) client: String,
    pub(crate) number: u64,
    pub(crate) task: usize,
    pub(crate) name: String,
    pub(crate) share: Share,
    /// Whether it waits for its turn, and does not merely try.
    pub(crate) waits: bool,
    /// Number of milliseconds after which it was to give up.
    pub(crate) limit: Option<u64>,
    pub(crate) upon: Option<Upon>,
    pub(crate) requested: Moment,
    pub(crate) grant: Option<Grant>,
    pub(crate) ended: Option<(Moment, End)>,
    pub(crate) error: Option<String>,
    /// The number that it was about to write to the locked document, and whether it did.
    pub(crate) wrote: Option<(i64, Option<bool>)>,
}

/// The evidence of a hold. See [`record`] for what each moment proves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grant {
    pub(crate) token: i64,
    /// The first look at it.
    pub(crate) from: Moment,
    /// The time for which it called itself safe then.
    pub(crate) safe_at_first: u64,
    /// The last moment at which it surely was valid; `None` if it never was.
    pub(crate) valid_until: Option<Moment>,
    /// The latest moment up to which it ever called itself safe.
    pub(crate) promised_until: Moment,
    /// The longest time between two looks.
    pub(crate) unseen: u64,
    pub(crate) let_go: Option<LetGo>,
    pub(crate) lost: Option<(Moment, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LetGo {
    pub(crate) at: Moment,
    /// Whether it was released and not dropped.
    pub(crate) released: bool,
    /// The return of the release, and its result.
    pub(crate) outcome: Option<(Moment, String)>,
}

impl Operation {
    /// Returns the reason that it gives, which no other operation has.
    pub(crate) fn reason(&self) -> String {
        format!("{}#{}", self.client, self.number)
    }

    /// Returns the reason by which the servers know its entry.
    pub(crate) fn entry_reason(&self) -> String {
        match &self.upon {
            Some(Upon::Detached(reason) | Upon::Multi(reason)) => reason.clone(),
            _ => self.reason(),
        }
    }

    /// Whether it takes up a hold that was left behind.
    pub(crate) fn takes_up(&self) -> bool {
        matches!(self.upon, Some(Upon::Detached(_)))
    }

    /// Whether it came to some end by itself.
    pub(crate) fn is_over(&self) -> bool {
        let over = |grant: &Grant| {
            let let_go = grant.let_go.as_ref();
            grant.lost.is_some()
                || grant.valid_until.is_none()
                || let_go.is_some_and(|let_go| !let_go.released || let_go.outcome.is_some())
        };
        self.ended.is_some() || self.grant.as_ref().is_some_and(over)
    }
}

impl Grant {
    /// Returns up to when nobody else may have the lock, by this hold's own claims: `None` if it was never valid.
    pub(crate) fn claimed_until(&self) -> Option<Moment> {
        let valid_until = self.valid_until?;
        let taken = self.lost.as_ref().is_some_and(|(_, reason)| reason != "Expired");
        let claimed = if taken {
            valid_until
        } else {
            valid_until.max(self.promised_until)
        };
        let given_back = self.let_go.as_ref().filter(|let_go| !let_go.is_left());
        Some(given_back.map_or(claimed, |let_go| claimed.min(let_go.at)))
    }
}

impl LetGo {
    /// Whether the lock was left taken: nobody gives it back before its time is over, unless a client takes it up.
    pub(crate) fn is_left(&self) -> bool {
        self.outcome.as_ref().is_some_and(|(_, outcome)| outcome == DETACHED)
    }
}

impl History {
    /// Reads the records in a folder.
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let mut history = Self {
            journal: record::read(&folder.join(JOURNAL))?,
            versions: record::read(&folder.join(SERVERS))?,
            ..Self::default()
        };
        let mut files: Vec<_> = fs::read_dir(folder)?.collect::<io::Result<_>>()?;
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files {
            let name = file.file_name();
            if let Some(client) = name.to_str().and_then(|name| name.strip_suffix(HISTORY)) {
                history.add(client, record::read(&file.path())?);
            }
        }
        history.operations.sort_by_key(|operation| operation.requested);
        Ok(history)
    }

    /// Adds the records of one client.
    pub(crate) fn add(&mut self, client: &str, records: Vec<Record>) {
        let mut operations: BTreeMap<u64, Operation> = BTreeMap::new();
        for Record { at, op, what } in records {
            match what {
                What::Request {
                    name,
                    share,
                    task,
                    waits,
                    limit,
                    upon,
                } => {
                    let operation = Operation {
                        client: client.to_owned(),
                        number: op,
                        task,
                        name,
                        share,
                        waits,
                        limit,
                        upon,
                        requested: at,
                        grant: None,
                        ended: None,
                        error: None,
                        wrote: None,
                    };
                    operations.insert(op, operation);
                }
                What::Complaint { text } => self.complaints.push((client.to_owned(), at, text)),
                What::Farewell => self.farewells.push(client.to_owned()),
                What::Wakes { by_stream } => self.wakes.push((client.to_owned(), at, by_stream)),
                What::Reading { figures } => self.readings.push((client.to_owned(), at, figures)),
                What::Ready { .. } => {}
                what => match operations.get_mut(&op) {
                    Some(operation) => operation.add(at, what),
                    None => {
                        let text = format!("operation {op} has no beginning");
                        self.complaints.push((client.to_owned(), at, text));
                    }
                },
            }
        }
        self.operations.extend(operations.into_values());
    }

    /// Returns the moment of a reading of the servers' clock, which is the wall clock of this machine.
    pub(crate) fn moment(&self, millis: i64) -> Moment {
        let wall = i128::from(millis) * i128::from(MILLI);
        let guess = |ahead: i64| wall - i128::from(ahead);
        let mut ahead = 0;
        let mut best = i128::MAX;
        for entry in &self.journal {
            if let Note::Clock { ahead: measured } = entry.note {
                let distance = (guess(measured) - i128::from(entry.at)).abs();
                if distance < best {
                    (best, ahead) = (distance, measured);
                }
            }
        }
        Moment::try_from(guess(ahead)).unwrap_or(0)
    }
}

impl Operation {
    fn add(&mut self, at: Moment, what: What) {
        let grant = |token, valid, safe_for: u64| Grant {
            token,
            from: at,
            safe_at_first: safe_for,
            valid_until: valid,
            promised_until: at.saturating_add(safe_for),
            unseen: 0,
            let_go: None,
            lost: None,
        };
        match what {
            What::Granted { token, safe_for } => self.grant = Some(grant(token, Some(at), safe_for)),
            What::GrantedTooLate { token } => self.grant = Some(grant(token, None, 0)),
            What::Ended { how, error } => {
                self.ended = Some((at, how));
                self.error = error;
            }
            What::Writing { count } => self.wrote = Some((count, None)),
            What::Wrote { written } => {
                if let Some((_, wrote)) = &mut self.wrote {
                    *wrote = written;
                }
            }
            what => {
                let Some(grant) = &mut self.grant else { return };
                match what {
                    What::Look { safe_for } => {
                        let before = grant.valid_until.unwrap_or(grant.from);
                        grant.unseen = grant.unseen.max(at.saturating_sub(before));
                        grant.valid_until = grant.valid_until.max(Some(at));
                        grant.promised_until = grant.promised_until.max(at.saturating_add(safe_for));
                    }
                    What::Lost { reason } => grant.lost = Some((at, reason)),
                    What::LettingGo { released } => {
                        grant.let_go = Some(LetGo {
                            at,
                            released,
                            outcome: None,
                        });
                    }
                    What::LetGo { outcome } => {
                        if let Some(let_go) = &mut grant.let_go {
                            let_go.outcome = Some((at, outcome));
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
